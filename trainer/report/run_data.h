#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>

#include "trainer/report/round_data.h"

namespace distill::report {

// The number of steps, runs and events that the page has room for.
struct DataLimits {
  size_t points = 1200; // of the x axis
  size_t evaluations = 400;
  size_t events = 1000;
  size_t sample_bytes = 400'000;
  RoundLimits rounds;
};

// A run folder, finished or being written, as the page's scripts read it (state.js and what uses its `runs`). The
// files are not trusted. NotFound: the folder is no run folder. InvalidArgument: a file that cannot be read, or a
// damaged line of one, with its number; a last line without its newline is being written, and is left out.
absl::StatusOr<nlohmann::ordered_json> run_data(const std::string& folder, const DataLimits& limits);

} // namespace distill::report
