#include "trainer/step/train_step.h"

#include <ATen/record_function.h>

#include "trainer/device/device_hooks.h"
#include "trainer/device/simulation.h"

namespace distill::trainer {
namespace {

// The numbers of a step that the host reads, fp64: these, then models::RouterSum of a student with experts, then for
// each teacher metrics::kNumSums and the number of valid tokens. All but kChangedUnit are summed over
// ranks.
enum StepNumber : int64_t {
  kGradNormSquare,
  kFailedRanks,
  kShadow, // GradientProbe::Product; zeros in a step without a shadow
  kFloat8 = kShadow + GradientProbe::kProducts, // Float8Weights::counts()
  kChangedUnit = kFloat8 + models::kFloat8Operands * models::kFloat8Counts, // SlotChecks::failed_unit()
  kStepNumbers
};
constexpr int64_t kTeacherNumbers = metrics::kNumSums + 1;

metrics::Float8Losses float8_losses(const std::vector<double>& numbers) {
  metrics::Float8Losses losses;
  for (size_t operand = 0; operand < losses.underflow.size(); ++operand) {
    const double* counts = numbers.data() + kFloat8 + operand * models::kFloat8Counts;
    if (counts[models::kFloat8Values] > 0) {
      losses.underflow[operand] = counts[models::kFloat8Lost] / counts[models::kFloat8Values];
    }
    losses.bad_rows += counts[models::kFloat8BadRows];
  }
  const double* shadow = numbers.data() + kShadow;
  if (shadow[GradientProbe::kEarlierSquare] > 0) {
    losses.gradient_cosine =
        cosine(shadow[GradientProbe::kDot], shadow[GradientProbe::kEarlierSquare], shadow[GradientProbe::kLaterSquare]);
  }
  return losses;
}

} // namespace

TrainStep::TrainStep(
    const config::Config& config, const sharding::Mesh& mesh, LoadedModels& models, ActivationMemory memory,
    models::BlockFunctions block)
    : config_(config),
      mesh_(mesh),
      models_(models),
      micro_(config, *models.student, models.teachers, std::move(memory), std::move(block)),
      optimizer_(*models.student, config.optimizer),
      readback_(
          models.student->options().device,
          kStepNumbers + models::router_sums(models.student->config()) + micro_.teachers() * kTeacherNumbers,
          /*lag=*/device::has_streams(models.student->options().device) ? 1 : 0,
          std::chrono::seconds(config.parallel.timeout_s)) {
  metrics::PhaseTimer& phases = micro_.phases();
  if (models.slots.weights != nullptr) {
    const auto observe = [&phases](bool waits) { phases.waiting(waits); };
    models.slots.weights->observe_waits(observe);
    models.slots.gradients->observe_waits(observe);
  }
  models.student->observe_updates([&phases](bool waits) { phases.waiting(waits, metrics::Phase::kOptimizer); });
}

void TrainStep::accumulate_gradients(const GlobalBatch& batch, MicroBatchRunner::Sums sums) {
  sums.scale = 1.0 / static_cast<double>(std::max<int64_t>(1, batch.valid_tokens));
  // The routers' loss is the mean of those of the global batch's micro-batches.
  sums.router_scale = models_.student->config().router_aux_loss /
      static_cast<double>(mesh_.samples_together(static_cast<int64_t>(batch.micro_batches.size())));
  const int64_t sequences = config_.train.micro_batch_size;
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    const bool last = i + 1 == batch.micro_batches.size();
    const int64_t together = mesh_.samples_together(sequences); // ranks read next to each other (RunBatches)
    const int64_t next = last ? next_teacher() : batch.micro_batches[i + 1].teacher_number;
    micro_.train(
        batch.micro_batches[i], sums, mesh_.own_first(static_cast<int64_t>(i) * together, sequences), last, next);
    if (!last) {
      micro_.prefetch_first(next);
    }
  }
}

// The teacher of the next step's first micro-batch. Of several, it is not known before the data are there.
int64_t TrainStep::next_teacher() const {
  return micro_.teachers() == 1 ? 0 : -1;
}

GradientProbe TrainStep::shadow_gradients(const GlobalBatch& batch) {
  sharding::ModelShards& student = *models_.student;
  student.leave_float8(true);
  accumulate_gradients(batch, {.metrics_TM = micro_.zero_sums(), .routers = micro_.zero_router_sums()});
  student.finish_gradients();
  GradientProbe probe(student);
  student.drop_gradients();
  student.leave_float8(false);
  return probe;
}

void TrainStep::add_float8_numbers(at::Tensor numbers, const std::optional<GradientProbe>& shadow) {
  sharding::Float8Weights* float8 = models_.student->float8();
  if (float8 == nullptr) {
    return;
  }
  numbers.narrow(0, kFloat8, float8->counts().numel()).copy_(float8->counts().flatten());
  if (shadow) {
    numbers.narrow(0, kShadow, GradientProbe::kProducts).copy_(shadow->products(*models_.student));
  }
}

// The backward pass has queued the reduction of every unit. Waits for the last ones, and for the last gathers of the
// student; the next step's first gathers, which are the teacher's, overlap with the update.
void TrainStep::reduce_gradients(bool more) {
  models_.student->finish_gradients();
  if (more) {
    micro_.prefetch_first(next_teacher());
  }
}

// The norm over all shards, with one small all-reduce for all of the step's numbers. Where ranks copy weights out of
// each other's memory, this all-reduce also separates the last copy of any rank (reduce_gradients) from the update,
// which writes them; skipped and empty steps pass through it too.
optim::GradNorm TrainStep::global_norm(at::Tensor numbers, bool failed) {
  at::Tensor square = numbers.narrow(0, kGradNormSquare, 1);
  square.copy_(optim::grad_norm_square(*models_.student));
  numbers[kFailedRanks].fill_(failed ? 1 : 0);
  if (mesh_.world != nullptr) {
    mesh_.world->all_reduce(numbers);
  }
  square.div_(static_cast<double>(mesh_.replicate_size)); // the sum counts the same shards once for each replica
  return optim::grad_norm_of_square(square, config_.optimizer.max_grad_norm);
}

at::Tensor TrainStep::run(const GlobalBatch& batch, const Options& options) {
  const int64_t router_sums = models::router_sums(models_.student->config()), teachers = micro_.teachers();
  at::Tensor numbers =
      at::zeros({kStepNumbers + router_sums + teachers * kTeacherNumbers}, micro_.zero_sums().options());
  const at::Tensor of_teachers =
      numbers.narrow(0, kStepNumbers + router_sums, teachers * kTeacherNumbers).view({teachers, kTeacherNumbers});
  models_.student->begin_step(options.step);
  if (models_.student->float8() != nullptr) {
    models_.student->float8()->clear_counts(); // of evaluations
  }
  std::optional<GradientProbe> shadow;
  if (options.shadow) {
    shadow = shadow_gradients(batch);
  }
  accumulate_gradients(
      batch,
      {.metrics_TM = of_teachers.narrow(1, 0, metrics::kNumSums),
       .routers = numbers.narrow(0, kStepNumbers, router_sums),
       .step = options.step});
  for (const data::Batch& micro_batch : batch.micro_batches) {
    of_teachers[micro_batch.teacher_number][metrics::kNumSums].add_(static_cast<double>(micro_batch.valid_tokens));
  }
  micro_.begin(metrics::Phase::kOptimizer);
  reduce_gradients(options.more);
  add_float8_numbers(numbers, shadow);
  shadow.reset();
  optim::GradNorm norm = global_norm(numbers, options.failed);
  if (batch.valid_tokens == 0) {
    norm.found_inf.fill_(1); // nothing to learn: the step changes nothing
  }
  options.before_update();
  optimizer_.step(options.lr, norm);
  models_.student->drop_gradients();
  if (models_.slots.checks != nullptr) {
    numbers.narrow(0, kChangedUnit, 1).copy_(models_.slots.checks->failed_unit());
  }
  micro_.phases().end_step();
  return numbers;
}

sharding::GatherCount TrainStep::gathered() const {
  return models_.slots.weights != nullptr ? models_.slots.weights->gathered() : sharding::GatherCount{};
}

void TrainStep::enqueue(const GlobalBatch& batch, const Options& options, metrics::StepMetrics record) {
  RECORD_USER_SCOPE("distill::step");
  const device::ForbidSynchronization forbid(config_.parallel.debug_checks);
  micro_.observe_phases([this, &record](const char* phase) { mesh_.report_progress(record.step, phase); });
  const sharding::GatherCount before = gathered();
  readback_.push(run(batch, options));
  record.gathers = gathered().units - before.units;
  record.gathered_bytes = gathered().bytes - before.bytes;
  micro_.observe_phases({});
  queued_.push_back(std::move(record));
}

std::optional<TrainStep::Results> TrainStep::results(bool all) {
  const auto numbers = readback_.pop(all);
  if (!numbers) {
    return std::nullopt;
  }
  Results done;
  done.record = std::move(queued_.front());
  queued_.pop_front();
  const int64_t router_sums = models::router_sums(models_.student->config());
  std::vector<metrics::TeacherSums> of_teachers;
  for (int64_t i = 0; i < micro_.teachers(); ++i) {
    const auto from = numbers->begin() + kStepNumbers + router_sums + i * kTeacherNumbers;
    of_teachers.push_back(metrics::teacher_sums(
        absl::MakeConstSpan(&*from, metrics::kNumSums), static_cast<int64_t>(from[metrics::kNumSums]),
        micro_.training_quality(i)));
  }
  done.record.means = metrics::loss_means(of_teachers, done.record.means.valid_tokens, done.record.means.quality);
  done.record.teachers = metrics::means_of_teachers(config_.teacher_names(), of_teachers);
  done.record.grad_norm = std::sqrt((*numbers)[kGradNormSquare]);
  const bool finite = std::isfinite(static_cast<float>(done.record.grad_norm)); // as found_inf on the device
  done.record.skipped = !done.record.empty() && !finite;
  if (models_.student->float8() != nullptr) {
    done.record.float8 = float8_losses(*numbers);
  }
  if (router_sums > 0) {
    done.record.routers = metrics::router_means(
        absl::MakeConstSpan(*numbers).subspan(kStepNumbers, static_cast<size_t>(router_sums)),
        models::router_count(models_.student->config()));
  }
  done.record.phases = micro_.phases().take();
  done.record.seconds = metrics::total(done.record.phases);
  done.failed_ranks = static_cast<int64_t>((*numbers)[kFailedRanks]);
  const auto changed = static_cast<int64_t>((*numbers)[kChangedUnit]);
  if (changed > 0) {
    done.changed_unit = models_.slots.checks->describe(changed);
  }
  return done;
}

} // namespace distill::trainer
