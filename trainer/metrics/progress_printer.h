#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/config.h"
#include "trainer/metrics/step_record.h"

namespace distill::metrics {

// Prints the progress of the run on standard output: a progress bar that stays on one line of the terminal, or a line
// for each step.
class ProgressPrinter {
 public:
  // Lines: for every `every`-th step, for the last step, and for skipped steps.
  ProgressPrinter(config::ProgressStyle style, int64_t every);
  ~ProgressPrinter();

  void step(const StepRecord& record);
  // Prints a line that stays, for instance the result of an evaluation.
  void message(const std::string& line);

 private:
  void clear_bar();

  bool bar_ = false;
  bool lines_ = false;
  bool bar_shown_ = false;
  int64_t every_ = 1;
};

} // namespace distill::metrics
