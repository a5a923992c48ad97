#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace distill::data {

// A printable description of a token shard: every header field, statistics over documents and loss mask, the first
// documents' first ids, and whether the payload is intact. Reads the whole file.
absl::StatusOr<std::string> describe_shard(const std::string& path, int64_t documents = 3);

// The same for a shard or a folder of shards; a folder gets one line for each shard and the sums. is_token_data()
// (shard.h) says whether a path is one of the two.
absl::StatusOr<std::string> describe_data(const std::string& path, int64_t documents = 3);

} // namespace distill::data
