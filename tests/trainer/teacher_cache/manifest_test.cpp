#include "trainer/teacher_cache/manifest.h"

#include <gmock/gmock.h>

#include "tests/trainer/teacher_cache/cache_fixture.h"

namespace distill::teacher_cache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Manifest, ReadsBackAsWritten) {
  const Manifest manifest = tiny_manifest();
  const auto back = parse_manifest(to_json(manifest), "manifest.json");
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(to_json(*back), to_json(manifest));
  EXPECT_EQ(back->id(), manifest.id());
}

TEST(Manifest, PathsAreNoPartOfItsIdentity) {
  Manifest moved = tiny_manifest();
  moved.teacher = "/elsewhere";
  moved.data[0].path = "/elsewhere/train.dtok";
  EXPECT_EQ(moved.id(), tiny_manifest().id());
  EXPECT_TRUE(differences(tiny_manifest(), moved).empty());
}

TEST(Manifest, EveryOtherDifferenceIsNamedWithBothValues) {
  Manifest other = tiny_manifest();
  other.seq_len = 16;
  other.precision = "bfloat16";
  EXPECT_NE(other.id(), tiny_manifest().id());
  EXPECT_THAT(
      differences(tiny_manifest(), other),
      ElementsAre("precision: expected \"float32\", found \"bfloat16\"", "seq_len: expected 8, found 16"));
  other = tiny_manifest();
  other.data[0].header_hash.fill(1);
  EXPECT_THAT(
      differences(tiny_manifest(), other), ElementsAre(HasSubstr("data: expected 1 token shards with sha256 ")));
}

TEST(Manifest, AnotherVersionIsNamedWithBoth) {
  std::string text = to_json(tiny_manifest());
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 4");
  const absl::Status status = parse_manifest(text, "manifest.json").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("manifest.json: version: expected 1, found 4"));
}

TEST(Manifest, WrongMembersAreNamed) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = to_json(tiny_manifest());
    text.replace(text.find(from), from.size(), to);
    const absl::Status status = parse_manifest(text, "manifest.json").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(with("\"float32\",\n  \"hidden", "\"int4\",\n  \"hidden"), HasSubstr("encoding: expected float32, "));
  EXPECT_THAT(with("\"seq_len\": 8", "\"seq_len\": -8"), HasSubstr("seq_len: expected an integer from 2 to "));
  EXPECT_THAT(with("\"vocab_size\"", "\"vocab\""), HasSubstr("vocab_size: "));
  EXPECT_THAT(with("0909", "zz09"), HasSubstr("teacher_hash: expected 64 hexadecimal digits"));
  EXPECT_THAT(with("distill-teacher-cache", "something"), HasSubstr("format: expected distill-teacher-cache"));
}

} // namespace
} // namespace distill::teacher_cache
