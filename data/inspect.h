#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace distill::data {

// Describes a token shard as text: every header field, statistics of documents and loss mask, the first ids of the
// first `documents` documents. Reads the whole file. DataLoss: the payload is damaged.
absl::StatusOr<std::string> describe_shard(const std::string& path, int64_t documents = 3);

// The same for a shard or a folder of shards, for which is_token_data (shard.h) is true; a folder's description has one
// line for each shard, and the sums.
absl::StatusOr<std::string> describe_data(const std::string& path, int64_t documents = 3);

} // namespace distill::data
