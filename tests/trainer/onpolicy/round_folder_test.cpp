#include "trainer/onpolicy/round_folder.h"

#include <gmock/gmock.h>

#include "tests/data/fixtures.h"

namespace distill::onpolicy {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

class RoundFolderTest : public data::testing::FolderTest {
 protected:
  std::string run() const {
    return folder_.string();
  }
  static Json request(const std::string& version, int64_t first_step = 0) {
    return {{"weight_version", version}, {"first_step", first_step}, {"steps", 2}, {"temperature", 0.7}};
  }
  void complete(int64_t number, int64_t first_step) {
    const RoundFolder folder(run(), number);
    std::string aside;
    ASSERT_TRUE(folder.begin(request("a", first_step), aside).ok());
    ASSERT_TRUE(folder.complete(request("a", first_step), {{"completions", 3}}).ok());
  }
};

TEST_F(RoundFolderTest, TheSameRequestGoesOnAndAnotherOneBeginsAnew) {
  const RoundFolder folder(run(), 3);
  EXPECT_EQ(folder.path(), run() + "/onpolicy/round-00003");
  std::string aside;
  ASSERT_TRUE(folder.begin(request("a"), aside).ok());
  write("onpolicy/round-00003/output.jsonl", std::string("lines"));
  ASSERT_TRUE(folder.begin(request("a"), aside).ok());
  EXPECT_EQ(aside, "");
  EXPECT_TRUE(std::filesystem::exists(folder.file(kOutputFile)));
  EXPECT_TRUE(absl::IsNotFound(folder.read_complete().status()));
  ASSERT_TRUE(folder.begin(request("b"), aside).ok());
  EXPECT_EQ(aside, folder.path() + ".replaced");
  EXPECT_FALSE(std::filesystem::exists(folder.file(kOutputFile)));
  ASSERT_TRUE(folder.begin(request("c"), aside).ok());
  EXPECT_EQ(aside, folder.path() + ".replaced-2");
}

TEST_F(RoundFolderTest, ACompleteRoundSaysWhatCameOfIt) {
  complete(0, 5);
  const auto contents = RoundFolder(run(), 0).read_complete().value();
  EXPECT_EQ(contents.request, request("a", 5));
  EXPECT_EQ(contents.result["completions"], 3);
}

TEST_F(RoundFolderTest, ADamagedDescriptionIsNamedAndReplaced) {
  complete(0, 0);
  const RoundFolder folder(run(), 0);
  for (const char* text : {"", "{", "[]", R"({"format": "distill-round"})", R"({"format": "x", "request": {}})"}) {
    write("onpolicy/round-00000/round.json", std::string(text));
    EXPECT_THAT(std::string(folder.read_complete().status().message()), HasSubstr("round.json")) << text;
  }
  write("onpolicy/round-00000/round.json", std::string(R"({"format": "distill-round", "version": 9, "request": {}})"));
  EXPECT_THAT(std::string(folder.read_complete().status().message()), HasSubstr("expected format version 1, found 9"));
  std::string aside;
  ASSERT_TRUE(folder.begin(request("a"), aside).ok());
  EXPECT_NE(aside, "");
}

TEST_F(RoundFolderTest, OldRoundsAreRemovedUnlessACheckpointEndsBeforeThem) {
  for (int64_t number = 0; number < 5; ++number) {
    complete(number, 2 * number);
  }
  EXPECT_THAT(remove_old_rounds(run(), 4, 2, /*step=*/0), ::testing::IsEmpty());
  EXPECT_THAT(
      remove_old_rounds(run(), 4, 2, /*step=*/4),
      ::testing::ElementsAre(RoundFolder(run(), 1).path(), RoundFolder(run(), 0).path()));
  EXPECT_TRUE(RoundFolder(run(), 2).read_complete().ok());
  std::string aside;
  ASSERT_TRUE(RoundFolder(run(), 5).begin(request("a"), aside).ok()); // not complete
  EXPECT_THAT(complete_rounds(run()), ::testing::ElementsAre(2, 3, 4));
  EXPECT_TRUE(RoundFolder(run(), 4).read_complete().ok());
}

} // namespace
} // namespace distill::onpolicy
