#include "trainer/teacher/teacher_spec.h"

#include <ATen/ATen.h>
#include <absl/strings/str_format.h>

#include "trainer/teacher_cache/row_conversion.h"

namespace distill::trainer {

using losses::TeacherKind;

TeacherSpec TeacherSpec::running(models::ModelSource model, std::string folder) {
  return {TeacherKind::kHidden, std::move(model), std::move(folder)};
}

TeacherSpec TeacherSpec::cached(models::ModelSource model, const teacher_cache::RowFormat& rows, std::string folder) {
  TeacherSpec teacher(rows.kind, std::move(model), std::move(folder));
  teacher.rows_ = rows;
  return teacher;
}

losses::ColumnRanges TeacherSpec::column_ranges(int64_t student_vocab) const {
  if (rows_ && rows_->is_sparse()) {
    return rows_->column_ranges();
  }
  if (!vocabulary_.columns.empty()) {
    return vocabulary_.columns;
  }
  return {{0, exists() ? std::min(student_vocab, model_.config.vocab_size) : student_vocab}};
}

metrics::TokenFlops TeacherSpec::flops(int64_t seq_len) const {
  return kind_ == TeacherKind::kHidden ? metrics::token_flops(model_.config, seq_len) : metrics::TokenFlops{};
}

void TeacherSpec::add_shapes(int64_t tokens, at::ScalarType dtype, losses::LinearHeadInputs& head) const {
  const auto meta = [](std::initializer_list<int64_t> shape, at::ScalarType type) {
    return at::empty(shape, at::TensorOptions().dtype(type).device(at::kMeta));
  };
  if (kind_ == TeacherKind::kHidden) {
    head.teacher_hidden_NG = meta({tokens, model_.config.hidden_size}, dtype);
    head.teacher_weight_VG = meta({model_.config.vocab_size, model_.config.hidden_size}, dtype);
    head.columns = vocabulary_.columns;
    if (vocabulary_.aligned) { // rows that are no columns
      head.bias_V = meta({head.weight_VH.size(0)}, head.hidden_NH.scalar_type());
      head.teacher_bias_V = meta({model_.config.vocab_size}, dtype);
    }
  } else if (rows_) {
    teacher_cache::give_teacher(*rows_, meta({tokens, row_bytes()}, at::kByte), head);
  }
}

std::string TeacherSpec::text(at::ScalarType dtype) const {
  if (rows_) {
    return absl::StrFormat("from a cache, %s, %d bytes a token", teacher_cache::describe(*rows_), row_bytes());
  }
  return exists() ? models::precision_text(model_.config, dtype) : "none";
}

int64_t Teachers::row_bytes() const {
  int64_t most = 0;
  for (const TeacherSpec& teacher : *this) {
    most = std::max(most, teacher.row_bytes());
  }
  return most;
}

metrics::TokenFlops Teachers::flops(int64_t seq_len, absl::Span<const double> shares) const {
  metrics::TokenFlops mean;
  for (size_t i = 0; i < size(); ++i) {
    mean = mean + (*this)[i].flops(seq_len) * shares[i];
  }
  return mean;
}

void Teachers::forget_sources() {
  for (TeacherSpec& teacher : *this) {
    teacher.set_sources({});
  }
}

} // namespace distill::trainer
