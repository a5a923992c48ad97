#pragma once

#include <absl/status/statusor.h>

#include "trainer/config/config.h"
#include "trainer/onpolicy/round_data.h"

namespace distill::trainer {

// The prompts of an on-policy run, and what its completions are checked against. `tokenizers`: hashes of the run's;
// `limits`: the tokens that its models can read; `alignments`: as data::DataOptions::alignments. Errors name the
// prompts, or generation_config.json of the student.
absl::StatusOr<onpolicy::RoundInputs> open_onpolicy_inputs(
    const config::Config& config, const std::vector<base::Digest>& tokenizers, const data::TokenLimits& limits,
    const std::vector<std::shared_ptr<const data::TextAlignment>>& alignments, bool pin_memory);

// The line of the start report about the rounds.
std::string describe_rounds(const config::Config& config, const onpolicy::RoundInputs& inputs);

} // namespace distill::trainer
