#include "trainer/launch/exit_code.h"

namespace distill::launch {

ExitCode exit_code(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kSuccess;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
      return kBadInput;
    case absl::StatusCode::kOutOfRange:
      return kDoesNotFit;
    default:
      return kRuntimeFailure;
  }
}

} // namespace distill::launch
