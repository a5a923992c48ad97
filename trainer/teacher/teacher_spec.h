#pragma once

#include <absl/types/span.h>

#include <optional>
#include <string>
#include <vector>

#include "losses/head/inputs.h"
#include "losses/teacher_kind.h"
#include "trainer/metrics/flops.h"
#include "trainer/models/model_source.h"
#include "trainer/teacher/vocabulary.h"
#include "trainer/teacher_cache/row_format.h"

namespace distill::trainer {

// What is known of a run's teacher before a weight is read. The plan, the loader, the reports and the metrics ask it
// for quantities, which are zero where they do not apply, and not where the teacher's predictions come from.
class TeacherSpec {
 public:
  // No teacher: the loss is that of the labels alone.
  TeacherSpec() = default;
  // A model that runs. `folder`: of the model, for messages.
  static TeacherSpec running(models::ModelSource model, std::string folder = "");
  // Predictions that are read from a cache with such rows. `model`: what the cache's folder has of the teacher, a model
  // without blocks; it is loaded where the rows are hidden states.
  static TeacherSpec cached(models::ModelSource model, const teacher_cache::RowFormat& rows, std::string folder = "");

  // Where the weights of loaded() are read from, one for each; an empty list: nowhere.
  void set_sources(const std::vector<models::ModelSource>& sources) {
    model_.weights = sources.empty() ? nullptr : sources.front().weights;
    model_.adapter = sources.empty() ? nullptr : sources.front().adapter;
  }

  // Which of the student's tokens it has, and where. The model's vocabulary becomes that of the loaded tables.
  void set_vocabulary(Vocabulary vocabulary) {
    model_.config.vocab_size = vocabulary.loaded_rows(model_.config.vocab_size);
    vocabulary_ = std::move(vocabulary);
  }
  const Vocabulary& vocabulary() const {
    return vocabulary_;
  }

  bool exists() const {
    return kind_ != losses::TeacherKind::kNone;
  }
  // What a prediction is: a hidden state, a few tokens of the vocabulary, or nothing.
  losses::TeacherKind kind() const {
    return kind_;
  }
  // Of a teacher that exists.
  const models::ModelSource& model() const {
    return model_;
  }
  // The models of it that are loaded.
  std::vector<const models::ModelSource*> loaded() const {
    return kind_ == losses::TeacherKind::kHidden ? std::vector{&model_} : std::vector<const models::ModelSource*>();
  }
  // How its predictions are stored, where they are read.
  const std::optional<teacher_cache::RowFormat>& rows() const {
    return rows_;
  }
  // Bytes that are read for each token.
  int64_t row_bytes() const {
    return rows_ ? rows_->row_bytes() : 0;
  }
  // Decoder blocks that run for each micro-batch.
  int64_t blocks() const {
    return exists() ? model_.config.num_layers() : 0;
  }
  // Width of the hidden states that the loss head multiplies by the teacher's lm_head.
  int64_t head_width() const {
    return kind_ == losses::TeacherKind::kHidden ? model_.config.hidden_size : 0;
  }
  // The columns of the logits of a student with so many rows, and their number.
  losses::ColumnRanges column_ranges(int64_t student_vocab) const;
  int64_t columns(int64_t student_vocab) const {
    return losses::count_columns(column_ranges(student_vocab));
  }
  // Of one token in sequences of this length.
  metrics::TokenFlops flops(int64_t seq_len) const;
  // Gives the loss head the shapes of its predictions for `tokens` tokens, as meta tensors. `dtype`: the teacher's.
  void add_shapes(int64_t tokens, at::ScalarType dtype, losses::LinearHeadInputs& head) const;

  // The folder that its predictions or its weights are read from.
  const std::string& folder() const {
    return folder_;
  }
  // "bfloat16", or "from a cache, the 64 most probable tokens ..., 324 bytes a token"; "none". `dtype`: the teacher's.
  std::string text(at::ScalarType dtype) const;

 private:
  TeacherSpec(losses::TeacherKind kind, models::ModelSource model, std::string folder)
      : kind_(kind), model_(std::move(model)), folder_(std::move(folder)) {}

  losses::TeacherKind kind_ = losses::TeacherKind::kNone;
  models::ModelSource model_;
  Vocabulary vocabulary_;
  std::optional<teacher_cache::RowFormat> rows_;
  std::string folder_;
};

// The teachers of a run, in the order of their numbers, by which batches name them. A run with one teacher has a list
// of one; so has a run without any, and its teacher does not exist.
struct Teachers : std::vector<TeacherSpec> {
  using std::vector<TeacherSpec>::vector;
  Teachers(TeacherSpec one) : std::vector<TeacherSpec>{std::move(one)} {} // NOLINT: a teacher is a list of one

  bool exist() const {
    return !empty() && front().exists();
  }
  // The largest row_bytes().
  int64_t row_bytes() const;
  // The mean operations for a token that they read, each teacher with its share of the tokens.
  metrics::TokenFlops flops(int64_t seq_len, absl::Span<const double> shares) const;
  // Lets go of the files that their weights were read from.
  void forget_sources();
};

} // namespace distill::trainer
