#include "trainer/teacher_cache/manifest.h"

#include <gmock/gmock.h>

#include "tests/trainer/teacher_cache/cache_fixture.h"

namespace distill::teacher_cache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Manifest, ReadsBackAsWritten) {
  const Manifest manifest = tiny_manifest();
  const auto back = parse_manifest(to_json(manifest), "manifest.json").value();
  EXPECT_EQ(to_json(back), to_json(manifest));
  EXPECT_EQ(back.id(), manifest.id());
}

Manifest sampled_manifest() {
  Manifest manifest = tiny_manifest();
  manifest.rows = {Encoding::kFloat32, 0, losses::TeacherKind::kSampled, 12, 40, 2.5, 30, 0.7, 5};
  return manifest;
}

TEST(Manifest, OfAFewTokensReadsBackAsWritten) {
  const Manifest manifest = sampled_manifest();
  const auto back = parse_manifest(to_json(manifest), "manifest.json").value();
  EXPECT_EQ(back.rows, manifest.rows);
  EXPECT_EQ(back.id(), manifest.id());
  Manifest other = manifest;
  other.rows.temperature = 1;
  other.rows.seed = 6;
  EXPECT_THAT(
      differences(manifest, other), ElementsAre("temperature: expected 2.5, found 1.0", "seed: expected 5, found 6"));
  EXPECT_THAT(differences(manifest, tiny_manifest()), ElementsAre("kind: expected sampled, found hidden"));
  EXPECT_THAT(differences(tiny_manifest(), manifest), ElementsAre("kind: expected hidden, found sampled"));
}

TEST(Manifest, OfConcatenatedDocumentsReadsBackAsWritten) {
  for (const Manifest& packed : {tiny_manifest(), sampled_manifest()}) {
    Manifest manifest = packed;
    manifest.packing = data::PackingMode::kConcat;
    manifest.shuffle = true;
    manifest.data_seed = 7;
    const auto back = parse_manifest(to_json(manifest), "manifest.json").value();
    EXPECT_EQ(to_json(back), to_json(manifest));
    EXPECT_EQ(back.rows, manifest.rows);
    EXPECT_NE(manifest.id(), packed.id());
    EXPECT_THAT(differences(manifest, packed), ElementsAre("packing: expected concat, found pack"));
    EXPECT_THAT(differences(packed, manifest), ElementsAre("packing: expected pack, found concat"));
    Manifest other = manifest;
    other.data_seed = 8;
    EXPECT_THAT(differences(manifest, other), ElementsAre("data_seed: expected 7, found 8"));
  }
}

TEST(Manifest, OfATeacherWithOtherIdsReadsBackAsWritten) {
  for (const Manifest& plain : {tiny_manifest(), sampled_manifest()}) {
    Manifest manifest = plain;
    manifest.rows.ranges = {{0, 7}, {9, 30}};
    manifest.vocabulary = base::sha256("rows", 4);
    manifest.masks = true;
    for (const bool concat : {false, true}) {
      manifest.packing = concat ? data::PackingMode::kConcat : data::PackingMode::kPack;
      const auto back = parse_manifest(to_json(manifest), "manifest.json").value();
      EXPECT_EQ(to_json(back), to_json(manifest));
      EXPECT_EQ(back.rows, manifest.rows);
      EXPECT_EQ(back.vocabulary, manifest.vocabulary);
      EXPECT_TRUE(back.masks);
      EXPECT_EQ(back.concat(), concat);
    }
    manifest.packing = plain.packing;
    EXPECT_NE(manifest.id(), plain.id());
    EXPECT_THAT(
        differences(manifest, plain),
        ElementsAre("column_ranges: expected [[0,7],[9,30]], found null", HasSubstr("vocabulary: expected \"")));
    EXPECT_EQ(differences(plain, manifest).size(), 2U);
    Manifest other = manifest;
    other.masks = false;
    EXPECT_THAT(differences(manifest, other), ElementsAre("masks_missing_tokens: expected true, found false"));
    other = manifest;
    other.rows.ranges = {{0, 30}};
    EXPECT_THAT(differences(manifest, other), ElementsAre(HasSubstr("column_ranges: expected [[0,7],[9,30]], found")));
  }
}

TEST(Manifest, OfTheTeachersOwnTokensReadsBackAsWritten) {
  const Manifest plain = tiny_manifest();
  Manifest manifest = plain;
  manifest.own_tokenizer = base::sha256("its", 3);
  manifest.teacher_keys.student_tokenizer = "models/student";
  manifest.teacher_keys.token_pairs = {"a=b"};
  const std::string text = to_json(manifest);
  const auto back = parse_manifest(text, "manifest.json").value();
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(back.own_tokenizer, manifest.own_tokenizer);
  EXPECT_EQ(back.teacher_keys, manifest.teacher_keys);
  EXPECT_NE(manifest.id(), plain.id());
  EXPECT_THAT(differences(manifest, plain), ElementsAre(HasSubstr("teacher_tokenizer_hash: expected \"")));
  EXPECT_EQ(differences(plain, manifest).size(), 1U);
  Manifest other = manifest;
  other.teacher_keys = {}; // are like paths
  EXPECT_EQ(other.id(), manifest.id());
  for (const auto& [from, to, says] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"\"packing\": \"pack\"", "\"packing\": \"concat\"", "packing: expected pack"},
           {"\"teacher_tokenizer_hash\"", "\"none\"", "teacher_tokenizer_hash: expected a text"}}) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    EXPECT_THAT(std::string(parse_manifest(changed, "m.json").status().message()), HasSubstr(says));
  }
}

TEST(Manifest, RangesThatAreNoneAreNamed) {
  Manifest manifest = sampled_manifest();
  manifest.rows.ranges = {{0, 7}, {9, 30}};
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"9,", "6,"}, {"9,", "-9,"}, {"30", "50"}, {"30", "9"}, {"30", "\"a\""}}) {
    std::string text = to_json(manifest);
    text.erase(std::remove_if(text.begin(), text.end(), [](char c) { return c == ' ' || c == '\n'; }), text.end());
    const size_t at = text.find(from, text.find("column_ranges"));
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    EXPECT_THAT(std::string(parse_manifest(text, "m.json").status().message()), HasSubstr("ranges: expected")) << to;
  }
}

// Earlier versions of the program wrote these bytes: their caches keep their identity.
TEST(Manifest, OfHiddenStatesHasTheIdentityThatItAlwaysHad) {
  EXPECT_EQ(base::hex(tiny_manifest().id()), "b62b93148aa50ddebb2cededabcc7fc3e38ffbe06cced814581ed09506edded7");
}

// The head is bound to the rows: parts of a cache with another one are of another cache.
TEST(Manifest, TheHeadIsPartOfTheIdentity) {
  Manifest manifest = tiny_manifest();
  manifest.head = base::sha256("lines", 5);
  const auto back = parse_manifest(to_json(manifest), "manifest.json").value();
  EXPECT_EQ(back.head, manifest.head);
  EXPECT_EQ(back.id(), manifest.id());
  EXPECT_NE(manifest.id(), tiny_manifest().id());
  Manifest other = manifest;
  other.head = base::sha256("other", 5);
  EXPECT_NE(other.id(), manifest.id());
  EXPECT_THAT(differences(manifest, other), ElementsAre(HasSubstr("head: expected \"")));
  EXPECT_TRUE(differences(tiny_manifest(), manifest).empty()); // of a capture that has not written one yet
  std::string text = to_json(manifest);
  text.replace(text.find("\"head\": \"") + 9, 1, "x");
  EXPECT_THAT(
      std::string(parse_manifest(text, "manifest.json").status().message()),
      HasSubstr("manifest.json: head: expected 64 hexadecimal digits"));
}

TEST(Manifest, WhatTheTeacherNeedsToRunAgainReadsBackAndIsNoPartOfTheIdentity) {
  Manifest manifest = tiny_manifest();
  EXPECT_EQ(to_json(manifest).find("teacher_keys"), std::string::npos);
  manifest.teacher_keys = {{"rope_scaling"}, "models/tokenizer", true, {"0-3", "down"}};
  const auto back = parse_manifest(to_json(manifest), "manifest.json").value();
  EXPECT_EQ(back.teacher_keys, manifest.teacher_keys);
  EXPECT_EQ(manifest.id(), tiny_manifest().id());
  EXPECT_TRUE(differences(manifest, tiny_manifest()).empty());
  std::string text = to_json(manifest);
  text.replace(text.find("\"rope_scaling\""), 14, "7");
  EXPECT_THAT(
      std::string(parse_manifest(text, "manifest.json").status().message()),
      HasSubstr("manifest.json: ignore_config_keys: expected a list of texts"));
}

TEST(Manifest, RowsThatContradictThemselvesAreNamed) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = to_json(sampled_manifest());
    text.replace(text.find(from), from.size(), to);
    const absl::Status status = parse_manifest(text, "manifest.json").status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(with("\"sampled\"", "\"hidden\""), HasSubstr("kind: expected topk or sampled"));
  EXPECT_THAT(with("\"entries\": 12", "\"entries\": 0"), HasSubstr("entries: expected an integer from 1 to 1024"));
  EXPECT_THAT(with("\"float32\"", "\"float16\""), HasSubstr("encoding: expected float32 of the weights"));
  EXPECT_THAT(with("\"temperature\": 2.5", "\"temperature\": -1"), HasSubstr("temperature: expected a number above 0"));
  EXPECT_THAT(with("\"softcap\"", "\"cap\""), HasSubstr("softcap: expected a number"));
  EXPECT_THAT(with("\"exponent\": 0.7", "\"exponent\": 1.7"), HasSubstr("exponent: expected a number in (0, 1]"));
  EXPECT_THAT(with("\"seed\": 5", "\"seed\": 5.5"), HasSubstr("seed: expected an integer"));
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
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 6");
  const absl::Status status = parse_manifest(text, "manifest.json").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("manifest.json: version: expected 1 to 5, found 6"));
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
