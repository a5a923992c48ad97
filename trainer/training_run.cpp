#include "trainer/training_run.h"

#include <set>

#include "data/base/status_macros.h"
#include "trainer/config/teachers.h"
#include "trainer/device/device_hooks.h"
#include "trainer/dropped_mass_check.h"
#include "trainer/evaluator.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/trace.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/report/page.h"
#include "trainer/round_check.h"
#include "trainer/run_folder/sessions.h"
#include "trainer/run_folder/trained_model.h"
#include "trainer/setup/start_report.h"

namespace distill::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace

TrainingRun::TrainingRun(OpenedRun opened, const launch::StopSignal& stop)
    : opened_(std::move(opened)),
      config_(opened_.context->config()),
      mesh_(opened_.context->mesh()),
      step_(*opened_.step),
      journal_(*opened_.journal),
      checkpoints_(*opened_.checkpoints),
      state_(opened_.state),
      stop_(stop),
      first_step_(opened_.state.step) {}

absl::StatusOr<RunResult> TrainingRun::run() {
  try {
    absl::Status status = run_steps();
    if (status.ok()) {
      status = close();
    }
    if (mesh_.is_main()) {
      record_end(status);
    }
    RETURN_IF_ERROR(status);
    RunResult result{stopped_, state_.step, opened_.plan, opened_.context->outside(), opened_.folder};
    result.outside.end = device::bytes_outside_allocator(opened_.context->environment().device);
    opened_.context->leave();
    return result;
  } catch (const sharding::CommunicationError& error) {
    return opened_.context->lost_ranks(state_.step, error.what());
  } catch (const metrics::DeviceTimeout& error) {
    return opened_.context->lost_ranks(state_.step, error.what());
  }
}

// Adds the line of this process's end to sessions.jsonl and, unless this is a replay, writes the run's report. A
// failure of either is a warning, and no failure of the run.
void TrainingRun::record_end(const absl::Status& status) {
  const SessionState state = !status.ok() ? SessionState::kFailed
      : stopped_                          ? SessionState::kStopped
                                          : SessionState::kFinished;
  const std::string outcome = !status.ok()
      ? std::string(status.message())
      : absl::StrFormat("%s after step %d", stopped_ ? "stopped by a signal" : "finished", state_.step);
  const std::string& dir = config_.run.dir;
  absl::Status written = record_session_end(dir, state_.step, state, outcome);
  if (written.ok() && opened_.start.parent_run.empty()) {
    written = report::write_report({dir}, absl::StrCat(dir, "/", report::kReportFile));
  }
  if (!written.ok()) {
    journal_.warning("the report of this run was not written: " + std::string(written.message()));
  }
}

absl::Status TrainingRun::run_steps() {
  started_ = Clock::now();
  metrics::TraceRecorder trace(
      config_.profile.trace_start, config_.profile.trace_steps, opened_.context->environment().device.is_cuda(),
      absl::StrCat(config_.run.dir, "/trace-rank", mesh_.rank, ".json"));
  // An evaluation that was due when the run was stopped comes now.
  if (state_.step == 0 ? config_.eval.at_start : state_.step < opened_.total_steps && due(config_.eval.every)) {
    RETURN_IF_ERROR(evaluate());
  }
  if (opened_.rounds != nullptr && !opened_.batches->round_is_due(state_)) { // in a round
    RETURN_IF_ERROR(opened_.rounds->write_ahead_again(state_.round, state_.step, round_hooks()));
  }
  step_.micro_batches().phases().begin_step();
  while (state_.step < opened_.last_step && !stopped_) {
    if (opened_.batches->round_is_due(state_)) {
      RETURN_IF_ERROR(begin_round());
      continue;
    }
    ASSIGN_OR_RETURN(const std::optional<GlobalBatch> batch, next_batch());
    if (!batch) { // a signal
      stopped_ = true;
      break;
    }
    trace.before_step(state_.step + 1);
    train_step(*batch);
    if (trace.after_step(state_.step)) {
      journal_.message("wrote the trace to " + trace.path());
    }
    RETURN_IF_ERROR(handle_results(/*all=*/false));
    if (opened_.rounds != nullptr) {
      opened_.rounds->poll();
    }
    RETURN_IF_ERROR(evaluate_and_save());
  }
  return absl::OkStatus();
}

EvaluationHooks TrainingRun::evaluation_hooks() {
  return {
      .asked_to_stop = [this] { return stop_.received() != 0; },
      .before_batch = [this] { opened_.context->watchdog().report_progress(state_.step, "evaluation"); },
      .progress = config_.run.progress};
}

onpolicy::RoundHooks TrainingRun::round_hooks() {
  return {
      .asked_to_stop = [this] { return stop_.received() != 0; },
      .waits = [this] { mesh_.report_progress(state_.step + 1, "on-policy round"); },
      .before_engine = [this] { return park_state(); },
      .after_engine = [this] { return park_ != nullptr ? park_->restore() : absl::OkStatus(); },
      .message = [this](const std::string& line) { journal_.message(line); },
      .warning = [this](const std::string& line) { journal_.warning(line); }};
}

// Before the engine works on the same device: moves the state to host memory, if the plan says so.
absl::Status TrainingRun::park_state() {
  const std::optional<plan::EngineTurn>& turn = opened_.plan->engine_turn;
  if (!turn || turn->moved == 0) {
    return absl::OkStatus();
  }
  const Clock::time_point begun = Clock::now();
  const at::Device device = opened_.context->environment().device;
  if (park_ == nullptr) {
    park_ = std::make_unique<device::MemoryPark>(device, opened_.context->ranks().local_world_size);
  }
  checkpoints_.before_update(); // the copy of a checkpoint that is being written is complete
  step_.optimizer().wait();
  std::vector<device::MemoryPark::Item> state;
  opened_.models->student->add_state(state);
  std::set<const sharding::ModelShards*> added; // teachers may have one copy of their weights
  for (const LoadedTeacher& teacher : opened_.models->teachers) {
    for (const auto& model : teacher.weights) {
      if (added.insert(model.get()).second) {
        model->add_state(state);
      }
    }
  }
  if (opened_.models->slots.weights != nullptr) {
    opened_.models->slots.weights->add_state(state);
  }
  step_.optimizer().add_state(state);
  RETURN_IF_ERROR(park_->park(state));
  journal_.info(absl::StrFormat(
      "the engine's turn: %s of the state are in host memory (moved in %.2f s)%s", device::bytes_text(park_->bytes()),
      seconds_since(begun),
      device.is_cuda()
          ? absl::StrCat("; ", device::bytes_text(device::used_device_bytes(device)), " of the device are in use")
          : ""));
  return absl::OkStatus();
}

// Lets the student write the next round, and compares what the engine says about it with the student's own
// predictions. nullopt: a rank was asked to stop.
absl::StatusOr<std::optional<onpolicy::Round>> TrainingRun::write_round() {
  const onpolicy::RoundHooks hooks = round_hooks();
  hooks.waits();
  ASSIGN_OR_RETURN(std::optional<onpolicy::Round> round, opened_.rounds->write(state_.round, state_.step, hooks));
  if (!round || !opened_.start.parent_run.empty()) {
    return round;
  }
  ASSIGN_OR_RETURN(
      const std::optional<RoundCheck> check,
      check_round(config_, step_.micro_batches(), *round, mesh_, evaluation_hooks()));
  if (!check) {
    return std::optional<onpolicy::Round>();
  }
  const std::string name = absl::StrFormat("round %d: ", round->position.number);
  journal_.info(name + check->line());
  if (check->alignment) {
    for (const std::string& line :
         alignment_lines(absl::StrFormat("round %d", round->position.number), *check->alignment)) {
      journal_.info(line);
    }
  }
  if (check->held_out) {
    journal_.message(name + check->held_out_line());
  }
  // A round of an earlier student differs from the present one by what was learned since.
  const double limit = round->weights_step == state_.step ? config_.onpolicy.max_logprob_gap : 0;
  const absl::Status verdict = sharding::agree(mesh_, check->verdict(limit));
  if (!verdict.ok()) {
    opened_.rounds->reject(round->position);
    return absl::Status(verdict.code(), absl::StrCat(name, std::string(verdict.message())));
  }
  const std::vector<config::Config> configs = config::configs_of_teachers(config_);
  RETURN_IF_ERROR(judge_dropped_mass( // the same on all ranks
      configs[static_cast<size_t>(check->teacher)], check->dropped_mass));
  RETURN_IF_ERROR(sharding::agree(
      mesh_, mesh_.is_main() ? record_check(*opened_.rounds, *round, *check, journal_) : absl::OkStatus()));
  return round;
}

// Begins the next round. Where that fails, the state is saved first: nothing that was trained is lost.
absl::Status TrainingRun::begin_round() {
  RETURN_IF_ERROR(handle_results(/*all=*/true));
  step_.optimizer().wait();
  const auto round = write_round();
  if (!round.ok()) {
    if (state_.step > first_step_ && opened_.start.parent_run.empty()) {
      RETURN_IF_ERROR(save_checkpoint(/*periodic=*/false));
    }
    return round.status();
  }
  stopped_ = !round->has_value();
  if (!stopped_) {
    state_.round = (*round)->position;
    opened_.batches->read_round(state_, (*round)->data);
    step_.micro_batches().phases().begin_step();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<GlobalBatch>> TrainingRun::next_batch() {
  mesh_.report_progress(state_.step + 1, "data");
  ASSIGN_OR_RETURN(std::optional<GlobalBatch> batch, opened_.batches->next());
  if (batch && opened_.start.show_samples && state_.step + 1 == opened_.last_step) {
    RETURN_IF_ERROR(show_samples());
  }
  return batch;
}

void TrainingRun::train_step(const GlobalBatch& batch) {
  metrics::StepMetrics record;
  TrainStep::Options options;
  record.lr = options.lr =
      optim::learning_rate(config_.scheduler, config_.optimizer.lr, state_.step, opened_.total_steps);
  record.first_sample = state_.samples;
  record.num_samples = config_.train.global_batch_size;
  state_.step += 1;
  state_.samples += config_.train.global_batch_size;
  state_.train_samples += opened_.batches->train_sequences();
  state_.tokens += config_.train.global_batch_size * config_.data.seq_len;
  record.step = state_.step;
  record.total_steps = opened_.total_steps;
  record.means.valid_tokens = batch.valid_tokens;
  record.means.quality = step_.micro_batches().training_quality();
  record.tokens = state_.tokens;
  const data::TeacherRows::Reading reading = opened_.data->set().take_teacher_reading();
  record.teacher_read_bytes = reading.bytes;
  record.teacher_read_seconds = reading.seconds;
  options.step = state_.step;
  options.failed = !journal_status_.ok();
  options.more = state_.step < opened_.last_step;
  const int64_t shadow_every = config_.float8.shadow_every;
  options.shadow = shadow_every > 0 && (state_.step - 1) % shadow_every == 0;
  options.before_update = [this] { checkpoints_.before_update(); };
  step_.enqueue(batch, options, record);
}

// Reads the results that are due, in order; `all`: of every step that has been queued.
absl::Status TrainingRun::handle_results(bool all) {
  while (auto done = step_.results(all)) {
    RETURN_IF_ERROR(handle(*std::move(done)));
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::handle(TrainStep::Results done) {
  metrics::StepMetrics& record = done.record;
  state_.skipped_total += record.skipped ? 1 : 0;
  if (!record.empty()) { // an empty step neither continues nor ends a row of skipped ones
    state_.skipped_in_row = record.skipped ? state_.skipped_in_row + 1 : 0;
  }
  state_.empty_steps += record.empty() ? 1 : 0;
  record.skipped_total = state_.skipped_total;
  record.empty_steps = state_.empty_steps;
  opened_.throughput->complete(record);
  record.eta_seconds = seconds_since(started_) / static_cast<double>(record.step - first_step_) *
      static_cast<double>(opened_.total_steps - record.step);
  if (const absl::Status status = journal_.step(record); journal_status_.ok()) {
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
  if (record.skipped && state_.skipped_in_row >= config_.train.max_skipped_steps) {
    if (absl::Status status = checkpoints_.finish(); !status.ok()) { // one that is still being written counts
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

absl::Status TrainingRun::evaluate_and_save() {
  const bool evaluates = due(config_.eval.every), saves = due(config_.checkpoint.every);
  if (evaluates) {
    RETURN_IF_ERROR(evaluate());
  }
  if (saves) {
    RETURN_IF_ERROR(save_checkpoint(/*periodic=*/true));
  }
  if (evaluates || saves) {
    step_.micro_batches().phases().begin_step(); // what they took is no step's time
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::evaluate() {
  if (opened_.eval_data == nullptr || state_.evaluated_step == state_.step) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(handle_results(/*all=*/true));
  mesh_.report_progress(state_.step, "evaluation");
  const EvaluationHooks hooks = evaluation_hooks();
  ASSIGN_OR_RETURN(
      const EvaluationResult result,
      evaluate_dataset(
          step_.micro_batches(), opened_.eval_data, config_.train.micro_batch_size, config_.eval.batches, mesh_,
          hooks));
  stopped_ = result.interrupted;
  const Clock::time_point begun = Clock::now();
  const std::vector<Sample> samples =
      opened_.samples && !stopped_ ? opened_.samples->generate(hooks) : std::vector<Sample>();
  stopped_ = stopped_ || (opened_.samples && samples.empty());
  if (stopped_) { // the evaluation comes again after the resumption, with its samples
    return absl::OkStatus();
  }
  state_.evaluated_step = state_.step;
  absl::Status status = journal_.evaluation(state_.step, result.means, result.teachers);
  return sharding::agree(
      mesh_, status.ok() ? record_samples(journal_, state_.step, samples, seconds_since(begun)) : status);
}

absl::Status TrainingRun::save_checkpoint(bool periodic) {
  RETURN_IF_ERROR(handle_results(/*all=*/true)); // the numbers of skipped steps are part of the state
  mesh_.report_progress(state_.step, "checkpoint");
  return periodic ? checkpoints_.save_periodic(state_) : checkpoints_.save_final(state_);
}

// What each sample of the next step loses by itself.
absl::Status TrainingRun::show_samples() {
  const auto lines = sample_losses(
      step_.micro_batches(), opened_.batches->source(), opened_.batches->position(state_),
      config_.train.global_batch_size, state_.samples, mesh_);
  step_.micro_batches().phases().begin_step();
  RETURN_IF_ERROR(sharding::agree(mesh_, lines.status()));
  for (const std::string& line : *lines) {
    journal_.result(line);
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::close() {
  absl::Status status = handle_results(/*all=*/true);
  RETURN_IF_ERROR(sharding::agree(mesh_, status.ok() ? journal_status_ : status));
  if (!stopped_ && config_.eval.every > 0) {
    RETURN_IF_ERROR(evaluate());
  }
  const bool finished = !stopped_; // a signal may have cut the last evaluation short: that comes after the resumption
  const bool write = !finished || config_.checkpoint.at_end;
  if (write) {
    RETURN_IF_ERROR(save_checkpoint(/*periodic=*/false));
  }
  RETURN_IF_ERROR(checkpoints_.finish());
  if (!finished) {
    journal_.info(
        absl::StrFormat("stopped by a signal after step %d; the state is saved, continue with --resume", state_.step));
    return absl::OkStatus();
  }
  if (first_step_ >= opened_.last_step) {
    return end_complete_run(/*write_model=*/write);
  }
  return write ? save_model() : absl::OkStatus();
}

// No step was left to do when the run was resumed.
absl::Status TrainingRun::end_complete_run(bool write_model) {
  journal_.info(describe_no_step_left(state_.step, opened_.total_steps));
  if (!write_model) {
    return absl::OkStatus();
  }
  const auto checkpoint = checkpoint::checkpoint_folder(config_.run.dir, state_.step);
  const absl::Status current = sharding::agree(
      mesh_,
      mesh_.is_main() ? check_trained_model(config_, (checkpoint / checkpoint::kMarkerFile).string())
                      : absl::OkStatus());
  if (!current.ok()) {
    return save_model();
  }
  journal_.message("the model in " + trained_model_folder(config_) + " is that of the last step, and stays as it is");
  return absl::OkStatus();
}

absl::Status TrainingRun::save_model() {
  mesh_.report_progress(state_.step, "model");
  step_.optimizer().wait();
  RETURN_IF_ERROR(save_trained_model(config_, *opened_.models->student, mesh_));
  journal_.message("wrote the model to " + trained_model_folder(config_));
  return absl::OkStatus();
}

} // namespace distill::trainer
