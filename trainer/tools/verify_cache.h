#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>

namespace distill::trainer {

struct CacheCheckRequest {
  std::string cache; // folder
  std::string teacher; // folder; empty: checksums alone
  int64_t samples = 16; // packed sequences that are computed again, drawn at random
  int64_t seq_len = 0; // tokens: how a run would cut the documents; 0: as when they were captured
  int64_t seed = 0; // of the draw
};

// Compares all checksums of a cache, and with a teacher computes random sequences again: in the same micro-batches as
// when they were captured, unless seq_len is given. `report` gets the results as lines. Statuses: DataLoss names
// damaged files; FailedPrecondition: another teacher, with both hashes.
absl::Status check_cache(const CacheCheckRequest& request, const std::function<void(const std::string& line)>& report);

} // namespace distill::trainer
