#pragma once

#include <absl/status/status.h>
#include <absl/types/span.h>

#include <string>
#include <vector>

#include "data/shard_format.h"

namespace distill::data {

struct ShardSpec {
  uint64_t vocab_size = 0;
  base::Digest tokenizer_hash = {};
  int64_t bos_id = -1;
  int64_t eos_id = -1;
  bool loss_mask = false;
  // Of the tokenizer whose ids the teacher's texts have; 0: they have those of vocab_size and tokenizer_hash.
  uint64_t teacher_vocab_size = 0;
  base::Digest teacher_tokenizer_hash = {};
};

// What the teacher reads in place of a document.
struct TeacherTextSpec {
  absl::Span<const uint32_t> tokens; // empty: the document's own tokens
  absl::Span<const uint8_t> in_completion; // a value for each of them; not 0: it belongs to the completion
};

// Collects documents in memory and writes them as one token shard. uint16 tokens where vocab_size allows it.
class ShardWriter {
 public:
  explicit ShardWriter(const ShardSpec& spec);

  // Adds one document. `teacher_name`: of the teacher that the document names; empty: none. `in_loss`: with
  // spec.loss_mask, a value for each token (0: no loss where it is the target); without, empty. `teacher`: only with
  // spec.loss_mask. InvalidArgument: an empty document, an id that is not below vocab_size, a mask of another length, a
  // completion in `teacher` that is not the document's (unless it is another tokenizer's), a name that no teacher can
  // have, or one too many.
  absl::Status add(
      absl::Span<const uint32_t> tokens, absl::Span<const uint8_t> in_loss = {}, const TeacherTextSpec& teacher = {},
      const std::string& teacher_name = "");

  // The file's bytes. At least one document must have been added.
  std::vector<uint8_t> bytes() const;

  // Replaces the file as a whole (base::replace_file). FailedPrecondition: no document has been added.
  absl::Status write(const std::string& path) const;

 private:
  struct Stream {
    std::vector<uint64_t> offsets = {0};
    std::vector<uint32_t> tokens;
    std::vector<uint8_t> mask_bits;

    void add(absl::Span<const uint32_t> ids, absl::Span<const uint8_t> mask);
  };
  absl::Status check(
      absl::Span<const uint32_t> tokens, absl::Span<const uint8_t> mask, uint64_t vocab_size, const char* what) const;

  ShardSpec spec_;
  Stream student_, teacher_;
  std::vector<std::string> names_; // of teachers, in the order in which documents named them first
  std::vector<uint8_t> named_; // of each document: 0: none; n: the nth name
};

// Recomputes payload and header hashes of a shard's bytes in place (for tools and tests that edit one).
void sign_shard(absl::Span<uint8_t> bytes);

} // namespace distill::data
