#pragma once

#include <cstdint>
#include <string>

#include "trainer/config/config.h"
#include "trainer/metrics/step_metrics.h"

namespace distill::metrics {

// Prints the progress of the run on standard output: a bar that stays on one line of the terminal, or a line for each
// step. On a terminal both have the fields that fit into its width at that moment, elsewhere a line has all fields.
class ProgressPrinter {
 public:
  // Lines: for every `every`-th step, for the last step, and for steps that changed nothing. A terminal that cannot
  // rewrite a line gets lines in place of the bar.
  ProgressPrinter(config::ProgressStyle style, int64_t every);
  ~ProgressPrinter();
  ProgressPrinter(const ProgressPrinter&) = delete;
  ProgressPrinter& operator=(const ProgressPrinter&) = delete;

  void step(const StepMetrics& record);
  // Prints a line that stays, for instance the result of an evaluation; nothing where the style is none.
  void message(const std::string& line);
  // Prints a line in any style: for what a command was asked for.
  void result(const std::string& line);

 private:
  void print_line(const StepMetrics& record) const;
  void show_bar(const StepMetrics& record) const;

  bool prints_ = true;
  bool bar_ = false;
  bool lines_ = false;
  bool colour_ = false;
  int64_t every_ = 1;
};

} // namespace distill::metrics
