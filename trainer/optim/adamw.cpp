#include "trainer/optim/adamw.h"

#include <ATen/Parallel.h>

#include "trainer/config/dtypes.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/device/simulation.h"
#include "trainer/models/ops/kernel_launch.h"

namespace distill::optim {

namespace {

constexpr int64_t kAtOnce = 32; // pieces that are fetched ahead between the backward passes of two units

bool has_bf16_copy(const sharding::UnitShard& unit) {
  return unit.weights.defined() && unit.weights.scalar_type() == at::kBFloat16;
}

bool runs_on_cuda(const sharding::ModelShards& model) {
  return device::kernel_device(model.options().device) == c10::DeviceType::CUDA;
}

} // namespace

AdamW::AdamW(sharding::ModelShards& model, const config::OptimizerSection& options, int64_t piece)
    : model_(model), options_(options), next_unit_(model.num_units()) {
  const device::LabelScope label(device::Category::kMoments);
  allocate_state(piece);
  const auto on_device = at::TensorOptions().device(model.options().device);
  step_count_ = at::zeros({1}, on_device.dtype(at::kFloat));
  factors_ = at::zeros({static_cast<int64_t>(sizeof(AdamWFactors))}, on_device.dtype(at::kByte));
  sharding::OptimizerHooks hooks;
  if (host_state_ != nullptr || cpu_update_ != nullptr) {
    hooks.queue_update = [this](int64_t unit) { queue_until(unit); };
  }
  if (host_state_ != nullptr) {
    hooks.backward_is_queued = [this](int64_t) { fetch_ahead(kAtOnce); };
  }
  if (cpu_update_ != nullptr) {
    hooks.gradient_is_final = [this](int64_t unit) { cpu_update_->take_gradient(unit); };
  }
  model_.hook_optimizer(std::move(hooks));
}

AdamW::~AdamW() {
  try {
    wait();
  } catch (const c10::Error&) { // the device has failed: there is nothing to wait for
  }
  model_.hook_optimizer({});
}

void AdamW::allocate_state(int64_t piece) {
  const at::ScalarType moments = config::scalar_type(options_.moments);
  int64_t largest = 0; // shard that passes through the device
  bool on_cpu = false;
  for (int64_t i = 0; i < model_.num_units(); ++i) {
    const sharding::UnitShard& unit = model_.unit(i);
    moments_.push_back({model_.zeros_of_state(i, moments), model_.zeros_of_state(i, moments)});
    on_cpu = on_cpu || model_.updated_by_cpu(i);
    largest = model_.state_on_host(i) && !model_.updated_by_cpu(i) ? std::max(largest, unit.shard.numel) : largest;
    // A unit's vectors come before its matrices, so that weight decay divides it into two slices at most.
    int64_t first_matrix = unit.layout.numel;
    for (const models::ParamLayout& param : unit.layout.params) {
      if (param.is_matrix) {
        first_matrix = std::min(first_matrix, param.offset);
      }
    }
    first_matrix_.push_back(first_matrix);
  }
  if (on_cpu) {
    cpu_update_ = std::make_unique<CpuUpdate>(model_, piece);
  }
  if (largest == 0) {
    return;
  }
  const int64_t stage = piece > 0 ? std::min(largest, piece) : sharding::StateMemory::piece_numel(largest);
  for (int64_t i = 0; i < model_.num_units(); ++i) {
    const bool passes = model_.state_on_host(i) && !model_.updated_by_cpu(i);
    const int64_t numel = passes ? model_.unit(i).shard.numel : 0;
    for (int64_t begin = 0; begin < numel; begin += stage) {
      pieces_.push_back({i, begin, std::min(stage, numel - begin)});
    }
  }
  const int64_t stages = std::min(model_.options().state.stages, static_cast<int64_t>(pieces_.size()));
  host_state_ = std::make_unique<HostState>(model_.options().device, moments, stage, stages);
  updated_ = pieces_.size();
}

void AdamW::wait() {
  queue_until(model_.num_units() - 1);
  if (host_state_ != nullptr) {
    host_state_->wait();
  }
  if (cpu_update_ != nullptr) {
    cpu_update_->wait();
  }
}

void AdamW::step(double lr, const GradNorm& grad_norm) {
  model_.finish_updates(); // waits for the last update, which reads the factors on a stream of its own
  step_count_.add_(1.0 - grad_norm.found_inf);
  make_factors(lr, grad_norm);
  if (host_state_ != nullptr) { // before the updates on the device, for which those from the host need not wait
    fetch_ahead(host_state_->stages());
    host_state_->begin_update();
    updated_ = 0;
  }
  if (cpu_update_ != nullptr) {
    cpu_update_->begin(factors_);
  }
  step_on_device();
  for (int64_t i = 0; i < model_.num_units(); ++i) {
    if (model_.state_on_host(i)) {
      model_.update_later(i);
    }
  }
  next_unit_ = 0;
  model_.weights_changed();
}

void AdamW::make_factors(double lr, const GradNorm& grad_norm) {
  if (factors_.is_meta()) {
    return;
  }
  const AdamWStep step{
      lr,
      options_.beta1,
      options_.beta2,
      options_.eps,
      options_.weight_decay,
      step_count_.const_data_ptr<float>(),
      grad_norm.grad_scale.const_data_ptr<float>(),
      grad_norm.found_inf.const_data_ptr<float>(),
      static_cast<AdamWFactors*>(factors_.mutable_data_ptr())};
  if (runs_on_cuda(model_)) {
    models::run_kernel("AdamW's factors", launch_adamw_factors, step, model_.options().device);
  } else {
    adamw_factors_on_cpu(step);
  }
}

AdamWArgs AdamW::args_of(const Piece& piece, const OptimizerState& state) const {
  const sharding::UnitShard& unit = model_.unit(piece.unit);
  const int64_t begin = unit.shard.begin + piece.begin; // position in the whole unit
  AdamWArgs args{};
  args.n = std::min(begin + piece.count, unit.layout.numel) - begin;
  if (args.n <= 0 || state.master.is_meta()) {
    return args;
  }
  args.params = state.master.mutable_data_ptr<float>();
  args.exp_avg = state.exp_avg.mutable_data_ptr();
  args.exp_avg_sq = state.exp_avg_sq.mutable_data_ptr();
  args.bf16_moments = state.exp_avg.scalar_type() == at::kBFloat16;
  args.unit = piece.unit;
  args.first = begin;
  args.decay_begin = std::clamp<int64_t>(first_matrix_[piece.unit] - begin, 0, args.n);
  return args;
}

void AdamW::update(const Piece& piece, const OptimizerState& state) {
  const sharding::UnitShard& unit = model_.unit(piece.unit);
  AdamWArgs args = args_of(piece, state);
  if (args.n <= 0 || state.master.is_meta()) {
    return;
  }
  const at::Tensor gradient = unit.gradient.narrow(0, piece.begin, args.n);
  args.gradient = gradient.const_data_ptr();
  args.bf16_gradient = gradient.scalar_type() == at::kBFloat16;
  args.factors = static_cast<const AdamWFactors*>(factors_.const_data_ptr());
  if (!runs_on_cuda(model_)) {
    adamw_on_cpu(args, at::get_num_threads());
    return;
  }
  if (has_bf16_copy(unit)) {
    args.bf16_copy = unit.weights.mutable_data_ptr<at::BFloat16>() + piece.begin;
  }
  models::run_kernel("AdamW", launch_adamw, args, model_.options().device);
}

void AdamW::step_on_device() {
  for (int64_t i = 0; i < model_.num_units(); ++i) {
    if (model_.state_on_host(i)) {
      continue;
    }
    update(whole(i), state(whole(i)));
    if (!runs_on_cuda(model_)) {
      model_.round_master(i);
    }
  }
}

void AdamW::fetch_ahead(int64_t most) {
  if (host_state_ == nullptr || updated_ < pieces_.size()) {
    return; // the last step's pieces come first
  }
  for (; most > 0 && static_cast<int64_t>(fetched_) < host_state_->stages(); --most) {
    host_state_->fetch(state(pieces_[fetched_++]));
  }
}

void AdamW::queue_until(int64_t unit) {
  for (; next_unit_ <= unit; ++next_unit_) {
    const int64_t next = next_unit_;
    if (model_.updated_by_cpu(next)) {
      cpu_update_->queue(next, [&](int64_t begin, int64_t count) {
        const Piece piece{next, begin, count};
        return args_of(piece, state(piece));
      });
    } else if (model_.state_on_host(next)) {
      queue_through_device(next);
    }
  }
}

void AdamW::queue_through_device(int64_t unit) {
  for (; updated_ < pieces_.size() && pieces_[updated_].unit == unit; ++updated_) {
    const Piece& piece = pieces_[updated_];
    host_state_->update(state(piece), [&](const OptimizerState& staged) {
      update(piece, staged);
      sharding::UnitShard& own = model_.unit(unit);
      if (!runs_on_cuda(model_) || !has_bf16_copy(own)) {
        own.weights.narrow(0, piece.begin, piece.count).copy_(staged.master);
      }
      if (updated_ + 1 == pieces_.size() || pieces_[updated_ + 1].unit != unit) {
        model_.unit_updated(unit);
      }
    });
    if (fetched_ < pieces_.size()) {
      host_state_->fetch(state(pieces_[fetched_++]));
    }
  }
  if (updated_ == pieces_.size()) {
    fetched_ = 0;
    host_state_->end_update();
  }
}

} // namespace distill::optim
