#pragma once

#include "data/batch.h"
#include "trainer/config/config.h"
#include "trainer/teacher/teacher.h"
#include "trainer/teacher/vocabulary.h"

namespace distill::trainer {

// A number for the bias of a logit whose token has no part in a distribution (losses/excluding_bias.h): at this
// temperature its probability is exactly 0, and every product with it is finite. Exact in bf16.
double excluding_bias(double temperature);

// A bias [rows] that excludes these rows. Undefined where there are none.
at::Tensor excluding_biases(
    const std::vector<int64_t>& excluded, int64_t rows, double temperature, const at::TensorOptions& options);

// The head of a teacher with a tokenizer of its own: the probabilities of texts in its tokens. T tokens that it reads,
// V rows of its tables as they are loaded; otherwise as AlignedPrediction.
class AlignedHead {
 public:
  // `softcap`: of the teacher's logits. `options`: dtype and device of its lm_head.
  AlignedHead(
      const config::Config& config, double softcap, const Vocabulary& vocabulary, const at::TensorOptions& options);

  // All pieces of a batch. The memory of the logits is that of loss.memory_cap_mb.
  AlignedPrediction predict(
      const data::TeacherBatch& batch, const at::Tensor& hidden_TG, const at::Tensor& weight_VG,
      const at::Tensor& rows_N) const; // rows_N: TeacherBatch::rows_BS on the device

  // Sets the pieces, and what the loss head needs of the teacher: its hidden states where the student's tokens are, and
  // its lm_head.
  void predict(
      const data::Batch& batch, const at::Tensor& hidden_TG, const at::Tensor& weight_VG, Prediction& prediction) const;

 private:
  losses::ChunkOptions chunks_;
  double softcap_;
  at::Tensor bias_V_; // that excludes rows without a token; undefined: all have one
};

// nullopt: teacher and student have one tokenizer.
std::optional<AlignedHead> make_aligned_head(
    const config::Config& config, const sharding::ModelShards& teacher, const Vocabulary& vocabulary);

} // namespace distill::trainer
