#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <vector>

#include "data/shard.h"
#include "data/text_alignment.h"

// Documents with a text of the teacher's own. The completion of such a document is the tokens with a loss in its own
// text and the marked tokens in the teacher's; the two have the same ids in the same order. In a shard whose teacher's
// texts have the ids of another tokenizer, they have the same text; `alignment`, which these functions then need, is of
// the two tokenizers.
namespace distill::data {

// DataLoss: the completions of the two texts differ. Names the file, the document, the position and both ids, or both
// texts. Takes O(1) memory without an alignment.
absl::Status check_completion(const Shard& shard, int64_t document, const TextAlignment* alignment = nullptr);

// Whether a document's text of the teacher's own has the tokens that its teacher reads: those of the alignment's
// teacher, which every document must have then, or without an alignment the student's. InvalidArgument names the file
// and what was found.
absl::Status check_teacher_tokens(const Shard& shard, int64_t document, const TextAlignment* alignment);

// The part of a document that fits into a sample.
struct TextLengths {
  int64_t tokens = 0; // of the document; 0: no target is left, and the document is left out
  int64_t teacher_tokens = 0; // of the teacher's text
  bool cut = false; // whether a part of the document is left out
};
TextLengths whole_texts(const Shard& shard, int64_t document);

// A document whose texts fit into seq_len and teacher_seq_len tokens is taken whole. Otherwise both texts end with the
// same token of the completion, the last one that fits in both; with an alignment with the same byte of it. A document
// that must be cut and whose texts differ is left out.
TextLengths fit_texts(
    const Shard& shard, int64_t document, int64_t seq_len, int64_t teacher_seq_len,
    const TextAlignment* alignment = nullptr);

// The first tokens of both texts, and where the completion's tokens are in them. With an alignment, its pieces: `token`
// and `teacher_token` begin one.
struct TeacherText {
  struct Pair {
    int64_t token; // position in the document
    int64_t teacher_token; // position in the teacher's text
    int64_t tokens = 1, teacher_tokens = 1; // of the piece, one after the other in both texts
  };
  std::vector<int64_t> tokens;
  std::vector<int64_t> teacher_tokens;
  std::vector<Pair> completion;
};

// `lengths` as fit_texts gives them. DataLoss: an id that is not below vocab_size, or completions that differ.
absl::Status read_texts(
    const Shard& shard, int64_t document, const TextLengths& lengths, TeacherText& out,
    const TextAlignment* alignment = nullptr);

// The completion of a document in both texts, split into pieces. DataLoss as check_completion.
struct AlignedCompletion {
  std::vector<int64_t> ids, positions, teacher_ids, teacher_positions;
  TextAlignment::Pieces split;
};
absl::Status align_completion(
    const Shard& shard, int64_t document, const TextLengths& lengths, const TextAlignment& alignment,
    AlignedCompletion& out);

} // namespace distill::data
