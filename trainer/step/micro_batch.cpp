#include "trainer/micro_batch.h"

#include "trainer/device/memory_tracker.h"

namespace distill::trainer {
namespace {

sharding::MicroBatch to_device(const data::Batch& batch, at::Device device) {
  const auto move = [device](const at::Tensor& tensor) { return tensor.to(device, /*non_blocking=*/true); };
  sharding::MicroBatch micro;
  micro.tokens_N = move(batch.tokens_BS.flatten());
  micro.seq.batch = batch.tokens_BS.size(0);
  micro.seq.seq_len = batch.tokens_BS.size(1);
  micro.seq.positions_N = move(batch.positions_BS.flatten());
  micro.seq.cu_seqlens = move(batch.cu_seqlens);
  const int32_t* boundaries = batch.cu_seqlens.const_data_ptr<int32_t>();
  micro.seq.segments_host.assign(boundaries, boundaries + batch.cu_seqlens.numel());
  micro.seq.max_seqlen = batch.max_seqlen;
  // Segments that are exactly the rows need no document mask.
  micro.seq.packed = batch.cu_seqlens.numel() != micro.seq.batch + 1;
  return micro;
}

at::Tensor lm_head(sharding::ModelShards& model) {
  return models::lm_head_weight(model.unit(model.head_unit()).layout, model.weights(model.head_unit()));
}

} // namespace

MicroStep::MicroStep(
    const config::Config& config, sharding::ModelShards& student, sharding::ModelShards* teacher,
    ActivationMemory memory)
    : config_(config),
      student_(student),
      teacher_(teacher),
      student_rope_(models::make_rope_table(student.config(), config.data.seq_len, student.options().device)),
      pass_(student, student_rope_, std::move(memory.policies), std::move(memory.host)),
      phases_(student.options().device) {
  if (teacher_ != nullptr) {
    teacher_rope_ = models::make_rope_table(teacher_->config(), config.data.seq_len, teacher_->options().device);
  }
}

losses::LinearHeadInputs MicroStep::run_teacher(const data::Batch& batch, const sharding::MicroBatch& micro) {
  losses::LinearHeadInputs inputs;
  inputs.targets_N = batch.targets_BS.flatten().to(micro.tokens_N.device(), /*non_blocking=*/true);
  inputs.valid_tokens = batch.valid_tokens;
  if (teacher_ != nullptr) {
    inputs.teacher_hidden_NG = sharding::forward_hidden(*teacher_, teacher_rope_, micro, /*next=*/&student_);
    inputs.teacher_weight_VG = lm_head(*teacher_);
  }
  return inputs;
}

losses::LinearHeadOutput MicroStep::run_head(losses::LinearHeadInputs& inputs, losses::LinearHeadGrads* grads) {
  inputs.weight_VH = lm_head(student_);
  const device::LabelScope label(device::Category::kHead);
  losses::LinearHeadOutput out = losses::linear_head(inputs, config_.loss, config_.chunks, grads);
  inputs = {}; // views of the heads' units
  student_.release(student_.head_unit());
  if (grads == nullptr) { // the backward pass needs it once more
    student_.retire(student_.head_unit());
  }
  if (teacher_ != nullptr) {
    teacher_->release(teacher_->head_unit());
    teacher_->retire(teacher_->head_unit());
  }
  return out;
}

// The teacher runs first: what the student keeps for its backward pass does not exist yet then.
void MicroStep::train(const data::Batch& batch, double grad_scale, at::Tensor& sums_K, bool last) {
  const sharding::MicroBatch micro = to_device(batch, student_.options().device);
  begin(metrics::Phase::kTeacher);
  losses::LinearHeadInputs inputs = run_teacher(batch, micro);
  begin(metrics::Phase::kForward);
  inputs.hidden_NH = pass_.forward(micro);
  begin(metrics::Phase::kHead);
  const int64_t head = student_.head_unit();
  losses::LinearHeadGrads grads;
  grads.hidden_NH = at::empty_like(inputs.hidden_NH);
  device::label(grads.hidden_NH, device::Category::kHidden);
  {
    const sharding::UnitGradient gradient = student_.gradient(head);
    grads.weight_VH = models::lm_head_weight(student_.unit(head).layout, gradient.flat);
    grads.accumulate = !gradient.is_new;
  }
  grads.grad_scale = grad_scale;
  sums_K += run_head(inputs, &grads).rows_KN.sum(1, /*keepdim=*/false, at::kDouble);
  at::Tensor dhidden_NH = std::move(grads.hidden_NH);
  grads = {}; // a view of the head's gradient, which is gone once it is reduced
  begin(metrics::Phase::kBackward);
  pass_.backward(micro, std::move(dhidden_NH), last);
}

void MicroStep::begin(metrics::Phase phase) {
  phases_.begin(phase);
  if (phase_observer_) {
    phase_observer_(metrics::phase_name(phase));
  }
}

void MicroStep::prefetch_first() {
  if (teacher_ != nullptr) {
    sharding::prefetch_first(*teacher_);
  }
}

void MicroStep::evaluate(const data::Batch& batch, at::Tensor& sums_K) {
  const sharding::MicroBatch micro = to_device(batch, student_.options().device);
  losses::LinearHeadInputs inputs = run_teacher(batch, micro);
  inputs.hidden_NH = sharding::forward_hidden(student_, student_rope_, micro);
  sums_K += run_head(inputs, /*grads=*/nullptr).rows_KN.sum(1, /*keepdim=*/false, at::kDouble);
}

at::Tensor MicroStep::zero_sums() const {
  return at::zeros({losses::kNumRows}, at::TensorOptions().dtype(at::kDouble).device(student_.options().device));
}

std::array<double, losses::kNumRows> sums_to_host(const at::Tensor& sums_K) {
  const at::Tensor host = sums_K.cpu();
  std::array<double, losses::kNumRows> sums{};
  std::copy_n(host.const_data_ptr<double>(), sums.size(), sums.begin());
  return sums;
}

} // namespace distill::trainer
