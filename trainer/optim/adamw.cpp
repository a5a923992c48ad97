#include "trainer/optim/adamw.h"

#include <ATen/ops/_fused_adamw.h>

#include "trainer/config/dtypes.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/device/simulation.h"
#include "trainer/models/ops/kernel_launch.h"
#include "trainer/optim/adamw_kernel.h"

namespace distill::optim {

namespace {

bool has_bf16_copy(const sharding::UnitShard& unit) {
  return unit.weights.defined() && unit.weights.scalar_type() == at::kBFloat16;
}

bool runs_on_cuda(const sharding::ModelShards& model) {
  return device::kernel_device(model.options().device) == c10::DeviceType::CUDA;
}

} // namespace

AdamW::AdamW(sharding::ModelShards& model, const config::OptimizerSection& options, int64_t piece)
    : model_(model), options_(options) {
  const device::LabelScope label(device::Category::kMoments);
  const at::ScalarType moments = config::scalar_type(options.moments);
  int64_t largest = 0; // shard on the host
  for (int64_t i = 0; i < model.num_units(); ++i) {
    const sharding::UnitShard& unit = model.unit(i);
    moments_.push_back({model.zeros_of_state(i, moments), model.zeros_of_state(i, moments)});
    largest = model.state_on_host(i) ? std::max(largest, unit.shard.numel) : largest;
    // A unit's vectors come before its matrices, so that weight decay divides it into two slices at most.
    int64_t first_matrix = unit.layout.numel;
    for (const models::ParamLayout& param : unit.layout.params) {
      if (param.is_matrix) {
        first_matrix = std::min(first_matrix, param.offset);
      }
    }
    first_matrix_.push_back(first_matrix);
  }
  step_count_ = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(model.options().device));
  if (largest == 0) {
    return;
  }
  const int64_t stage = piece > 0 ? std::min(largest, piece) : sharding::StateMemory::piece_numel(largest);
  for (int64_t i = 0; i < model.num_units(); ++i) {
    const int64_t numel = model.state_on_host(i) ? model.unit(i).shard.numel : 0;
    for (int64_t begin = 0; begin < numel; begin += stage) {
      pieces_.push_back({i, begin, std::min(stage, numel - begin)});
    }
  }
  const int64_t stages = std::min(model.options().state.stages, static_cast<int64_t>(pieces_.size()));
  host_state_ = std::make_unique<HostState>(model.options().device, moments, stage, stages);
}

bool AdamW::uses_kernel() const {
  return runs_on_cuda(model_) || options_.moments == config::MomentsDtype::kBFloat16;
}

void AdamW::add_slice(Group& group, const Piece& piece, const OptimizerState& state, int64_t begin, int64_t end) {
  const sharding::UnitShard& unit = model_.unit(piece.unit);
  const int64_t piece_begin = unit.shard.begin + piece.begin;
  const int64_t first = std::max(begin, piece_begin) - piece_begin;
  const int64_t last = std::min(end, piece_begin + piece.count) - piece_begin;
  if (first >= last) {
    return;
  }
  group.params.push_back(state.master.narrow(0, first, last - first));
  group.grads.push_back(unit.gradient.narrow(0, piece.begin + first, last - first));
  group.exp_avgs.push_back(state.exp_avg.narrow(0, first, last - first));
  group.exp_avg_sqs.push_back(state.exp_avg_sq.narrow(0, first, last - first));
}

void AdamW::wait() {
  if (host_state_ != nullptr) {
    host_state_->wait();
  }
}

void AdamW::step(double lr, const GradNorm& grad_norm) {
  model_.finish_updates(); // waits for the last update, which reads step_count_ on a stream of its own
  step_count_.add_(1.0 - grad_norm.found_inf);
  if (host_state_ != nullptr) { // before the updates on the device, for which those from the host need not wait
    fetch_ahead();
    decision_ = grad_norm; // kept alive for kernels on another stream
    host_state_->begin_update();
  }
  step_on_device(lr, grad_norm);
  if (host_state_ != nullptr) {
    step_through_device(lr);
  }
  model_.weights_changed();
}

void AdamW::update_with_kernel(const Piece& piece, const OptimizerState& state, double lr, const GradNorm& grad_norm) {
  const sharding::UnitShard& unit = model_.unit(piece.unit);
  const int64_t begin = unit.shard.begin + piece.begin; // position in the whole unit
  const int64_t count = std::min(begin + piece.count, unit.layout.numel) - begin;
  if (count <= 0) {
    return; // only padding
  }
  AdamWArgs args{};
  args.params = state.master.mutable_data_ptr<float>();
  args.gradient = unit.gradient.const_data_ptr<float>() + piece.begin;
  args.exp_avg = state.exp_avg.mutable_data_ptr();
  args.exp_avg_sq = state.exp_avg_sq.mutable_data_ptr();
  args.bf16_moments = state.exp_avg.scalar_type() == at::kBFloat16;
  args.unit = piece.unit;
  args.first = begin;
  args.bf16_copy = runs_on_cuda(model_) && has_bf16_copy(unit)
      ? unit.weights.mutable_data_ptr<at::BFloat16>() + piece.begin
      : nullptr;
  args.n = count;
  args.decay_begin = std::clamp<int64_t>(first_matrix_[piece.unit] - begin, 0, count);
  args.lr = lr;
  args.beta1 = options_.beta1;
  args.beta2 = options_.beta2;
  args.eps = options_.eps;
  args.weight_decay = options_.weight_decay;
  args.step_count = step_count_.const_data_ptr<float>();
  args.grad_scale = grad_norm.grad_scale.const_data_ptr<float>();
  args.found_inf = grad_norm.found_inf.const_data_ptr<float>();
  if (runs_on_cuda(model_)) {
    models::run_kernel("AdamW", launch_adamw, args, model_.options().device);
  } else if (!state.master.is_meta()) {
    adamw_on_cpu(args);
  }
}

void AdamW::update_with_aten(const Group& group, double lr, const GradNorm& grad_norm) {
  if (group.params.empty() || group.params.front().is_meta()) { // the fused op has no meta kernel
    return;
  }
  // The counter is per tensor in the fused op; all of ours are equal, and the op only reads it.
  const std::vector<at::Tensor> steps(group.params.size(), step_count_);
  at::_fused_adamw_(
      group.params, group.grads, group.exp_avgs, group.exp_avg_sqs, /*max_exp_avg_sqs=*/{}, steps, lr, options_.beta1,
      options_.beta2, group.weight_decay, options_.eps, /*amsgrad=*/false, /*maximize=*/false, grad_norm.grad_scale,
      grad_norm.found_inf);
}

void AdamW::step_on_device(double lr, const GradNorm& grad_norm) {
  Group vectors, matrices;
  matrices.weight_decay = options_.weight_decay;
  for (int64_t i = 0; i < model_.num_units(); ++i) {
    if (model_.state_on_host(i)) {
      continue;
    }
    if (uses_kernel()) {
      update_with_kernel(whole(i), state(whole(i)), lr, grad_norm);
    } else {
      add_slice(vectors, whole(i), state(whole(i)), 0, first_matrix_[i]);
      add_slice(matrices, whole(i), state(whole(i)), first_matrix_[i], model_.unit(i).layout.numel);
    }
  }
  if (runs_on_cuda(model_)) {
    return;
  }
  update_with_aten(vectors, lr, grad_norm);
  update_with_aten(matrices, lr, grad_norm);
  for (int64_t i = 0; i < model_.num_units(); ++i) {
    if (!model_.state_on_host(i)) {
      model_.round_master(i);
    }
  }
}

void AdamW::update_staged(const Piece& piece, const OptimizerState& state, double lr, const GradNorm& grad_norm) {
  sharding::UnitShard& unit = model_.unit(piece.unit);
  if (uses_kernel()) {
    update_with_kernel(piece, state, lr, grad_norm);
  } else {
    Group vectors, matrices;
    matrices.weight_decay = options_.weight_decay;
    add_slice(vectors, piece, state, 0, first_matrix_[piece.unit]);
    add_slice(matrices, piece, state, first_matrix_[piece.unit], unit.layout.numel);
    update_with_aten(vectors, lr, grad_norm);
    update_with_aten(matrices, lr, grad_norm);
  }
  if (!runs_on_cuda(model_) || !has_bf16_copy(unit)) {
    unit.weights.narrow(0, piece.begin, piece.count).copy_(state.master);
  }
}

void AdamW::fetch_ahead() {
  while (host_state_ != nullptr && static_cast<int64_t>(fetched_) < host_state_->stages()) {
    host_state_->fetch(state(pieces_[fetched_++]));
  }
}

void AdamW::step_through_device(double lr) {
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const Piece& piece = pieces_[i];
    host_state_->update(state(piece), [&](const OptimizerState& staged) {
      update_staged(piece, staged, lr, decision_);
      if (i + 1 == pieces_.size() || pieces_[i + 1].unit != piece.unit) {
        model_.unit_updated(piece.unit);
      }
    });
    if (fetched_ < pieces_.size()) {
      host_state_->fetch(state(pieces_[fetched_++]));
    }
  }
  fetched_ = 0;
  host_state_->end_update();
}

} // namespace distill::optim
