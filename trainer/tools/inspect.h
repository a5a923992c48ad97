#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::trainer {

// Describes and checks what is at the path, for people: a token shard, a folder of token shards, a model folder, a run
// folder or a checkpoint. NotFound: nothing is there. InvalidArgument: it is none of these.
absl::StatusOr<std::string> inspect(const std::string& path);

} // namespace distill::trainer
