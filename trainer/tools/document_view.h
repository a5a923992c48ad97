#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "data/shard.h"
#include "data/token_text.h"

// Documents of token shards as people are shown them: on a terminal (document_terminal.h) or as a page
// (document_html.h).
namespace distill::trainer {

struct ShownToken {
  int64_t id = 0;
  int64_t position = 0; // in the document
  bool in_loss = false; // predicting this token counts in the loss
  data::TokenPiece piece; // without a tokenizer: empty
  std::string token; // as tokenizer.json spells it
};

// A series of ids of a document.
struct ShownStream {
  std::string name; // empty: the document has only one
  int64_t length = 0; // tokens; more than are shown, where the document is cut
  int64_t in_loss = 0; // of all of them
  std::vector<ShownToken> tokens;
};

struct ShownDocument {
  int64_t number = 0; // among the documents of all shards, from 0
  std::string shard; // its file's name
  std::string teacher; // the name of its teacher; empty: it names none
  std::vector<ShownStream> streams;
};

struct DocumentRange {
  int64_t first = 0;
  int64_t count = 1;
  int64_t max_tokens = 0; // of each document; 0: all
};

// Reads the documents of the range that exist. `text` null: ids only. DataLoss: a damaged token.
absl::StatusOr<std::vector<ShownDocument>> read_documents(
    absl::Span<const data::Shard> shards, const data::TokenText* text, const DocumentRange& range);

// Describes the id and the spelling of a token for people: `id 262 "Ġthe"`.
std::string describe_token(const ShownToken& token);

// Returns the visible form of a character that would not be seen, or would disturb the text around it; nullopt: the
// character is shown as it is. Line ends have no such form.
std::optional<std::string> visible_form(char32_t character);

} // namespace distill::trainer
