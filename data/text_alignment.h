#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer.h"
#include "data/vocabulary_map.h"

namespace distill::data {

// Texts of the same token in both tokenizers: the student's, the teacher's.
using TokenPairs = std::vector<std::pair<std::string, std::string>>;

// "<|im_end|>=<|eot_id|>": two added tokens, one of each tokenizer. InvalidArgument: the text is not such a pair, or
// can be read as two; it names the tokenizers' files.
absl::StatusOr<TokenPairs> read_token_pairs(
    const std::vector<std::string>& texts, const Tokenizer& student, const Tokenizer& teacher);

// Which tokens of two tokenizers stand for the same bytes, and where two splittings of one text meet. A token of a text
// is its bytes. A special token has none: it is an event of its own, which both tokenizers have where the token has the
// same text in both or the two are a given pair, and which is passed over where one of them lacks it. Immutable.
class TextAlignment {
 public:
  // InvalidArgument: the tokens' bytes are not known (TokenText::bytes_of_tokens), or no token is of both.
  static absl::StatusOr<TextAlignment> make(
      const Tokenizer& student, const Tokenizer& teacher, const TokenPairs& pairs);

  // Which tokens are the same, by their bytes: a token of each side is in one pair at most. Where several tokens have
  // the same bytes, one with the same text comes first, then one that is no byte token ("<0x41>" beside "A").
  const VocabularyMap& map() const {
    return map_;
  }
  // Of the tokens of both, those that mean other texts in each, by the student's id, ascending. Where one vocabulary
  // alone has a token, the other one writes its text as several, of which the first is about the longest token of its
  // own with which that text begins: the probability of such a token has a part there that the other model gives to the
  // longer one.
  const std::vector<int64_t>& ambiguous() const {
    return ambiguous_;
  }
  // The tokenizers' files, and the given pairs.
  const std::string& student_path() const {
    return student_path_;
  }
  const std::string& teacher_path() const {
    return teacher_path_;
  }
  const TokenPairs& token_pairs() const {
    return pairs_;
  }
  base::Digest teacher_hash() const {
    return teacher_hash_;
  }
  int64_t teacher_vocab_size() const {
    return static_cast<int64_t>(teacher_.end.size());
  }

  // The rows of the teacher's tables, by id; -1: the token has none. Empty: ids are rows. Batches have rows.
  void set_teacher_rows(std::vector<int64_t> rows) {
    teacher_rows_ = std::move(rows);
  }
  int64_t teacher_row(int64_t id) const {
    return teacher_rows_.empty() ? id : id < static_cast<int64_t>(teacher_rows_.size()) ? teacher_rows_[id] : -1;
  }

  // Tokens of a completion: ids, and their positions in a text, ascending. Neighbours whose positions are not
  // consecutive are of two parts of the completion, which no piece joins.
  struct Tokens {
    absl::Span<const int64_t> ids, positions;
  };
  // The student's tokens [begin, end) and the teacher's [teacher_begin, teacher_end), counted within the completion,
  // which stand for the same bytes, and of which no shorter beginnings do. Both texts are the same up to here.
  struct Piece {
    int64_t begin = 0, end = 0, teacher_begin = 0, teacher_end = 0;

    bool is_span() const {
      return end - begin != 1 || teacher_end - teacher_begin != 1;
    }
    bool operator==(const Piece&) const = default;
  };
  struct Pieces {
    std::vector<Piece> pieces; // in order; without special tokens that are passed over
    // Special tokens that the other tokenizer lacks: how often each was passed over, by id.
    std::vector<int64_t> student_passed, teacher_passed;
  };
  // Splits a completion into pieces. DataLoss: the texts differ; says the token, the bytes, and both texts there.
  absl::Status align(const Tokens& student, const Tokens& teacher, Pieces& out) const;

  // The token as its tokenizer spells it, for messages.
  std::string student_text(int64_t id) const;
  std::string teacher_text(int64_t id) const;

 private:
  // The symbols of the tokens of one tokenizer: bytes, and from kFirstEvent on special tokens that both have.
  struct Side {
    std::vector<uint32_t> symbols;
    std::vector<uint32_t> begin, end; // of each id, in `symbols`
    std::vector<uint8_t> known;
    bool drops_first_space = false;
    std::vector<std::pair<int64_t, std::string>> texts; // as Tokenizer::tokens

    absl::Span<const uint32_t> of(int64_t id) const {
      return absl::MakeConstSpan(symbols).subspan(begin[id], end[id] - begin[id]);
    }
  };
  class Reader;
  static constexpr uint32_t kFirstEvent = 256;

  Side student_, teacher_;
  VocabularyMap map_;
  std::vector<int64_t> ambiguous_;
  std::string student_path_, teacher_path_;
  TokenPairs pairs_;
  base::Digest teacher_hash_{};
  std::vector<int64_t> teacher_rows_;
};

} // namespace distill::data
