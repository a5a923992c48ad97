#include "trainer/metrics/json_lines.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace distill::metrics {
namespace {

class JsonLinesTest : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "json_lines_test.jsonl";

  void SetUp() override {
    std::filesystem::remove_all(path_);
  }
  std::string content() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

TEST_F(JsonLinesTest, ResumingDropsLaterStepsAndATornLine) {
  std::ofstream(path_) << R"({"step":1,"loss":2}
{"step":2,"loss":1}
{"step":2,"eval":{"loss":1}}
{"step":3,"loss":0.5}
not json
{"step":1,"torn")";
  auto lines = JsonLines::open(path_, {2, 2});
  ASSERT_TRUE(lines.ok()) << lines.status();
  ASSERT_TRUE(lines->append(R"({"step":3,"loss":0.25})").ok());
  EXPECT_EQ(content(), R"({"step":1,"loss":2}
{"step":2,"loss":1}
{"step":2,"eval":{"loss":1}}
{"step":3,"loss":0.25}
)");
}

// The checkpoint was made before the evaluation, which will come again.
TEST_F(JsonLinesTest, EvaluationsHaveALimitOfTheirOwn) {
  std::ofstream(path_) << R"({"step":1,"loss":2}
{"step":1,"eval":{"loss":2}}
{"step":2,"loss":1}
{"step":2,"eval":{"loss":1}}
)";
  ASSERT_TRUE(JsonLines::open(path_, {2, 1}).ok());
  EXPECT_EQ(content(), R"({"step":1,"loss":2}
{"step":1,"eval":{"loss":2}}
{"step":2,"loss":1}
)");
}

// A round that begins after the checkpoint's last step is judged again, unless the checkpoint was saved in it.
TEST_F(JsonLinesTest, RoundsHaveALimitOfTheirOwn) {
  const std::string before = R"({"step":0,"round":{"number":0}}
{"step":1,"loss":2}
{"step":2,"loss":1}
)";
  const std::string next = R"({"step":2,"round":{"number":1}}
)";
  std::ofstream(path_) << before << next;
  ASSERT_TRUE(JsonLines::open(path_, {.last_step = 2, .last_round = 2}).ok());
  EXPECT_EQ(content(), before + next);
  ASSERT_TRUE(JsonLines::open(path_, {.last_step = 2, .last_round = 0}).ok());
  EXPECT_EQ(content(), before);
}

// Dropping every line because they cannot be read would lose the run's past.
TEST_F(JsonLinesTest, AFileThatCannotBeReadIsAnErrorAndStays) {
  std::filesystem::create_directory(path_);
  const auto lines = JsonLines::open(path_, {2, 2});
  EXPECT_NE(std::string(lines.status().message()).find(path_), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_directory(path_));
}

TEST_F(JsonLinesTest, StepsThatAreNoNumbersOfStepsAreNotKeptByMistake) {
  std::ofstream(path_)
      << "{\"step\":18446744073709551615}\n{\"step\":1.5}\n{\"step\":-1}\n[1]\n{\"step\":2,\"step\":3}\n";
  ASSERT_TRUE(JsonLines::open(path_, {2, 2}).ok());
  EXPECT_EQ(content(), "{\"step\":1.5}\n{\"step\":-1}\n");
}

TEST_F(JsonLinesTest, ErrorNamesTheFile) {
  const auto lines = JsonLines::open("/nowhere/metrics.jsonl", {});
  EXPECT_NE(lines.status().message().find("/nowhere/metrics.jsonl"), std::string::npos);
}

} // namespace
} // namespace distill::metrics
