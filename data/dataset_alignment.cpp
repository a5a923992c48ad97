#include "data/dataset.h"

#include "data/base/status_macros.h"

// This file compares the texts of a data set with those in the tokens of a teacher with a tokenizer of its own.
namespace distill::data {

namespace {

constexpr int64_t kSampledTokens = int64_t{1} << 22; // of a source, whose completions are aligned at the start

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
  int64_t tokens = 0;
  for (int64_t i = 0; i < source.count(); ++i) {
    const auto [shard, document] = find(source, i);
    tokens += shard->document_length(document);
    RETURN_IF_ERROR(check_teacher_tokens(*shard, document, alignment));
  }
  if (alignment == nullptr) {
    return absl::OkStatus();
  }
  AlignmentStats& found = stats.alignment.emplace();
  const int64_t step = options_.verify ? 1 : std::max<int64_t>(1, tokens / kSampledTokens);
  AlignedCompletion completion;
  for (int64_t i = 0; i < source.count(); i += step) {
    const auto [shard, document] = find(source, i);
    RETURN_IF_ERROR(align_completion(*shard, document, whole_texts(*shard, document), *alignment, completion));
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
