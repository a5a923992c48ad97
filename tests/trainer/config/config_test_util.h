#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "trainer/config/load.h"
#include "trainer/config/problem.h"
#include "trainer/config/reader.h"
#include "trainer/config/rules.h"

namespace distill::config {

inline ReadResult read_text(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  return read(yaml, "test.yaml", overrides);
}

// A configuration that passes all rules.
inline constexpr char kValid[] = R"(student:
  path: models/student
teacher:
  path: models/teacher
data:
  train: data/train
  eval: data/eval
  seq_len: 128
loss:
  divergence: jsd
  beta: 0.5
train:
  steps: 100
  micro_batch_size: 2
  global_batch_size: 8
scheduler:
  warmup_steps: 10
run:
  dir: runs/test
)";

// The problems of the rules for kValid with overrides.
inline std::vector<Problem> rule_problems(
    const std::vector<std::string>& overrides, Purpose purpose = Purpose::kTrain, const std::string& yaml = kValid) {
  const ReadResult result = read_text(yaml, overrides);
  std::vector<Problem> problems = result.problems;
  const CheckContext context{"test.yaml", purpose,       result.origins, suspect_keys(result.problems),
                             /*ranks=*/0, result.is_dump};
  for (Problem& problem : check_rules(result.config, context)) {
    problems.push_back(problem);
  }
  return problems;
}

// A folder that is removed with its content.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "distill_config_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::filesystem::remove_all(path_);
  }
  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  std::filesystem::path path_;
};

} // namespace distill::config
