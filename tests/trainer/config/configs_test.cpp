#include <absl/strings/match.h>
#include <gmock/gmock.h>

#include "tests/trainer/config/config_test_util.h"

// The files of configs/: they read without a problem and break no rule. Their paths are their users'.
namespace distill::config {
namespace {

TEST(Configs, EveryExampleReadsAndKeepsTheRules) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(DISTILL_CONFIGS_DIR)) {
    const std::string path = entry.path().string();
    ASSERT_TRUE(absl::EndsWith(path, ".yaml")) << path;
    names.push_back(entry.path().stem().string());
    const ReadResult result = read_file(path, {});
    EXPECT_THAT(result.problems, ::testing::IsEmpty()) << report(result.problems);
    for (const Purpose purpose : {Purpose::kTrain, Purpose::kEvaluate}) {
      const std::vector<Problem> problems = check_rules(result.config, {path, purpose, result.origins, {}});
      EXPECT_THAT(problems, ::testing::IsEmpty()) << report(problems);
    }
  }
  EXPECT_THAT(
      names,
      ::testing::UnorderedElementsAre(
          "quickstart", "onpolicy", "onpolicy_vllm", "onpolicy_qwen3_from_llama3", "llama8b", "llama1b",
          "llama1b_cached", "qwen3", "qwen35", "qwen3_from_llama3", "qwen3_from_qwen2_5", "qwen3_4b_from_30b_a3b",
          "self_distillation", "lora", "lora_float8", "lora_teacher", "several_teachers"));
}

} // namespace
} // namespace distill::config
