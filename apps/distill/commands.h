#pragma once

#include <absl/status/statusor.h>

#include "apps/distill/command_line.h"

namespace distill::cli {

// Each function runs one command and returns the exit code of the process (launch::ExitCode), or an error that has not
// been printed yet.
absl::StatusOr<int> run_train(const TrainCommand& command);
absl::StatusOr<int> run_capture(const CaptureCommand& command);
absl::StatusOr<int> run_eval(const EvalCommand& command);
absl::StatusOr<int> run_inspect(const InspectCommand& command);
absl::StatusOr<int> run_verify(const VerifyCommand& command);
absl::StatusOr<int> run_export(const ExportCommand& command);
absl::StatusOr<int> run_replay(const ReplayCommand& command);
absl::StatusOr<int> run_plan(const PlanCommand& command);
absl::StatusOr<int> run_profile_memory(const ProfileMemoryCommand& command);
absl::StatusOr<int> run_report(const ReportCommand& command);
absl::StatusOr<int> run_quantize(const QuantizeCommand& command);

} // namespace distill::cli
