#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "data/prompts.h"
#include "data/token_text.h"
#include "trainer/config/config.h"

namespace distill::trainer {

// The inputs of eval.samples: the prompts that are continued, the tokens that end a continuation, and the text of ids.
struct SampleInputs {
  std::vector<data::Prompt> prompts;
  std::vector<int64_t> end_ids; // those of the student's generation configuration and of the shards
  data::TokenText text; // of the student's tokenizer
  std::string warning; // says that there are fewer prompts than eval.samples; empty: there are not

  // Text that is equal on two ranks if they have the same prompts.
  std::string fingerprint() const;
};

// InvalidArgument and NotFound name what is missing: the student's tokenizer, documents with a prompt.
absl::StatusOr<SampleInputs> open_sample_inputs(const config::Config& config);

} // namespace distill::trainer
