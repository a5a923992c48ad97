#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstring>
#include <string>
#include <vector>

#include "data/base/mapped_file.h"
#include "data/shard_format.h"

namespace distill::data {

class TextAlignment;

// One memory-mapped token shard. open() checks the header, the document offsets and the padding bytes against each
// other and the file's size, in O(documents), without reading the tokens. Token ids are checked when they are read
// (read_tokens), or all at once (verify).
class Shard {
 public:
  // Errors name the file and the field, and say what was expected and what was found.
  static absl::StatusOr<Shard> open(const std::string& path);

  const std::string& path() const {
    return file_.path();
  }
  const ShardHeader& header() const {
    return header_;
  }
  base::Digest tokenizer_hash() const;
  bool has_loss_mask() const {
    return layout_.mask_at != 0;
  }
  int64_t documents() const {
    return static_cast<int64_t>(header_.document_count);
  }
  int64_t tokens() const {
    return static_cast<int64_t>(header_.token_count);
  }
  // Position of a document's first token. For document == documents(): the number of tokens.
  int64_t document_begin(int64_t document) const {
    return offset(layout_.offsets_at, document);
  }
  int64_t document_length(int64_t document) const {
    return document_begin(document + 1) - document_begin(document);
  }
  // Widens tokens [begin, begin + out.size()) into `out`. DataLoss names the file, the document, the position in it
  // and the id that is not below vocab_size.
  absl::Status read_tokens(int64_t begin, absl::Span<int64_t> out) const;
  // Whether predicting this token counts in the loss, as far as the file says. Always true without a loss mask.
  bool in_loss(int64_t token) const {
    return layout_.mask_at == 0 || bit(layout_.mask_at, token);
  }
  // Tokens [begin, end) of the file that are no targets of this run, although the file has them in the loss. Ascending,
  // each within a document.
  struct TokenRange {
    int64_t begin = 0, end = 0;
  };
  void leave_out(std::vector<TokenRange> ranges) {
    left_out_ = std::move(ranges);
  }
  const std::vector<TokenRange>& left_out() const {
    return left_out_;
  }
  // Whether a token is a target: it is in the loss and was not left out.
  bool has_target(int64_t token) const {
    return in_loss(token) && (left_out_.empty() || !is_left_out(token));
  }
  bool has_teacher_stream() const {
    return layout_.teacher_offsets_at != 0;
  }
  // Whether the teacher stream has the ids of another tokenizer, which is then not empty.
  bool has_teacher_tokenizer() const {
    return header_.teacher_vocab_size > 0;
  }
  base::Digest teacher_tokenizer_hash() const; // of that tokenizer
  int64_t teacher_tokens() const {
    return static_cast<int64_t>(header_.teacher_token_count);
  }
  // Position of the first token of a document's teacher text; for document == documents(): the number of teacher
  // tokens. Only with a teacher stream.
  int64_t teacher_begin(int64_t document) const {
    return offset(layout_.teacher_offsets_at, document);
  }
  // Returns 0 if the document has no text of the teacher's own; the teacher then reads the document's tokens.
  int64_t teacher_length(int64_t document) const {
    return has_teacher_stream() ? teacher_begin(document + 1) - teacher_begin(document) : 0;
  }
  // Does the same as read_tokens for the teacher stream.
  absl::Status read_teacher_tokens(int64_t begin, absl::Span<int64_t> out) const;
  // Whether this token of the teacher stream belongs to its document's completion.
  bool in_teacher_completion(int64_t token) const {
    return bit(layout_.teacher_mask_at, token);
  }
  // The names of teachers that the documents have; empty: no document names its teacher.
  const std::vector<std::string>& teacher_names() const {
    return teacher_names_;
  }
  // The name of a document's teacher; null: the document names none.
  const std::string* teacher_of(int64_t document) const {
    const uint8_t number = layout_.named_at == 0 ? 0 : file_.bytes()[layout_.named_at + document];
    return number == 0 ? nullptr : &teacher_names_[number - 1];
  }
  // Reads the whole file and checks the payload hash, every token id and that the completions of student and teacher
  // are the same: the same ids, or with a teacher's tokenizer, of which `alignment` must be, the same text. Without an
  // alignment nothing is said of such texts.
  absl::Status verify(const TextAlignment* alignment = nullptr) const;
  void advise(base::Access access) const;

 private:
  Shard(base::MappedFile file, const ShardHeader& header);
  int64_t offset(uint64_t section, int64_t document) const {
    uint64_t offset;
    std::memcpy(&offset, file_.bytes() + section + document * sizeof(offset), sizeof(offset));
    return static_cast<int64_t>(offset);
  }
  bool bit(uint64_t section, int64_t token) const {
    return ((file_.bytes()[section + token / 8] >> (token % 8)) & 1) != 0;
  }
  // The two streams of tokens, whose sections are alike.
  struct Stream {
    const char* text; // "" or "teacher ", for messages
    uint64_t offsets_at, tokens_at, mask_at; // mask_at 0: none
    uint64_t tokens;
    uint64_t vocab_size; // every id is below it
    bool empty_documents; // whether a document may have no tokens of this stream
  };
  Stream student_stream() const;
  Stream teacher_stream() const;
  absl::Status check_offsets(const Stream& stream) const;
  absl::Status check_padding(const Stream& stream) const;
  absl::Status read(const Stream& stream, int64_t begin, absl::Span<int64_t> out) const;
  absl::Status check_ids(const Stream& stream) const;
  absl::Status read_teacher_names();
  bool is_left_out(int64_t token) const;
  absl::Status bad_token(const Stream& stream, int64_t token, int64_t id) const;

  base::MappedFile file_;
  ShardHeader header_;
  ShardLayout layout_;
  std::vector<std::string> teacher_names_;
  std::vector<TokenRange> left_out_;
};

// Opens the shards of a data set: the file itself, or every *.dtok file of the folder in the order of their names. It
// is an error if their tokenizer hashes or vocab_sizes differ. One error reports all shards that cannot be read.
absl::StatusOr<std::vector<Shard>> open_shards(const std::string& path);

// Whether a shard of the data set has a teacher stream, from the files' headers alone. False if none can be read.
bool has_teacher_stream(const std::string& path);

// Whether the path is a file that begins with a shard's magic, or a folder with a *.dtok file.
bool is_token_data(const std::string& path);

} // namespace distill::data
