#include "apps/distill/exit_code.h"

#include <cstdio>

namespace distill::cli {

ExitCode exit_code(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSuccess;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
      return kBadInput;
    default:
      return kRuntimeFailure;
  }
}

ExitCode fail(const absl::Status& status) {
  std::fflush(stdout);
  const std::string message(status.message());
  std::fprintf(stderr, "distill: error: %s\n", message.c_str());
  return exit_code(status);
}

} // namespace distill::cli
