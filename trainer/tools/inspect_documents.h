#pragma once

#include <absl/status/statusor.h>

#include <string>

#include "trainer/tools/inspect.h"

namespace distill::trainer {

// Describes the token shards at request.path and shows their documents; see inspect().
absl::StatusOr<std::string> inspect_token_data(const InspectRequest& request);

} // namespace distill::trainer
