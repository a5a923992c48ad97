#include "trainer/tools/document_view.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <filesystem>

#include "data/base/status_macros.h"

namespace distill::trainer {
namespace {

// The number of tokens that are decoded beyond those that are shown, so that a character at the end is whole.
constexpr int64_t kBeyond = 16;

// The place of one of a document's two series of tokens in its shard.
struct StreamPlace {
  std::string name;
  int64_t begin = 0, length = 0; // in the shard's tokens, or in its teacher tokens
  bool teacher = false;
};

absl::StatusOr<ShownStream> read_stream(
    const data::Shard& shard, const StreamPlace& place, const data::TokenText* text, int64_t max_tokens) {
  ShownStream stream;
  stream.name = place.name;
  stream.length = place.length;
  const int64_t shown = max_tokens > 0 ? std::min(max_tokens, stream.length) : stream.length;
  std::vector<int64_t> ids(static_cast<size_t>(std::min(stream.length, shown + kBeyond)));
  RETURN_IF_ERROR(
      place.teacher ? shard.read_teacher_tokens(place.begin, absl::MakeSpan(ids))
                    : shard.read_tokens(place.begin, absl::MakeSpan(ids)));
  const auto in_loss = [&](int64_t position) {
    return place.teacher ? shard.in_teacher_completion(place.begin + position) : shard.in_loss(place.begin + position);
  };
  std::vector<data::TokenPiece> pieces =
      text != nullptr ? text->decode(ids) : std::vector<data::TokenPiece>(ids.size());
  for (int64_t i = 0; i < stream.length; ++i) {
    stream.in_loss += in_loss(i) ? 1 : 0;
  }
  for (int64_t i = 0; i < shown; ++i) {
    ShownToken& token = stream.tokens.emplace_back();
    token.id = ids[static_cast<size_t>(i)];
    token.position = i;
    token.in_loss = in_loss(i);
    token.piece = std::move(pieces[static_cast<size_t>(i)]);
    const std::string* spelling = text != nullptr ? text->token(token.id) : nullptr;
    token.token = spelling != nullptr ? *spelling : "";
  }
  return stream;
}

// A document that the teacher reads in a text of its own has two streams.
std::vector<StreamPlace> streams_of(const data::Shard& shard, int64_t document) {
  std::vector<StreamPlace> places{{"", shard.document_begin(document), shard.document_length(document)}};
  if (shard.teacher_length(document) > 0) {
    places[0].name = "student";
    places.push_back({"teacher", shard.teacher_begin(document), shard.teacher_length(document), /*teacher=*/true});
  }
  return places;
}

} // namespace

absl::StatusOr<std::vector<ShownDocument>> read_documents(
    absl::Span<const data::Shard> shards, const data::TokenText* text, const DocumentRange& range) {
  std::vector<ShownDocument> documents;
  int64_t first_of_shard = 0;
  for (const data::Shard& shard : shards) {
    const int64_t end = std::min(shard.documents(), range.first + range.count - first_of_shard);
    for (int64_t document = std::max<int64_t>(0, range.first - first_of_shard); document < end; ++document) {
      ShownDocument& shown = documents.emplace_back();
      shown.number = first_of_shard + document;
      shown.shard = std::filesystem::path(shard.path()).filename().string();
      if (const std::string* teacher = shard.teacher_of(document); teacher != nullptr) {
        shown.teacher = *teacher;
      }
      for (const StreamPlace& place : streams_of(shard, document)) {
        ASSIGN_OR_RETURN(ShownStream stream, read_stream(shard, place, text, range.max_tokens));
        shown.streams.push_back(std::move(stream));
      }
    }
    first_of_shard += shard.documents();
  }
  return documents;
}

std::string describe_token(const ShownToken& token) {
  std::string text = absl::StrCat("id ", token.id);
  if (!token.piece.known) {
    return text + ", which the tokenizer does not have";
  }
  absl::StrAppend(&text, " \"", absl::Utf8SafeCEscape(token.token), "\"");
  if (token.piece.special) {
    text += ", special";
  }
  if (token.piece.shares_character) {
    text += ", part of a character";
  }
  return text;
}

std::optional<std::string> visible_form(char32_t character) {
  if (character == '\t') {
    return "⇥";
  }
  if (character == '\r') {
    return "␍";
  }
  // Controls of terminals, spaces without width, and marks that change the direction of the text.
  const auto between = [character](char32_t low, char32_t high) { return character >= low && character <= high; };
  const bool hidden = between(0, 0x1F) || between(0x7F, 0x9F) || character == 0xA0 || character == 0xAD ||
      character == 0x61C || character == 0x200B || between(0x200E, 0x200F) || between(0x2028, 0x202E) ||
      between(0x2060, 0x206F) || character == 0xFEFF || between(0xE0000, 0xE007F);
  return hidden ? std::optional(absl::StrFormat("\\u{%x}", static_cast<uint32_t>(character))) : std::nullopt;
}

} // namespace distill::trainer
