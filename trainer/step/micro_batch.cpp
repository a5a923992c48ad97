#include "trainer/step/micro_batch.h"

#include "trainer/device/memory_tracker.h"
#include "trainer/device/simulation.h"

namespace distill::trainer {
namespace {

at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device) {
  std::optional<device::UncountedScope> stays; // on the CPU a batch is not copied
  if (device.is_meta() && device::kernel_device(device) == c10::DeviceType::CPU) {
    stays.emplace();
  }
  return tensor.to(device, /*non_blocking=*/true);
}

at::Tensor lm_head(sharding::ModelShards& model) {
  return models::lm_head_weight(model.unit(model.head_unit()).layout, model.weights(model.head_unit()));
}

} // namespace

MicroBatchRunner::MicroBatchRunner(
    const config::Config& config, sharding::ModelShards& student, sharding::ModelShards* teacher,
    ActivationMemory memory, models::BlockFunctions block)
    : config_(config),
      student_(student),
      teacher_(teacher),
      student_rope_(models::make_rope_table(student.config(), config.data.seq_len, student.options().device)),
      block_(std::move(block)),
      pass_(student, student_rope_, std::move(memory.policies), std::move(memory.host), block_),
      phases_(student.options().device) {
  if (teacher_ != nullptr) {
    teacher_rope_ = models::make_rope_table(teacher_->config(), config.data.seq_len, teacher_->options().device);
  }
}

sharding::TokenBatch MicroBatchRunner::to_device(const data::Batch& batch) const {
  const at::Device device = student_.options().device;
  sharding::TokenBatch tokens;
  tokens.tokens_N = copy_to_device(batch.tokens_BS.flatten(), device);
  tokens.seq.batch = batch.tokens_BS.size(0);
  tokens.seq.seq_len = batch.tokens_BS.size(1);
  tokens.seq.positions_N = copy_to_device(batch.positions_BS.flatten(), device);
  tokens.seq.cu_seqlens = copy_to_device(batch.cu_seqlens, device);
  const int32_t* boundaries = batch.cu_seqlens.const_data_ptr<int32_t>();
  tokens.seq.segments_host.assign(boundaries, boundaries + batch.cu_seqlens.numel());
  tokens.seq.max_seqlen = batch.max_seqlen;
  // Segments that are exactly the rows need no document mask.
  tokens.seq.packed = batch.cu_seqlens.numel() != tokens.seq.batch + 1;
  return tokens;
}

losses::LinearHeadInputs MicroBatchRunner::run_teacher(const data::Batch& batch, const sharding::TokenBatch& tokens) {
  losses::LinearHeadInputs inputs;
  inputs.targets_N = copy_to_device(batch.targets_BS.flatten(), tokens.tokens_N.device());
  inputs.valid_tokens = batch.valid_tokens;
  inputs.meta_device = device::kernel_device(tokens.tokens_N.device());
  if (teacher_ != nullptr) {
    inputs.teacher_hidden_NG = sharding::forward_hidden(*teacher_, teacher_rope_, tokens, /*next=*/&student_, block_);
    inputs.teacher_weight_VG = lm_head(*teacher_);
  }
  return inputs;
}

losses::LinearHeadOutput MicroBatchRunner::run_head(losses::LinearHeadInputs& inputs, losses::LinearHeadGrads* grads) {
  inputs.weight_VH = lm_head(student_);
  const device::LabelScope label(device::Category::kHead);
  losses::LinearHeadOutput out = losses::linear_head(inputs, config_.loss, config_.chunks, grads);
  inputs = {}; // drops the views of the heads' units
  student_.release(student_.head_unit());
  if (grads == nullptr) { // with gradients, the backward pass needs the unit once more
    student_.retire(student_.head_unit());
  }
  if (teacher_ != nullptr) {
    teacher_->release(teacher_->head_unit());
    teacher_->retire(teacher_->head_unit());
  }
  return out;
}

at::Tensor MicroBatchRunner::head_with_gradients(
    losses::LinearHeadInputs& inputs, double grad_scale, at::Tensor& sums_M) {
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
  sums_M += run_head(inputs, &grads).metrics_MN.sum(1, /*keepdim=*/false, at::kDouble);
  return std::move(grads.hidden_NH); // `grads` holds a view of the head's gradient, which must not outlive this
}

// The teacher runs first, while the student's activations do not exist yet.
void MicroBatchRunner::train(const data::Batch& batch, double grad_scale, at::Tensor& sums_M, bool last) {
  const sharding::TokenBatch tokens = to_device(batch);
  begin(metrics::Phase::kTeacher);
  losses::LinearHeadInputs inputs = run_teacher(batch, tokens);
  begin(metrics::Phase::kForward);
  inputs.hidden_NH = pass_.forward(tokens);
  begin(metrics::Phase::kHead);
  at::Tensor dhidden_NH = head_with_gradients(inputs, grad_scale, sums_M);
  begin(metrics::Phase::kBackward);
  pass_.backward(tokens, std::move(dhidden_NH), last);
}

void MicroBatchRunner::evaluate(const data::Batch& batch, at::Tensor& sums_M) {
  const sharding::TokenBatch tokens = to_device(batch);
  losses::LinearHeadInputs inputs = run_teacher(batch, tokens);
  inputs.hidden_NH = sharding::forward_hidden(student_, student_rope_, tokens, /*next=*/nullptr, block_);
  sums_M += run_head(inputs, /*grads=*/nullptr).metrics_MN.sum(1, /*keepdim=*/false, at::kDouble);
}

void MicroBatchRunner::begin(metrics::Phase phase) {
  phases_.begin(phase);
  if (phase_observer_) {
    phase_observer_(metrics::phase_name(phase));
  }
}

void MicroBatchRunner::prefetch_first() {
  if (teacher_ != nullptr) {
    sharding::prefetch_first(*teacher_);
  }
}

at::Tensor MicroBatchRunner::zero_sums() const {
  return at::zeros(
      {losses::kNumTokenMetrics}, at::TensorOptions().dtype(at::kDouble).device(student_.options().device));
}

std::array<double, losses::kNumTokenMetrics> sums_to_host(const at::Tensor& sums_M) {
  const at::Tensor host = sums_M.cpu();
  std::array<double, losses::kNumTokenMetrics> sums{};
  std::copy_n(host.const_data_ptr<double>(), sums.size(), sums.begin());
  return sums;
}

} // namespace distill::trainer
