#pragma once

#include <absl/types/span.h>

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/problem.h"

namespace distill::config {

enum class Purpose {
  kTrain,
  kEvaluate, // data.eval is needed; data.train, the run's length and run.dir are not
  kPlan, // the models' config.json are needed; weights, data, the run's length and run.dir are not
};

struct LoadResult {
  Config config;
  std::vector<Problem> problems; // empty: the configuration is valid and every path exists
};

// Reads a configuration file with overrides and checks everything that needs neither a model nor a GPU: keys and values
// (read), the rules between keys (check_rules), and the paths (check_paths). All problems come back together. `ranks`:
// how many a launcher started; 0: none did.
LoadResult load(const std::string& path, absl::Span<const std::string> overrides, Purpose purpose, int64_t ranks = 0);

} // namespace distill::config
