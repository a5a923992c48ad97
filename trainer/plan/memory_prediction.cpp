#include "trainer/plan/memory_prediction.h"

#include <bit>
#include <numeric>

#include "trainer/config/dtypes.h"
#include "trainer/device/simulation.h"
#include "trainer/plan/simulated_run.h"
#include "trainer/sharding/simulated_mesh.h"
#include "trainer/step/train_step.h"

namespace distill::plan {
namespace {

// Steps after which the allocator's memory is taken to be as it stays. With state in host memory, gradients of a step
// are freed one by one among the activations of the next one's forward pass, which finds other holes than that step
// found: the allocator takes more for a few steps.
constexpr int64_t kSettlingSteps = 8;

// Bytes of the optimizer's state of all units, wherever it is.
int64_t state_bytes(const config::Config& config, const sharding::ModelShards& student) {
  int64_t elements = 0;
  for (int64_t unit = 0; unit < student.num_units(); ++unit) {
    elements += student.unit(unit).shard.numel;
  }
  return elements * config::state_bytes(config.optimizer);
}

// Counts the gathers of a simulated step by phase, and those of its first micro-batch apart from those of the others.
class GatherObserver {
 public:
  GatherObserver(trainer::MicroBatchRunner& micro, const sharding::WeightSlots* slots) : micro_(micro), slots_(slots) {
    if (slots_ != nullptr) {
      before_ = slots_->gathered();
      micro_.observe_phases([this](const char* name) { enter(name); });
    }
  }
  ~GatherObserver() {
    micro_.observe_phases({});
  }
  GatherObserver(const GatherObserver&) = delete;
  GatherObserver& operator=(const GatherObserver&) = delete;

  // Predicts the gathers of a step of `micro_batches`, of which one or two were observed. The second is like all
  // further ones.
  GatherPrediction of_step(int64_t micro_batches) {
    if (slots_ != nullptr) {
      count();
    }
    const auto others = static_cast<double>(micro_batches - 1);
    GatherPrediction step = first_;
    step.units += others * other_.units;
    for (size_t phase = 0; phase < step.bytes.size(); ++phase) {
      step.bytes[phase] += others * other_.bytes[phase];
    }
    return step;
  }

 private:
  void enter(std::string_view name) {
    count();
    for (size_t phase = 0; phase < first_.bytes.size(); ++phase) {
      if (name == metrics::phase_name(static_cast<metrics::Phase>(phase))) {
        phase_ = phase;
      }
    }
    micro_batches_ += phase_ == static_cast<size_t>(metrics::Phase::kTeacher) ? 1 : 0;
  }
  void count() {
    const sharding::GatherCount now = slots_->gathered();
    GatherPrediction& gathers = micro_batches_ <= 1 ? first_ : other_;
    gathers.units += static_cast<double>(now.units - before_.units);
    gathers.bytes[phase_] += static_cast<double>(now.bytes - before_.bytes);
    before_ = now;
  }

  trainer::MicroBatchRunner& micro_;
  const sharding::WeightSlots* slots_; // null: nothing is gathered
  sharding::GatherCount before_;
  GatherPrediction first_, other_;
  size_t phase_ = 0;
  int64_t micro_batches_ = 0;
};

} // namespace

void GatherPrediction::add(const GatherPrediction& other, double share) {
  units += share * other.units;
  for (size_t phase = 0; phase < bytes.size(); ++phase) {
    bytes[phase] += share * other.bytes[phase];
  }
}

double GatherPrediction::total_bytes() const {
  return std::accumulate(bytes.begin(), bytes.end(), 0.0);
}

MemoryPrediction predict_memory(const RunShape& shape, BlockRecorder& blocks) {
  const config::Config& config = shape.config;
  const DeterministicScope deterministic(config.train.deterministic);
  device::Simulation simulation(
      shape.environment.device.type(), shape.environment.allocator.kind, shape.allocator_limit);
  trainer::Environment environment = shape.environment;
  environment.device = at::kMeta;
  const std::unique_ptr<sharding::Mesh> mesh = sharding::simulated_mesh(shape.shard, shape.replicate, shape.copies());
  const auto host_activations = device::HostSlab::simulated();
  const auto host_state = shape.state_on_host() ? device::HostSlab::simulated() : nullptr;
  MemoryPrediction prediction;
  prediction.outside = shape.outside;
  const at::Tensor workspace = shape.cuda() ? blas_workspace() : at::Tensor(); // since the libraries were loaded

  const trainer::ModelSource student{shape.student, nullptr};
  // This cannot fail, since nothing is read.
  trainer::LoadedModels models =
      *trainer::load_models(config, environment, *mesh, student, shape.teachers, shape.state(host_state));
  trainer::TrainStep step(
      config, *mesh, models, {shape.policies, host_activations}, shape.blocks(blocks.functions(simulation)));
  prediction.static_bytes = simulation.allocated();
  prediction.static_use = simulation.use().now;
  if (shape.copies()) {
    prediction.peer_bytes = models.peer_bytes();
  }

  // Steps in which each teacher is followed by the next one, and by itself.
  const int64_t micro_batches = std::min<int64_t>(shape.micro_batches, 2);
  const auto teachers = static_cast<int64_t>(shape.teachers.size());
  const auto run = [&](int64_t first, int64_t second, bool shadow) {
    std::vector<data::Batch> batches{simulated_batch(shape, first)};
    if (micro_batches > 1) {
      batches.push_back(simulated_batch(shape, second));
    }
    step.run({batches, /*valid_tokens=*/1}, {.shadow = shadow});
  };
  const bool shadows = config.float8.shadow_every > 0; // such steps need the most memory, and gather as no other does
  for (int64_t teacher = 0; teacher < teachers; ++teacher) {
    run(teacher, (teacher + 1) % teachers, shadows);
    if (shadows) {
      run(teacher, teacher, shadows);
    }
  }
  for (int64_t teacher = 0; teacher < teachers; ++teacher) {
    GatherObserver gathers(step.micro_batches(), models.slots.weights.get());
    const int64_t before = simulation.give_backs();
    run(teacher, teacher, /*shadow=*/false);
    prediction.give_backs = std::max(prediction.give_backs, simulation.give_backs() - before);
    prediction.gathers.add(gathers.of_step(shape.micro_batches), shape.shares[static_cast<size_t>(teacher)]);
  }
  if (shape.state_on_host()) {
    for (int64_t before = 0, n = 0; n < kSettlingSteps && simulation.reserved_peak() > before; ++n) {
      before = simulation.reserved_peak();
      for (int64_t teacher = 0; teacher < teachers; ++teacher) {
        run(teacher, teacher, /*shadow=*/false);
      }
    }
  }
  prediction.use = simulation.use();
  prediction.reserved_peak = simulation.reserved_peak();
  prediction.host_activations = host_activations->used();
  prediction.host_optimizer = host_state != nullptr ? host_state->used() : 0;
  if (shape.row_bytes() > 0) { // pinned memory comes in powers of two
    prediction.host_teacher = trainer::most_in_memory(shape.micro_batches, shape.row_bytes()) *
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(shape.row_bytes())));
  }
  prediction.host_checkpoint =
      config.checkpoint.async && config.checkpoint.every > 0 ? state_bytes(config, *models.student) : 0;
  return prediction;
}

} // namespace distill::plan
