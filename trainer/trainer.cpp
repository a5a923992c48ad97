#include "trainer/trainer.h"

#include <chrono>

#include "data/prefetch.h"
#include "trainer/checkpointer.h"
#include "trainer/config/rules.h"
#include "trainer/evaluator.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/trace.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/parts.h"
#include "trainer/run_folder/journal.h"
#include "trainer/run_folder/run_folder.h"
#include "trainer/run_folder/trained_model.h"
#include "trainer/step_gate.h"
#include "trainer/tools/replay.h"

namespace distill::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A run from its first step to its last, on one rank. Steps are queued on the device; their numbers are read, and their
// lines written, when `lag` further ones have been queued.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> build(
      const config::Config& config, const StartOptions& start, const launch::RankInfo& ranks,
      const launch::StopSignal& stop);
  absl::StatusOr<RunResult> run();

 private:
  Trainer(std::unique_ptr<Parts> parts, const launch::StopSignal& stop)
      : parts_(std::move(parts)), config_(parts_->config), mesh_(*parts_->mesh), stop_(stop) {}
  absl::Status open(const StartOptions& start);
  absl::Status open_journal();
  absl::StatusOr<RunResult> run_steps();
  void step(const GlobalBatch& batch);
  absl::Status after_step();
  absl::Status read_steps(bool all);
  absl::Status finish_step(StepQueue::DoneStep done);
  absl::Status show_samples();
  absl::Status evaluate();
  absl::Status save_checkpoint(bool periodic);
  absl::Status save_model();
  absl::Status close();
  checkpoint::RunIdentity identity() const;
  bool due(int64_t every) const {
    return every > 0 && state_.step % every == 0;
  }

  std::unique_ptr<Parts> parts_;
  const config::Config& config_;
  const sharding::Mesh& mesh_;
  const launch::StopSignal& stop_;
  std::unique_ptr<data::Prefetcher> batches_;
  std::optional<RunJournal> journal_;
  std::unique_ptr<RunCheckpoints> checkpoints_; // after all that it saves and tells
  std::unique_ptr<StepGate> gate_; // after what it takes and asks
  absl::Status journal_status_; // the first failure to write a step's line
  checkpoint::TrainState state_;
  std::optional<checkpoint::Resumed> resumed_;
  int64_t total_steps_ = 0;
  int64_t first_step_ = 0; // of this process
  int64_t last_step_ = 0; // after which this process ends the run; total_steps_ but for a replay
  bool show_samples_ = false; // of the last step
  bool stopped_ = false;
  Clock::time_point started_;
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::build(
    const config::Config& config, const StartOptions& start, const launch::RankInfo& ranks,
    const launch::StopSignal& stop) {
  auto joined = join_run(config, ranks, stop);
  if (!joined.ok()) {
    return joined.status();
  }
  std::unique_ptr<Trainer> trainer(new Trainer(*std::move(joined), stop));
  Parts& parts = *trainer->parts_;
  const sharding::Mesh& mesh = trainer->mesh_;
  absl::Status status =
      sharding::agree(mesh, mesh.is_main() ? check_run_folder(config.run.dir, start.mode) : absl::OkStatus());
  if (status.ok()) {
    status = sharding::agree(mesh, plan_parts(parts));
  }
  if (status.ok()) { // every rank has seen how much host memory is free before one takes its part
    status = sharding::agree(mesh, load_parts(parts));
  }
  if (status.ok()) {
    status = trainer->open(start);
  }
  return status.ok() ? absl::StatusOr<std::unique_ptr<Trainer>>(std::move(trainer)) : status;
}

// From here on the run folder changes.
absl::Status Trainer::open(const StartOptions& start) {
  const checkpoint::RunIdentity own = identity();
  absl::Status status = check_same_inputs(
      config_, mesh_, absl::StrCat(own.data, own.tokenizer), absl::StrCat(own.model, own.optimizer, start.resume_from));
  if (status.ok()) {
    status = sharding::agree(mesh_, mesh_.is_main() ? open_run_folder(config_.run.dir, start.mode) : absl::OkStatus());
  }
  if (!status.ok()) {
    return status;
  }
  show_samples_ = start.show_samples;
  checkpoints_ = std::make_unique<RunCheckpoints>(config_, own, *parts_->student, *parts_->optimizer, mesh_);
  const bool resumes = start.mode == StartMode::kResume || !start.resume_from.empty();
  if (resumes) {
    auto resumed = checkpoints_->resume(start.resume_from, *parts_->train_data);
    if (!resumed.ok()) {
      return resumed.status();
    }
    state_ = resumed->state;
    resumed_ = *std::move(resumed);
  }
  total_steps_ = total_steps(config_, state_);
  last_step_ = start.last_step > 0 ? std::min(start.last_step, total_steps_) : total_steps_;
  status = sharding::agree(mesh_, open_journal());
  if (status.ok()) {
    checkpoints_->open(*journal_, parts_->ranks.local_world_size);
  }
  return status;
}

absl::Status Trainer::open_journal() {
  auto journal = RunJournal::open(config_, mesh_.is_main(), {state_.step, state_.evaluated_step});
  if (!journal.ok()) {
    return journal.status();
  }
  journal_ = *std::move(journal);
  for (const std::string& line : parts_->start_report) {
    journal_->info(line);
  }
  if (mesh_.world_size > 1) {
    journal_->info(absl::StrFormat(
        "ranks: %d, sharded over %d, %d replica(s)%s", mesh_.world_size, mesh_.shard_size, mesh_.replicate_size,
        parts_->teacher && !config_.parallel.shard_teacher ? ", the teacher whole on each" : ""));
  }
  if (resumed_) {
    for (const std::string& line : describe_resumption(*resumed_, config_)) {
      journal_->info(line);
    }
  }
  return absl::OkStatus();
}

checkpoint::RunIdentity Trainer::identity() const {
  return {
      describe_shape(parts_->student->config()), "AdamW, float32 moments", describe_data(*parts_->train_data),
      base::hex(parts_->train_data->tokenizer_hash())};
}

absl::StatusOr<RunResult> Trainer::run() {
  try {
    auto result = run_steps();
    if (result.ok()) {
      leave_run(*parts_);
    }
    return result;
  } catch (const sharding::CommunicationError& error) {
    return lost_ranks(*parts_, state_.step, error.what());
  } catch (const metrics::DeviceTimeout& error) {
    return lost_ranks(*parts_, state_.step, error.what());
  }
}

absl::StatusOr<RunResult> Trainer::run_steps() {
  started_ = Clock::now();
  first_step_ = state_.step;
  const int64_t micro = config_.train.micro_batch_size;
  batches_ = std::make_unique<data::Prefetcher>(
      parts_->train_data, data::BatchSchedule{state_.samples + mesh_.rank * micro, micro, mesh_.world_size * micro},
      /*depth=*/2 * config_.train.global_batch_size / (micro * mesh_.world_size));
  gate_ = std::make_unique<StepGate>(
      mesh_, stop_, *checkpoints_, *batches_, config_.train.global_batch_size / (micro * mesh_.world_size));
  metrics::TraceRecorder trace(
      config_.profile.trace_start, config_.profile.trace_steps, parts_->environment.device.is_cuda(),
      absl::StrCat(config_.run.dir, "/trace-rank", mesh_.rank, ".json"));
  // An evaluation that was due when the run was stopped comes now.
  absl::Status status;
  if (state_.step == 0 ? config_.eval.at_start : state_.step < total_steps_ && due(config_.eval.every)) {
    status = evaluate();
  }
  parts_->micro->phases().begin_step();
  while (status.ok() && state_.step < last_step_ && !stopped_) {
    mesh_.at(state_.step + 1, "data");
    const auto batch = gate_->next();
    if (!batch.ok()) {
      return batch.status();
    }
    if (!batch->has_value()) {
      stopped_ = true;
      break;
    }
    if (show_samples_ && state_.step + 1 == last_step_) {
      if (status = show_samples(); !status.ok()) {
        break;
      }
    }
    trace.before_step(state_.step + 1);
    step(**batch);
    if (trace.after_step(state_.step)) {
      journal_->message("wrote the trace to " + trace.path());
    }
    status = after_step();
  }
  if (status.ok()) {
    status = close();
  }
  if (!status.ok()) {
    return status;
  }
  parts_->outside.end = outside_allocator(parts_->environment.device);
  return RunResult{stopped_, state_.step, std::make_shared<plan::Plan>(parts_->memory.plan), parts_->outside};
}

// Reads the steps that are due, and does what is due between two steps.
absl::Status Trainer::after_step() {
  absl::Status status = read_steps(/*all=*/false);
  const bool evaluates = due(config_.eval.every), saves = due(config_.checkpoint.every);
  if (status.ok() && evaluates) {
    status = evaluate();
  }
  if (status.ok() && saves) {
    status = save_checkpoint(/*periodic=*/true);
  }
  if (evaluates || saves) {
    parts_->micro->phases().begin_step(); // what they took is no step's time
  }
  return status;
}

// Queues a step. All of its micro-batches are read before the first one runs, since the loss is divided by the number
// of valid tokens of the whole batch.
void Trainer::step(const GlobalBatch& batch) {
  metrics::StepRecord record;
  record.first_sample = state_.samples;
  record.num_samples = config_.train.global_batch_size;
  record.lr = optim::learning_rate(config_.scheduler, config_.optimizer.lr, state_.step, total_steps_);
  state_.step += 1;
  state_.samples += config_.train.global_batch_size;
  state_.tokens += config_.train.global_batch_size * config_.data.seq_len;
  record.step = state_.step;
  record.total_steps = total_steps_;
  record.means.valid_tokens = batch.valid_tokens;
  record.means.has_teacher = parts_->teacher != nullptr;
  record.tokens = state_.tokens;
  parts_->steps->push(batch, record, {/*failed=*/!journal_status_.ok(), /*more=*/state_.step < last_step_, [this] {
                                        checkpoints_->before_update();
                                      }});
}

// Reads the steps that are due, in order; `all`: every one that has been queued.
absl::Status Trainer::read_steps(bool all) {
  while (auto done = parts_->steps->pop(all)) {
    if (absl::Status status = finish_step(*std::move(done)); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Trainer::finish_step(StepQueue::DoneStep done) {
  metrics::StepRecord& record = done.record;
  state_.skipped_total += record.skipped ? 1 : 0;
  state_.skipped_in_row = record.skipped ? state_.skipped_in_row + 1 : 0;
  record.skipped_total = state_.skipped_total;
  add_throughput(*parts_, record);
  record.eta_seconds = seconds_since(started_) / static_cast<double>(record.step - first_step_) *
      static_cast<double>(total_steps_ - record.step);
  if (const absl::Status status = journal_->step(record); journal_status_.ok()) {
    journal_status_ = status;
  }
  if (!done.changed_unit.empty()) {
    return absl::InternalError(absl::StrFormat(
        "step %d: parallel.debug_checks: the gathered weights of %s changed between two uses", record.step,
        done.changed_unit));
  }
  if (done.failed_ranks > 0) {
    return journal_status_.ok() ? absl::AbortedError("another rank failed; its message says why") : journal_status_;
  }
  if (state_.skipped_in_row >= config_.train.max_skipped_steps) {
    if (absl::Status status = checkpoints_->finish(); !status.ok()) { // one that is still being written counts
      metrics::log_error(std::string(status.message()));
    }
    return absl::AbortedError(absl::StrFormat(
        "step %d: %d steps in a row had gradients that are not finite (train.max_skipped_steps: %d); lower "
        "optimizer.lr, or look at the samples before %d",
        record.step, state_.skipped_in_row, config_.train.max_skipped_steps,
        record.step * config_.train.global_batch_size));
  }
  return absl::OkStatus();
}

// What each sample of the next step loses by itself.
absl::Status Trainer::show_samples() {
  const auto lines =
      sample_losses(*parts_->micro, *parts_->train_data, state_.samples, config_.train.global_batch_size, mesh_);
  parts_->micro->phases().begin_step();
  const absl::Status status = sharding::agree(mesh_, lines.status());
  if (status.ok()) {
    for (const std::string& line : *lines) {
      journal_->message(line);
    }
  }
  return status;
}

absl::Status Trainer::evaluate() {
  if (parts_->eval_data == nullptr || state_.evaluated_step == state_.step) {
    return absl::OkStatus();
  }
  if (absl::Status status = read_steps(/*all=*/true); !status.ok()) {
    return status;
  }
  mesh_.at(state_.step, "evaluation");
  const auto result = evaluate_dataset(
      *parts_->micro, parts_->eval_data, config_.train.micro_batch_size, config_.eval.batches,
      parts_->teacher != nullptr, mesh_,
      {.asked_to_stop = [this] { return stop_.received() != 0; },
       .before_batch = [this] { parts_->watchdog->at(state_.step, "evaluation"); }});
  if (!result.ok()) {
    return result.status();
  }
  if (result->interrupted) {
    stopped_ = true;
    return absl::OkStatus();
  }
  state_.evaluated_step = state_.step;
  return sharding::agree(mesh_, journal_->evaluation(state_.step, result->means));
}

absl::Status Trainer::save_checkpoint(bool periodic) {
  if (absl::Status status = read_steps(/*all=*/true); !status.ok()) {
    return status; // the numbers of skipped steps are part of the state
  }
  mesh_.at(state_.step, "checkpoint");
  return periodic ? checkpoints_->save_periodic(state_) : checkpoints_->save_final(state_);
}

absl::Status Trainer::save_model() {
  mesh_.at(state_.step, "model");
  parts_->optimizer->wait();
  const absl::Status status = save_trained_model(config_, *parts_->student, mesh_);
  if (status.ok()) {
    journal_->message("wrote the model to " + trained_model_folder(config_));
  }
  return status;
}

absl::Status Trainer::close() {
  absl::Status status = read_steps(/*all=*/true);
  status = sharding::agree(mesh_, status.ok() ? journal_status_ : status);
  if (status.ok() && !stopped_ && config_.eval.every > 0) {
    status = evaluate();
  }
  const bool finished = !stopped_; // a signal may have cut the last evaluation short: that comes after the resumption
  const bool write = !finished || config_.checkpoint.at_end;
  if (status.ok() && write) {
    status = save_checkpoint(/*periodic=*/false);
  }
  if (status.ok()) {
    status = checkpoints_->finish();
  }
  if (status.ok() && finished && write) {
    status = save_model();
  }
  if (status.ok() && !finished) {
    journal_->info(
        absl::StrFormat("stopped by a signal after step %d; the state is saved, continue with --resume", state_.step));
  }
  return status;
}

} // namespace

absl::StatusOr<RunResult> train(
    const config::Config& config, const StartOptions& start, const launch::StopSignal& stop) {
  const auto ranks = launch::detect_ranks(launch::process_environ());
  if (!ranks.ok()) {
    return ranks.status();
  }
  try {
    auto trainer = Trainer::build(config, start, *ranks, stop);
    return trainer.ok() ? (*trainer)->run() : trainer.status();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(out_of_memory_report(config, *ranks, error.what_without_backtrace()));
  }
}

absl::StatusOr<RunResult> train(const config::Config& config, const StartOptions& start) {
  const launch::StopSignal stop;
  return train(config, start, stop);
}

} // namespace distill::trainer
