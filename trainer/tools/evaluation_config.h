#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/load.h"

namespace distill::trainer {

// The options of `distill eval`.
struct EvaluationRequest {
  std::string config; // file; empty: none, and every key has its default
  std::vector<std::string> overrides; // "section.key=VALUE"
  // These members take precedence over the file and the overrides.
  std::string student; // folder; empty: student.path, or to quantize the teacher that `teacher` names by its folder
  std::string teacher; // folder, or the name of one of several; empty: teacher.path
  std::vector<std::string> data; // token shards or folders of them; empty: data.eval
  config::Purpose purpose = config::Purpose::kEvaluate; // or kQuantize
};

// Makes the checked configuration of an evaluation. If data.seq_len is not given, it is the largest length up to its
// default that all models can read. InvalidArgument: one report of all problems.
absl::StatusOr<config::Config> evaluation_config(const EvaluationRequest& request);

} // namespace distill::trainer
