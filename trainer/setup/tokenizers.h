#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/text_alignment.h"
#include "data/token_limits.h"
#include "data/vocabulary_map.h"
#include "trainer/config/config.h"
#include "trainer/teacher/vocabulary.h"

namespace distill::trainer {

// The tokenizers of a run's models: the same vocabulary, but for added tokens and for the tokens' numbers; or, with
// teacher.alignment: bytes, two that split texts otherwise.
struct RunTokenizers {
  std::shared_ptr<const data::Tokenizer> student, teacher; // null: the model has none
  std::optional<data::VocabularyMap> map; // where both have one
  std::shared_ptr<const data::TextAlignment> alignment; // of two that split texts otherwise, whose map this is
  losses::ColumnRanges captured; // of a cache: the columns that it was captured with; empty: not recorded
  bool captured_order = false; // the cache's teacher has the student's numbers already
  // Hashes of the tokenizers with which the data may have been written, the student's first; empty: neither has one.
  std::vector<base::Digest> hashes;
  std::function<std::string(int64_t id)> token_text; // "" for an id that is not known

  // What the loss compares, for models with so many rows; 0: not known. InvalidArgument: the models have no token in
  // common.
  absl::StatusOr<Vocabulary> vocabulary(int64_t student_rows, int64_t teacher_rows) const;
  bool masks = false; // teacher.missing_tokens
  bool students_alone = false; // the data's ids must be the student's
  // Which tokens the run's documents may have. Without a student, the teacher alone decides.
  data::TokenLimits limits(const Vocabulary& vocabulary, int64_t student_rows, int64_t teacher_rows) const;
  // The alignment for a teacher whose tables are loaded in this order; null: there is none.
  std::shared_ptr<const data::TextAlignment> alignment_of(const Vocabulary& vocabulary) const;
  // Adds what is known of the student and another teacher.
  void add(RunTokenizers other);
  // A line for the user about the rows that have no part in the loss and the tokens that have other numbers, or "".
  std::string text(const Vocabulary& vocabulary, int64_t student_rows, int64_t teacher_rows) const;
};

// The tokens that both allow; an empty one allows what the other does.
data::TokenLimits narrower(data::TokenLimits a, const data::TokenLimits& b);

// Reads and compares them (data/vocabulary_map.h): a teacher whose tokenizer makes other tokens of a text is an error.
// Of a cache whose teacher has the student's numbers, the teacher's tokenizer is the one in its head/.
absl::StatusOr<RunTokenizers> read_tokenizers(const config::Config& config);

// Logs which tokens only one of the two has, and warns if only one model has a tokenizer.
void log_tokenizers(const config::Config& config, const RunTokenizers& tokenizers);

} // namespace distill::trainer
