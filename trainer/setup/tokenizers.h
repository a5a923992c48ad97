#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <vector>

#include "data/token_limits.h"
#include "data/tokenizer.h"
#include "trainer/config/config.h"

namespace distill::trainer {

// The tokenizers of a run's models, which agree but for added tokens that one of them lacks.
struct RunTokenizers {
  std::vector<base::Digest> hashes; // one for each tokenizer, the student's first; empty: neither model has one
  data::OneSidedTokens one_sided;
  std::function<std::string(int64_t id)> token_text; // "" for an id that is not known

  // Which tokens the run's documents may have; rows of the embeddings, 0: not known. Without a student, the teacher
  // alone decides.
  data::TokenLimits limits(int64_t student_rows, int64_t teacher_rows) const;

  // Adds what is known of the student and another teacher.
  void add(RunTokenizers other);
};

// The tokens that both allow; an empty one allows what the other does.
data::TokenLimits narrower(data::TokenLimits a, const data::TokenLimits& b);

// A teacher whose tokenizer differs from the student's in more than added tokens that one of them lacks is an error
// with the first tokens that differ. Logs which tokens only one of the two has, and warns if only one model has a
// tokenizer.
absl::StatusOr<RunTokenizers> check_tokenizers(const config::Config& config);

} // namespace distill::trainer
