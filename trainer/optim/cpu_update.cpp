#include "trainer/optim/cpu_update.h"

#include "trainer/device/device_hooks.h"

namespace distill::optim {
namespace {

constexpr size_t kStages = 4; // pieces of weights that are written, wait to be copied, or are copied

at::Tensor host_memory(const sharding::ModelShards& model, int64_t numel, at::ScalarType dtype) {
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  return device::HostSlab::take(model.options().state.host, bytes).view(dtype);
}

} // namespace

CpuUpdate::CpuUpdate(sharding::ModelShards& model, int64_t piece)
    : model_(model),
      threads_(static_cast<int>(model.options().state.update_threads())),
      down_(model.options().device, sharding::StreamPriority::kAsCompute),
      work_(model.options().device),
      up_(model.options().device, sharding::StreamPriority::kAsCompute),
      decided_(model.options().device),
      worked_(model.options().device) {
  int64_t largest = 0;
  for (int64_t i = 0; i < model.num_units(); ++i) {
    Unit& unit = units_.emplace_back(model.options().device);
    if (model.updated_by_cpu(i)) {
      largest = std::max(largest, model.unit(i).shard.numel);
      unit.gradient = host_memory(model, model.unit(i).shard.numel, model.options().gradient_dtype);
    }
  }
  piece_ = std::min(largest, piece > 0 ? piece : kPiece);
  const at::ScalarType weights = model.options().compute_dtype;
  for (size_t i = 0; weights != at::kFloat && i < kStages; ++i) {
    stages_.emplace_back(model.options().device).weights = host_memory(model, piece_, weights);
  }
  factors_ = host_memory(model, sizeof(AdamWFactors), at::kByte);
}

CpuUpdate::~CpuUpdate() {
  try {
    wait();
    for (const Unit& unit : units_) {
      unit.arrived.synchronize();
    }
    for (const Stage& stage : stages_) {
      stage.left.synchronize();
    }
  } catch (const c10::Error&) { // the device has failed: nothing is running any more
  }
}

void CpuUpdate::take_gradient(int64_t index) {
  Unit& unit = units_[static_cast<size_t>(index)];
  if (!unit.gradient.defined() || std::exchange(unit.taken, true)) {
    return;
  }
  unit.arrived.record();
  down_.run([&] {
    unit.arrived.wait(); // the gradient is final
    unit.gradient.copy_(model_.unit(index).gradient, /*non_blocking=*/true);
    unit.arrived.record();
  });
}

void CpuUpdate::begin(const at::Tensor& factors) {
  for (int64_t i = 0; i < model_.num_units(); ++i) {
    take_gradient(i);
    units_[static_cast<size_t>(i)].taken = false;
  }
  decided_.record();
  work_.run([&] {
    decided_.wait();
    factors_.copy_(factors, /*non_blocking=*/true);
  });
}

// A skipped step leaves the state as it is; its weights are copied all the same, since the device's copy is the same.
void CpuUpdate::update_piece(const AdamWArgs& args, at::Tensor copy, const at::Tensor& master) const {
  adamw_on_cpu(args, threads_);
  if (copy.defined() && (args.bf16_copy == nullptr || args.factors->skipped != 0)) {
    copy.copy_(master);
  }
}

void CpuUpdate::queue(int64_t index, const ArgsOf& args_of) {
  sharding::UnitShard& unit = model_.unit(index);
  Unit& own = units_[static_cast<size_t>(index)];
  work_.run([&] { own.arrived.wait(); });
  for (int64_t begin = 0; begin < unit.shard.numel; begin += piece_) {
    AdamWArgs args = args_of(begin, std::min(piece_, unit.shard.numel - begin));
    if (args.n <= 0) {
      break; // only padding
    }
    const at::Tensor master = unit.master.narrow(0, begin, args.n);
    Stage* stage = stages_.empty() ? nullptr : &stages_[next_stage_++ % stages_.size()];
    const at::Tensor copy = stage != nullptr ? stage->weights.narrow(0, 0, args.n) : at::Tensor();
    if (!master.is_meta()) {
      args.gradient = own.gradient.narrow(0, begin, args.n).const_data_ptr();
      args.bf16_gradient = own.gradient.scalar_type() == at::kBFloat16;
      args.factors = reinterpret_cast<const AdamWFactors*>(factors_.const_data_ptr());
      args.bf16_copy = copy.defined() && copy.scalar_type() == at::kBFloat16 ? copy.mutable_data_ptr() : nullptr;
    }
    work_.run([&] {
      if (stage != nullptr) {
        stage->left.wait();
      }
      if (!master.is_meta()) {
        device::run_on_host(model_.options().device, [this, args, copy, master] { update_piece(args, copy, master); });
      }
      worked_.record();
      if (stage != nullptr) {
        stage->updated.record();
      }
    });
    up_.run([&] {
      (stage != nullptr ? stage->updated : worked_).wait();
      unit.weights.narrow(0, begin, args.n).copy_(stage != nullptr ? copy : master, /*non_blocking=*/true);
      if (stage != nullptr) {
        stage->left.record();
      }
    });
  }
  up_.run([&] { model_.unit_updated(index); });
}

void CpuUpdate::wait() const {
  worked_.synchronize();
}

} // namespace distill::optim
