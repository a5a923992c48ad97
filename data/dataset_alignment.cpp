#include "data/dataset.h"

#include <absl/strings/str_cat.h>

#include "data/base/status_macros.h"

// This file compares the texts of a data set with those in the tokens of a teacher with a tokenizer of its own.
namespace distill::data {

namespace {

constexpr int64_t kSampledTokens = int64_t{1} << 22; // of a source, whose completions are aligned at the start

absl::Status other_tokens(const Shard& shard, int64_t document, const std::string& expected, const std::string& found) {
  return absl::InvalidArgumentError(
      absl::StrCat(shard.path(), ": document ", document, ": expected ", expected, ", found ", found));
}

} // namespace

const TextAlignment* Dataset::alignment_of(int64_t teacher) const {
  const auto number = static_cast<size_t>(options_.only_teacher >= 0 ? options_.only_teacher : teacher);
  return options_.teacher_stream && number < options_.alignments.size() ? options_.alignments[number].get() : nullptr;
}

absl::Status Dataset::align_source(const Source& source, SourceStats& stats) const {
  const TextAlignment* alignment = alignment_of(source);
  if (!options_.teacher_stream) {
    return absl::OkStatus();
  }
  const std::string remedy = "tokenise the text again with scripts/tokenize.py --teacher-tokenizer";
  int64_t tokens = 0;
  for (int64_t i = 0; i < source.count(); ++i) {
    const auto [shard, document] = find(source, i);
    tokens += shard->document_length(document);
    const bool own_text = shard->teacher_length(document) > 0;
    if (alignment == nullptr) {
      if (own_text && shard->has_teacher_tokenizer()) {
        return other_tokens(
            *shard, document, "a text in the student's tokens",
            "one of the teacher's in the tokens of another tokenizer; teacher.alignment: bytes reads it");
      }
    } else if (!own_text || !shard->has_teacher_tokenizer()) {
      return other_tokens(
          *shard, document, absl::StrCat("a text in the tokens of ", alignment->teacher_path()),
          absl::StrCat(own_text ? "one in the student's tokens" : "none", "; ", remedy));
    } else if (shard->teacher_tokenizer_hash() != alignment->teacher_hash()) {
      return absl::InvalidArgumentError(absl::StrCat(
          shard->path(), ": header field `teacher_tokenizer_hash`: expected ", base::hex(alignment->teacher_hash()),
          " (", alignment->teacher_path(), "), found ", base::hex(shard->teacher_tokenizer_hash()), "; ", remedy));
    }
  }
  if (alignment == nullptr) {
    return absl::OkStatus();
  }
  AlignmentStats& found = stats.alignment.emplace();
  const int64_t step = options_.verify ? 1 : std::max<int64_t>(1, tokens / kSampledTokens);
  AlignedCompletion completion;
  for (int64_t i = 0; i < source.count(); i += step) {
    const auto [shard, document] = find(source, i);
    const TextLengths whole{shard->document_length(document), shard->teacher_length(document), false};
    RETURN_IF_ERROR(align_completion(*shard, document, whole, *alignment, completion));
    ++found.documents;
    found.tokens += static_cast<int64_t>(completion.ids.size());
    found.teacher_tokens += static_cast<int64_t>(completion.teacher_ids.size());
    found.pieces += static_cast<int64_t>(completion.split.pieces.size());
    for (const TextAlignment::Piece& piece : completion.split.pieces) {
      if (piece.is_span()) {
        ++found.spans;
        found.span_tokens += piece.end - piece.begin;
      }
    }
    for (const int64_t id : completion.split.student_passed) {
      ++found.student_passed[alignment->student_text(id)];
    }
    for (const int64_t id : completion.split.teacher_passed) {
      ++found.teacher_passed[alignment->teacher_text(id)];
    }
  }
  return absl::OkStatus();
}

} // namespace distill::data
