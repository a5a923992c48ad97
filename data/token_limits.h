#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/shard.h"

namespace distill::data {

// Which token ids the models of a run can read, for the two streams of a shard. The header's vocab_size alone does not
// decide: a tokenizer may have tokens without a row in a model, which matter only where a document uses them.
struct TokenLimits {
  struct Stream {
    int64_t rows = 0; // ids from here on have no row in a model; 0: not checked
    std::vector<int64_t> absent; // further ids, sorted: tokens that one of the models' tokenizers lacks
    // Ids, sorted, that the teacher lacks, and that are no error: from such a token on a document has no targets.
    std::vector<int64_t> masked;
  };
  Stream documents; // read by the student, and by the teacher where a document has no text of the teacher's own
  Stream teacher_texts;
  std::function<std::string(int64_t id)> token_text; // for messages; empty: not known
};

// What leave_out_masked() has left out of a shard.
struct MaskedDocuments {
  int64_t documents = 0;
  int64_t targets = 0; // tokens in the loss of these documents that are no targets
};
// Leaves out of a shard's targets, in each document without a text of the teacher's own, the first token of
// limits.documents.masked and all that follow. Reads the tokens only if the header allows such an id.
absl::StatusOr<MaskedDocuments> leave_out_masked(Shard& shard, const TokenLimits& limits);

// InvalidArgument: a document has a token that a model cannot read. The message has the file, the document, the token's
// place, id and text, how many such tokens follow, and the remedy. Reads the tokens only if the header allows such an
// id.
absl::Status check_token_limits(const Shard& shard, const TokenLimits& limits);

} // namespace distill::data
