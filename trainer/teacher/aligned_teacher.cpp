#include "trainer/teacher/aligned_teacher.h"

#include <ATen/ATen.h>

#include <cmath>

#include "losses/excluding_bias.h"
#include "losses/head/linear_head.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/device/simulation.h"
#include "trainer/teacher/token_batch.h"

namespace distill::trainer {

double excluding_bias(double temperature) {
  return losses::kExcludingBias * std::exp2(std::max(0.0, std::ceil(std::log2(temperature))));
}

at::Tensor excluding_biases(
    const std::vector<int64_t>& excluded, int64_t rows, double temperature, const at::TensorOptions& options) {
  if (excluded.empty()) {
    return {};
  }
  at::Tensor bias_V = at::zeros({rows}, at::kFloat);
  bias_V.index_fill_(0, at::tensor(excluded, at::kLong), excluding_bias(temperature));
  return bias_V.to(options.dtype_opt().value_or(caffe2::TypeMeta::Make<float>())).to(options.device());
}

AlignedHead::AlignedHead(
    const config::Config& config, double softcap, const Vocabulary& vocabulary, const at::TensorOptions& options)
    : chunks_(config.chunks),
      softcap_(softcap),
      bias_V_(excluding_biases(
          vocabulary.empty_rows, static_cast<int64_t>(vocabulary.rows.size()), /*temperature=*/1, options)) {}

AlignedPrediction AlignedHead::predict(
    const data::TeacherBatch& batch, const at::Tensor& hidden_TG, const at::Tensor& weight_VG,
    const at::Tensor& rows_N) const {
  const data::AlignedPieces& pieces = *batch.aligned;
  const device::LabelScope label(device::Category::kHead);
  const at::Device device = hidden_TG.device();
  AlignedPrediction out;
  out.rows_P = copy_to_device(pieces.rows_P, device);
  out.pieces_P = copy_to_device(pieces.pieces_P, device);
  out.first_rows_Z = copy_to_device(pieces.first_rows_Z, device);
  out.pieces = pieces.pieces;
  out.spans = pieces.spans;
  out.span_tokens = pieces.span_tokens;
  const at::Tensor rows_Q = copy_to_device(pieces.teacher_rows_Q, device);
  const at::Tensor pieces_Q = copy_to_device(pieces.teacher_pieces_Q, device);
  losses::LinearHeadInputs head;
  head.hidden_NH = hidden_TG;
  head.weight_VH = weight_VG;
  head.bias_V = bias_V_;
  head.targets_N = at::full({hidden_TG.size(0)}, losses::kIgnoreIndex, rows_Q.options());
  head.targets_N.index_copy_(0, rows_Q, copy_to_device(pieces.teacher_targets_Q, device));
  head.valid_tokens = rows_Q.size(0);
  head.meta_device = device::kernel_device(device);
  losses::LossOptions options;
  options.divergence = losses::Divergence::kNone;
  options.hard_weight = 1;
  options.student_softcap = softcap_;
  options.metrics = losses::MetricSet::kLoss;
  const at::Tensor metrics_MT = losses::linear_head(head, options, chunks_, nullptr).metrics_MN;
  const at::Tensor log_probs_Q = metrics_MT[losses::kHard].index_select(0, rows_Q).to(at::kDouble).neg_();
  out.log_probs_Z = at::zeros({out.pieces}, log_probs_Q.options()).index_add_(0, pieces_Q, log_probs_Q);
  out.lse_Z = metrics_MT[losses::kStudentLse].index_select(0, rows_N.index_select(0, out.first_rows_Z));
  return out;
}

// The probabilities of the pieces are computed while the hidden states of the teacher's own tokens exist.
void AlignedHead::predict(
    const data::Batch& batch, const at::Tensor& hidden_TG, const at::Tensor& weight_VG, Prediction& prediction) const {
  TORCH_CHECK(
      batch.teacher && batch.teacher->aligned, "expected a batch with pieces of the teacher's text, found none");
  const at::Tensor rows_N = copy_to_device(batch.teacher->rows_BS.flatten(), hidden_TG.device());
  prediction.aligned = predict(*batch.teacher, hidden_TG, weight_VG, rows_N);
  prediction.head.teacher_hidden_NG = hidden_TG.index_select(0, rows_N);
  device::label(prediction.head.teacher_hidden_NG, device::Category::kHidden);
  prediction.head.teacher_weight_VG = weight_VG;
}

std::optional<AlignedHead> make_aligned_head(
    const config::Config& config, const sharding::ModelShards& teacher, const Vocabulary& vocabulary) {
  if (!vocabulary.aligned) {
    return std::nullopt;
  }
  return AlignedHead(
      config, teacher.config().final_softcap, vocabulary,
      at::TensorOptions().dtype(teacher.options().compute_dtype).device(teacher.options().device));
}

} // namespace distill::trainer
