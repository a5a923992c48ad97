#pragma once

#include <string>

#include "trainer/metrics/step_record.h"

namespace distill::metrics {

// Prints the run's progress on standard output: on a terminal a bar that stays on one line, otherwise a line a step.
class Progress {
 public:
  // mode: auto (bar on a terminal) | bar | lines | none. Prints every `every`-th step and the last.
  Progress(const std::string& mode, int64_t every);
  ~Progress();

  void step(const StepRecord& record);
  // A line that stays, such as an evaluation's.
  void message(const std::string& line);

 private:
  void clear_bar();

  bool bar_ = false;
  bool lines_ = false;
  bool bar_shown_ = false;
  int64_t every_ = 1;
};

} // namespace distill::metrics
