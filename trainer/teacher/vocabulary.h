#pragma once

#include <cstdint>
#include <vector>

#include "data/base/sha256.h"
#include "losses/head/columns.h"

namespace distill::trainer {

// How a run's teacher speaks the student's vocabulary: which rows of both lm_heads the loss compares, and in which
// order the teacher's rows are loaded. Made from the two tokenizers and the rows of both models (setup/tokenizers.h).
struct Vocabulary {
  // Ids of the student's that both models have a row for, and both tokenizers the same token: the columns of the loss.
  // Empty: not known, since a tokenizer is missing; the columns are then the rows that both have.
  losses::ColumnRanges columns;
  // Where a token has another id in each tokenizer: for each row of the loaded embedding and lm_head its row in the
  // folder, -1: none. First the student's ids, then the teacher's other tokens. Empty: the rows are loaded as they are.
  std::vector<int64_t> rows;
  int64_t folder_rows = 0; // of the tables in the teacher's folder, where the rows are reordered
  // Of a teacher with a tokenizer of its own (data/text_alignment.h), whose tokens are the student's where they mean
  // the same text: the rows within `columns`, which are then one range from 0 on, that are no columns; and the loaded
  // rows that have no token. Its other tokens have rows among them.
  bool aligned = false;
  std::vector<int64_t> excluded, empty_rows;
  // Rows of the loaded lm_head that have a token, and are no column: the teacher's probability of these is dropped.
  std::vector<int64_t> dropped;

  bool renumbered() const {
    return !rows.empty();
  }
  // Rows of the loaded tables; `folder`: of those in the teacher's folder.
  int64_t loaded_rows(int64_t folder) const {
    return renumbered() ? static_cast<int64_t>(rows.size()) : folder;
  }
  // Hash of `rows`, of which a cache must have been captured with the same.
  base::Digest rows_hash() const {
    return base::sha256(rows.data(), rows.size() * sizeof(int64_t));
  }
};

} // namespace distill::trainer
