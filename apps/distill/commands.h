#pragma once

#include "apps/distill/command_line.h"

namespace distill::cli {

// Each runs one command and returns the process's exit code.
int run_train(const TrainCommand& command);
int run_eval(const EvalCommand& command);
int run_inspect(const InspectCommand& command);

} // namespace distill::cli
