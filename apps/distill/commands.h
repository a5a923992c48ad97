#pragma once

#include "apps/distill/command_line.h"

namespace distill::cli {

// Each runs one command and returns the process's exit code.
int run_train(const TrainCommand& command);
int run_eval(const EvalCommand& command);
int run_inspect(const InspectCommand& command);
int run_verify(const VerifyCommand& command);
int run_export(const ExportCommand& command);
int run_replay(const ReplayCommand& command);
int run_plan(const PlanCommand& command);
int run_profile_memory(const ProfileMemoryCommand& command);

} // namespace distill::cli
