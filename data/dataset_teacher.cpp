#include "data/base/status_macros.h"
#include "data/dataset.h"

// This file has what a data set says about its teachers: their rows and shares, and how many tokens of each document go
// into samples that have a text of the teacher's own.
namespace distill::data {

namespace {

DocumentSize size_of(const TextLengths& lengths) {
  return {lengths.tokens, lengths.teacher_tokens};
}

} // namespace

absl::Status Dataset::check_teacher_rows() const {
  for (const auto& rows : teacher_rows_) {
    RETURN_IF_ERROR(rows ? rows->check_stretches(*this) : absl::OkStatus());
  }
  return absl::OkStatus();
}

TeacherRows::Reading Dataset::take_teacher_reading() const {
  TeacherRows::Reading all;
  for (const auto& rows : teacher_rows_) {
    const TeacherRows::Reading reading = rows ? rows->take_reading() : TeacherRows::Reading{};
    all.bytes += reading.bytes;
    all.seconds += reading.seconds;
  }
  return all;
}

std::vector<double> Dataset::teacher_shares() const {
  std::vector<double> shares(has_several_teachers() ? options_.teachers.size() : 1, 0.0);
  double sum = 0;
  for (const Source& source : sources_) {
    shares[static_cast<size_t>(source.teacher)] += source.weight;
    sum += source.weight;
  }
  for (double& share : shares) {
    share /= sum;
  }
  return shares;
}

int64_t Dataset::teacher_length(const Stage& stage) const {
  return stage.teacher_seq_len > 0 ? stage.teacher_seq_len : stage.seq_len;
}

// Counts the documents that are cut, split or left out in `stats`, if it is not null.
std::vector<DocumentSize> Dataset::document_sizes(const Source& source, const Stage& stage, SourceStats* stats) const {
  const int64_t teacher_len = teacher_length(stage), part_len = std::min(stage.seq_len, teacher_len);
  SourceStats counts;
  std::vector<DocumentSize> sizes;
  sizes.reserve(static_cast<size_t>(source.count()));
  for (int64_t i = 0; i < source.count(); ++i) {
    const auto [shard, document] = find(source, i);
    if (shard->teacher_length(document) == 0) {
      sizes.push_back({shard->document_length(document), DocumentSize::kSameText});
      counts.split_documents += sizes.back().tokens > part_len ? 1 : 0;
      continue;
    }
    const TextLengths lengths = fit_texts(*shard, document, stage.seq_len, teacher_len, alignment_of(source));
    sizes.push_back(size_of(lengths));
    ++counts.teacher_texts;
    counts.left_out_documents += lengths.tokens == 0 ? 1 : 0;
    counts.cut_documents += lengths.cut && lengths.tokens > 0 ? 1 : 0;
  }
  if (stats != nullptr) {
    stats->split_documents = counts.split_documents;
    stats->teacher_texts = counts.teacher_texts;
    stats->left_out_documents = counts.left_out_documents;
    stats->cut_documents = counts.cut_documents;
  }
  return sizes;
}

std::vector<DocumentSize> Dataset::fragment_sizes(
    const Source& source, const std::vector<Fragment>& fragments, const Stage& stage) const {
  std::vector<DocumentSize> sizes;
  sizes.reserve(fragments.size());
  for (const Fragment& fragment : fragments) {
    const DocumentPlace place = find(source, fragment.document);
    sizes.push_back(
        place.shard->teacher_length(place.document) == 0
            ? DocumentSize{fragment.end - fragment.begin, DocumentSize::kSameText}
            : size_of(
                  fit_texts(*place.shard, place.document, stage.seq_len, teacher_length(stage), alignment_of(source))));
  }
  return sizes;
}

} // namespace distill::data
