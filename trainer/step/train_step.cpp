#include "trainer/train_step.h"

#include <ATen/record_function.h>

#include "trainer/metrics/device.h"

namespace distill::trainer {
namespace {

// What a step leaves for the host, fp64: the sums of the loss rows, and these. All but the last are summed over ranks.
enum StepNumber : int64_t {
  kGradNormSquare = losses::kNumRows,
  kFailedRanks,
  kChangedUnit, // of the slot checks
  kStepNumbers
};

} // namespace

StepQueue::StepQueue(
    const config::Config& config, const sharding::Mesh& mesh, sharding::ModelShards& student, MicroStep& micro,
    optim::AdamW& optimizer, const sharding::SlotChecks* checks)
    : config_(config),
      mesh_(mesh),
      student_(student),
      micro_(micro),
      optimizer_(optimizer),
      checks_(checks),
      readout_(
          student.options().device, kStepNumbers, /*lag=*/student.options().device.is_cpu() ? 0 : 1,
          std::chrono::seconds(config.parallel.timeout_s)) {}

void StepQueue::push(const GlobalBatch& batch, metrics::StepRecord record, const Start& start) {
  RECORD_USER_SCOPE("distill::step");
  const metrics::ForbidSynchronization forbid(config_.parallel.debug_checks);
  micro_.observe_phases([this, &record](const char* phase) { mesh_.at(record.step, phase); });
  at::Tensor numbers = at::zeros({kStepNumbers}, micro_.zero_sums().options());
  at::Tensor sums_K = numbers.narrow(0, 0, losses::kNumRows);
  optimizer_.fetch_ahead();
  const double grad_scale = 1.0 / static_cast<double>(std::max<int64_t>(1, batch.valid_tokens));
  for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
    const bool last = i + 1 == batch.micro_batches.size();
    micro_.train(batch.micro_batches[i], grad_scale, sums_K, last);
    if (!last) {
      micro_.prefetch_first();
    }
  }
  micro_.begin(metrics::Phase::kOptimizer);
  student_.finish_gradients();
  if (start.more) {
    micro_.prefetch_first();
  }
  at::Tensor square = numbers.narrow(0, kGradNormSquare, 1);
  square.copy_(optim::grad_norm_square(student_));
  numbers[kFailedRanks].fill_(start.failed ? 1 : 0);
  if (mesh_.world != nullptr) {
    mesh_.world->all_reduce(numbers);
  }
  square.div_(static_cast<double>(mesh_.replicate_size)); // every replica has added the same shards
  start.before_update();
  optimizer_.step(record.lr, optim::grad_norm_of_square(square, config_.optimizer.max_grad_norm));
  student_.drop_gradients();
  if (checks_ != nullptr) {
    numbers.narrow(0, kChangedUnit, 1).copy_(checks_->failed_unit());
  }
  micro_.phases().end_step();
  micro_.observe_phases({});
  readout_.push(numbers);
  queued_.push_back(std::move(record));
}

std::optional<StepQueue::DoneStep> StepQueue::pop(bool all) {
  const auto numbers = readout_.pop(all);
  if (!numbers) {
    return std::nullopt;
  }
  DoneStep done;
  done.record = std::move(queued_.front());
  queued_.pop_front();
  std::array<double, losses::kNumRows> sums{};
  std::copy_n(numbers->begin(), sums.size(), sums.begin());
  done.record.means = metrics::loss_means(sums, done.record.means.valid_tokens, done.record.means.has_teacher);
  done.record.grad_norm = static_cast<float>(std::sqrt((*numbers)[kGradNormSquare]));
  done.record.skipped = !std::isfinite(done.record.grad_norm);
  done.record.phases = micro_.phases().take();
  done.record.seconds = metrics::total(done.record.phases);
  done.failed_ranks = static_cast<int64_t>((*numbers)[kFailedRanks]);
  const auto changed = static_cast<int64_t>((*numbers)[kChangedUnit]);
  if (changed > 0) {
    done.changed_unit = checks_->describe(changed);
  }
  return done;
}

} // namespace distill::trainer
