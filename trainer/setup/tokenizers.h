#pragma once

#include <absl/status/statusor.h>

#include <optional>

#include "data/tokenizer.h"
#include "trainer/config/config.h"

namespace distill::trainer {

// A teacher whose tokenizer differs from the student's is an error with the first tokens that differ. Returns the hash
// that every token shard must carry; nullopt where neither model has a tokenizer. Warns where only one has.
absl::StatusOr<std::optional<base::Digest>> check_tokenizers(const config::Config& config);

} // namespace distill::trainer
