#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <string>

#include "trainer/config/config.h"
#include "trainer/config/reader.h"

namespace distill::config {

// The purpose for which a configuration is loaded decides which keys it must have.
enum class Purpose {
  kTrain,
  // data.eval is needed; data.train, the run's length and run.dir are not. Without a teacher the loss is the
  // cross-entropy on the labels, whatever the divergence.
  kEvaluate,
  kQuantize, // as kEvaluate, but data.train serves where data.eval is not given
  kCapture, // teacher, teacher.cache and data.train are needed; the student, the run's length and run.dir are not
  kPlan, // the models' config.json are needed; weights, data, the run's length and run.dir are not
};

// Reads a configuration file with overrides and checks everything that needs neither a model nor a GPU: keys and values
// (read_file), the rules between keys (check_rules), and the paths (check_paths). InvalidArgument: one report of all
// problems. `ranks`: how many ranks a launcher has started; 0: none has. `teacher`: of several, the name of the one
// that is meant, for which the configuration then is (config_of_teacher); a capture and the measurement of float8 need
// one.
absl::StatusOr<Config> load(
    const std::string& path, absl::Span<const std::string> overrides, Purpose purpose, int64_t ranks = 0,
    const std::string& teacher = "");

// Checks a configuration that has been read already. `source` is named by problems of keys that were not given.
absl::StatusOr<Config> check(
    ReadResult read, const std::string& source, Purpose purpose, int64_t ranks = 0, const std::string& teacher = "");

} // namespace distill::config
