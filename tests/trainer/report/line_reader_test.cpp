#include "trainer/report/line_reader.h"

#include <gmock/gmock.h>

#include <fstream>

#include "tests/trainer/hf/temporary_folder.h"

namespace distill::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RecordLines : public hf::FolderTest {
 protected:
  // The steps that are read, or an error.
  absl::StatusOr<std::vector<int64_t>> steps(const std::string& content) const {
    std::ofstream(path("lines.jsonl"), std::ios::binary) << content;
    std::vector<int64_t> found;
    const auto visited = for_each_object(path("lines.jsonl"), [&](int64_t number, Json& line) {
      const auto step = step_of(line, "lines.jsonl", number);
      found.push_back(step.value_or(-1));
      return step.status();
    });
    return visited.ok() ? absl::StatusOr<std::vector<int64_t>>(found) : visited.status();
  }
  std::string problem(const std::string& content) const {
    return std::string(steps(content).status().message());
  }
};

TEST_F(RecordLines, ALastLineWithoutItsNewlineIsLeftOut) {
  EXPECT_THAT(*steps("{\"step\":1}\n{\"step\":2}\n{\"step\":3}"), ElementsAre(1, 2));
  EXPECT_THAT(*steps("{\"st"), ElementsAre());
  EXPECT_THAT(*steps(""), ElementsAre());
}

TEST_F(RecordLines, ADamagedLineIsNamed) {
  EXPECT_THAT(
      problem("{\"step\":1}\n{\"step\"\n"), HasSubstr("lines.jsonl:2: expected a JSON object, found a damaged"));
  EXPECT_THAT(problem("7\n"), HasSubstr("lines.jsonl:1: expected a JSON object, found number"));
  EXPECT_THAT(problem("{\"step\":1.5}\n"), HasSubstr("lines.jsonl:1: expected a whole number as \"step\", found 1.5"));
  EXPECT_THAT(problem("{}\n"), HasSubstr("found none"));
}

TEST_F(RecordLines, BracketsInTextsAreNoNesting) {
  EXPECT_THAT(*steps("{\"step\":1,\"text\":\"\\\"" + std::string(100, '[') + "\"}\n"), ElementsAre(1));
  EXPECT_THAT(problem("{\"step\":1,\"a\":" + std::string(100, '[') + "\n"), HasSubstr("more than 16 levels"));
}

TEST_F(RecordLines, AMissingFileHasNoLinesAndAFolderIsAnError) {
  const auto ignore = [](int64_t, Json&) { return absl::OkStatus(); };
  EXPECT_FALSE(*for_each_object(path("nothing"), ignore));
  EXPECT_THAT(std::string(for_each_object(path(""), ignore).status().message()), HasSubstr("expected a file"));
}

} // namespace
} // namespace distill::report
