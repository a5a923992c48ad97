#pragma once

#include <absl/status/status.h>

#include "trainer/config/config.h"
#include "trainer/launch/ranks.h"

namespace distill::trainer {

// Checks all that can be checked without training: model folders and their tensors, tokenizers, data, whether the
// memory plan fits. Prints a summary and the plan on standard output; writes nothing.
absl::Status dry_run(config::Config config, const launch::RankInfo& ranks);

} // namespace distill::trainer
