#pragma once

#include <absl/status/status.h>

#include <string>
#include <vector>

#include "trainer/report/line_reader.h"

namespace distill::report {

// A round of an on-policy run, as a line of metrics.jsonl has it.
struct RecordedRound {
  int64_t step = 0; // steps done before it
  double seconds = 0; // that these steps took
  Json values;
};

// At most so much of the rounds is on the page.
struct RoundLimits {
  size_t rounds = 400; // in the table
  size_t judged = 12; // of which the judgement is shown by position
  size_t sample_bytes = 400'000; // of completions with their judged tokens, of the newest of these
};

// Adds `rounds`, and `round_samples`: what student and teacher say of the first completions, where the round's folder
// is still there. `seconds`: that all steps took. DataLoss: a judged.json that is damaged.
absl::Status add_rounds(
    const std::string& run_dir, const std::vector<RecordedRound>& recorded, double seconds, const RoundLimits& limits,
    Json& run);

} // namespace distill::report
