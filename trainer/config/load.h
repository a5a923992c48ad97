#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <string>

#include "trainer/config/config.h"

namespace distill::config {

// What a configuration is loaded for, which decides what it must name.
enum class Purpose {
  kTrain,
  kEvaluate, // data.eval is needed; data.train, the run's length and run.dir are not
  kPlan, // the models' config.json are needed; weights, data, the run's length and run.dir are not
};

// Reads a configuration file with overrides and checks everything that needs neither a model nor a GPU: keys and values
// (read_file), the rules between keys (check_rules), and the paths (check_paths). InvalidArgument: one report of all
// problems. `ranks`: how many ranks a launcher has started; 0: none has.
absl::StatusOr<Config> load(
    const std::string& path, absl::Span<const std::string> overrides, Purpose purpose, int64_t ranks = 0);

} // namespace distill::config
