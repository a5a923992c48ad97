#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/tokenizer.h"

namespace distill::data {

// What one token of a sequence contributes to its text.
struct TokenPiece {
  std::string text; // UTF-8; empty: nothing of its own
  bool known = true; // false: the tokenizer has no such id; decoding skips it
  bool special = false; // an added token that is marked as special (<|im_end|>, ...)
  // The token holds a part of a character whose other bytes are in neighbouring tokens. The character is in the text of
  // the token with its last byte.
  bool shares_character = false;
};

// The bytes that a token adds to a text, by itself.
struct TokenBytes {
  int64_t id = 0;
  std::string bytes; // empty: of a special token, which has no part in the text
  bool special = false;
  bool is_byte = false; // a token that stands for one byte ("<0x0A>") beside those with texts
};

// Turns ids back into text, as the `decode` of Hugging Face's tokenizers does with special tokens kept: the pieces of a
// sequence, joined, are its text. All decoders that language models use are known: ByteLevel (GPT-2, Llama 3, Qwen),
// Metaspace (T5, Unigram), Replace, ByteFallback, Fuse and Strip (Llama 2, Mistral, Gemma), BPEDecoder, Sequence, none.
class TokenText {
 public:
  // Unimplemented: the file's decoder is none of these; the message names the file, the key and the decoder.
  static absl::StatusOr<TokenText> make(const Tokenizer& tokenizer);
  // Reads the tokenizer (see read_tokenizer), and then make().
  static absl::StatusOr<TokenText> read(const std::string& path);

  // One piece for each id.
  std::vector<TokenPiece> decode(absl::Span<const int64_t> ids) const;
  // The pieces' texts, joined.
  std::string text(absl::Span<const int64_t> ids) const;
  // The token as tokenizer.json spells it ("Ġthe"); null: there is no such id.
  const std::string* token(int64_t id) const;

  // The bytes of every token, by id: the text of a sequence is those of its tokens, one after the other, but for a
  // space at the start where drops_first_space(). Unimplemented: what a token adds depends on the tokens around it
  // (WordPiece, BPEDecoder, no decoder); the message names the file.
  absl::StatusOr<std::vector<TokenBytes>> bytes_of_tokens() const;
  // Whether the decoder drops a space at the start of a text, which the tokenizer has put there.
  bool drops_first_space() const;

  const std::string& path() const {
    return path_;
  }
  base::Digest tokenizer_hash() const {
    return hash_;
  }

 private:
  struct Entry {
    int64_t id = 0;
    std::string token;
    bool special = false;
  };
  // A decoder of the chain. What the fields mean depends on the kind.
  struct Decoder {
    enum class Kind {
      kByteLevel,
      kMetaspace,
      kReplace,
      kByteFallback,
      kFuse,
      kStrip,
      kBpe,
      kJoinWithSpaces
    };
    Kind kind;
    std::string from; // Metaspace: the character; Replace: the text; Strip: the character; BPE: the suffix
    std::string to; // Replace
    bool drops_first = false; // Metaspace: the characters of the first token become nothing
    int64_t start = 0, stop = 0; // Strip: the largest number of characters that are removed at the start and the end
  };
  struct Chunk;
  struct Run;
  struct Parser;

  const Entry* find(int64_t id) const;

  std::string path_;
  base::Digest hash_{};
  std::vector<Entry> entries_; // sorted by id
  std::vector<Decoder> chain_;
};

} // namespace distill::data
