#include "trainer/trainer.h"

#include <chrono>

#include "data/base/status_macros.h"
#include "data/prefetch.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpointer.h"
#include "trainer/config/run_length.h"
#include "trainer/evaluator.h"
#include "trainer/loader/batch_loader.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/throughput.h"
#include "trainer/metrics/trace.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/precision/gate.h"
#include "trainer/run_folder/journal.h"
#include "trainer/run_folder/trained_model.h"
#include "trainer/sample_generator.h"
#include "trainer/session.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/prepared_run.h"
#include "trainer/teacher_capture.h"

namespace distill::trainer {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A run from its first step to its last, on one rank. Steps are queued on the device; their results are read, and their
// lines written, when further ones have been queued.
class Trainer {
 public:
  // Claims the run folder and prepares everything; nothing in the folder changes before all that can be refused has
  // been checked.
  static absl::StatusOr<std::unique_ptr<Trainer>> build(
      std::unique_ptr<RunContext> context, const StartOptions& start, const launch::StopSignal& stop);
  absl::StatusOr<RunResult> run();

 private:
  Trainer(std::unique_ptr<RunContext> context, const StartOptions& start, const launch::StopSignal& stop)
      : context_(std::move(context)),
        config_(context_->config()),
        mesh_(context_->mesh()),
        start_(start),
        stop_(stop) {}
  absl::Status claim_folder();
  absl::Status load(PreparedRun prepared);
  absl::Status open();
  std::string gathers_line() const; // how units are gathered, and why
  absl::Status open_journal(const std::optional<checkpoint::Resumed>& resumed);
  void open_data();

  absl::Status run_steps();
  absl::StatusOr<std::optional<GlobalBatch>> next_batch();
  void train_step(const GlobalBatch& batch);
  absl::Status handle_results(bool all);
  absl::Status handle(TrainStep::Results done);
  absl::Status evaluate_and_save();
  absl::Status evaluate();
  absl::Status save_checkpoint(bool periodic);
  absl::Status show_samples();
  absl::Status close();
  absl::Status save_model();
  absl::Status end_complete_run(bool write_model);

  bool ended_epoch() const { // with the last step
    const int64_t epoch = train_data_->num_samples();
    return state_.samples / epoch != (state_.samples - config_.train.global_batch_size) / epoch;
  }
  bool due(int64_t every) const {
    return every > 0 && state_.step % every == 0;
  }

  std::shared_ptr<RunFolder> folder_; // before all that writes to it; null on ranks other than 0
  std::unique_ptr<RunContext> context_;
  const config::Config& config_;
  const sharding::Mesh& mesh_;
  const StartOptions start_;
  const launch::StopSignal& stop_;
  std::shared_ptr<const plan::Plan> plan_;
  std::vector<std::string> report_, warnings_; // what the run is about to do
  std::shared_ptr<data::Dataset> train_data_, eval_data_;
  std::shared_ptr<teacher_cache::CachedRows> train_rows_; // of the training data's teacher; null: it runs
  std::optional<precision::TeacherError> float8_error_; // of the teacher, before the run
  LoadedModels models_;
  std::unique_ptr<TrainStep> step_;
  std::unique_ptr<TeacherCapture> capture_; // null: what the teacher says is not stored
  std::unique_ptr<SampleGenerator> samples_; // null: the run has no eval.samples
  std::unique_ptr<metrics::Throughput> throughput_;
  std::optional<RunJournal> journal_;
  std::unique_ptr<Checkpointer> checkpointer_; // after all that it saves and tells
  std::unique_ptr<data::Prefetcher> prefetcher_;
  std::unique_ptr<BatchLoader> loader_;
  absl::Status journal_status_; // the first failure to write a step's line
  checkpoint::TrainState state_;
  int64_t total_steps_ = 0;
  int64_t first_step_ = 0; // of this process
  int64_t last_step_ = 0; // after which this process ends the run; total_steps_ but for a replay
  bool stopped_ = false;
  Clock::time_point started_;
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::build(
    std::unique_ptr<RunContext> context, const StartOptions& start, const launch::StopSignal& stop) {
  std::unique_ptr<Trainer> trainer(new Trainer(std::move(context), start, stop));
  const sharding::Mesh& mesh = trainer->mesh_;
  RETURN_IF_ERROR(sharding::agree(mesh, mesh.is_main() ? trainer->claim_folder() : absl::OkStatus()));
  auto prepared = prepare_run(*trainer->context_);
  RETURN_IF_ERROR(sharding::agree(mesh, prepared.status()));
  const RunContext& ready = *trainer->context_;
  RETURN_IF_ERROR(sharding::agree(
      mesh,
      agree_on_gathers(ready.config(), ready.environment(), prepared->inputs, ready.ranks(), mesh, prepared->plan)));
  // Every rank has seen how much host memory is free before one takes its part.
  RETURN_IF_ERROR(sharding::agree(mesh, trainer->load(*std::move(prepared))));
  RETURN_IF_ERROR(trainer->open());
  return trainer;
}

absl::Status Trainer::claim_folder() {
  ASSIGN_OR_RETURN(folder_, RunFolder::claim(config_.run.dir, start_.mode, start_.parent_run));
  return absl::OkStatus();
}

// Takes host memory and reads the weights. The input files are no longer mapped afterwards.
absl::Status Trainer::load(PreparedRun prepared) {
  plan_ = std::make_shared<plan::Plan>(std::move(prepared.plan));
  report_ = std::move(prepared.report);
  warnings_ = std::move(prepared.warnings);
  const Environment& environment = context_->environment();
  Inputs& inputs = prepared.inputs;
  if (inputs.teacher) {
    ASSIGN_OR_RETURN(
        float8_error_,
        precision::check_teacher(
            config_, environment, mesh_, *inputs.teacher, inputs.eval_data ? *inputs.eval_data : *inputs.train_data));
    if (float8_error_) {
      report_.push_back(absl::StrCat("float8 teacher against the same in its compute dtype: ", float8_error_->text()));
    }
  }
  ASSIGN_OR_RETURN(HostMemory memory, take_host_memory(environment, *plan_));
  ASSIGN_OR_RETURN(
      models_,
      load_models(
          plan_->shape.config, environment, mesh_, inputs.student, inputs.teacher ? &*inputs.teacher : nullptr,
          std::move(memory.optimizer)));
  step_ = std::make_unique<TrainStep>(
      config_, mesh_, models_, ActivationMemory{plan_->shape.policies, std::move(memory.activations)});
  throughput_ = std::make_unique<metrics::Throughput>(
      environment.device, models_.student->config(), models_.teacher ? &models_.teacher->config() : nullptr,
      config_.data.seq_len, plan_->shape.teacher_seq_len(), config_.train.global_batch_size * config_.data.seq_len,
      mesh_.world_size);
  train_data_ = std::move(inputs.train_data);
  train_rows_ = std::move(inputs.train_rows);
  eval_data_ = std::move(inputs.eval_data);
  if (inputs.samples) {
    samples_ = std::make_unique<SampleGenerator>(config_, *std::move(inputs.samples), step_->micro_batches(), mesh_);
  }
  return absl::OkStatus();
}

// From here on the run folder changes.
absl::Status Trainer::open() {
  const checkpoint::RunIdentity own{
      describe_shape(models_.student->config()), "AdamW, float32 moments", describe_data(*train_data_),
      base::hex(train_data_->tokenizer_hash())};
  RETURN_IF_ERROR(check_same_inputs(
      config_, mesh_, absl::StrCat(own.data, own.tokenizer),
      absl::StrCat(own.model, own.optimizer, start_.resume_from)));
  if (samples_ && mesh_.host != nullptr) {
    RETURN_IF_ERROR(
        sharding::check_equal_on_all_ranks(mesh_, "data.eval (the prompts of eval.samples)", samples_->fingerprint()));
  }
  RETURN_IF_ERROR(sharding::agree(mesh_, folder_ ? folder_->remove_earlier_run() : absl::OkStatus()));
  checkpointer_ = std::make_unique<Checkpointer>(
      config_, own, train_data_->teacher_seq_len(), *models_.student, step_->optimizer(), mesh_);
  std::optional<checkpoint::Resumed> resumed;
  if (start_.mode == StartMode::kResume || !start_.resume_from.empty()) {
    ASSIGN_OR_RETURN(resumed, checkpointer_->resume(start_.resume_from, *train_data_));
    state_ = resumed->state;
    RETURN_IF_ERROR(
        sharding::agree(mesh_, train_rows_ ? train_rows_->check_stretches(*train_data_) : absl::OkStatus()));
  }
  first_step_ = state_.step;
  total_steps_ = config::total_steps(config_, train_data_->num_samples(), {state_.step, state_.tokens});
  if (start_.last_step > total_steps_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--step: expected a step of the run, 1 to %d, found %d", total_steps_, start_.last_step));
  }
  last_step_ = start_.last_step > 0 ? std::min(start_.last_step, total_steps_) : total_steps_;
  RETURN_IF_ERROR(sharding::agree(mesh_, open_journal(resumed)));
  checkpointer_->open(*journal_, context_->ranks().local_world_size);
  if (config_.teacher.source == config::TeacherSource::kCapture) {
    ASSIGN_OR_RETURN(capture_, TeacherCapture::begin(config_, mesh_, *models_.teacher, *step_, train_rows_));
  }
  open_data();
  return absl::OkStatus();
}

absl::Status Trainer::open_journal(const std::optional<checkpoint::Resumed>& resumed) {
  ASSIGN_OR_RETURN(
      journal_,
      RunJournal::open(
          config_, mesh_.is_main(), {state_.step, state_.evaluated_step}, float8_error_ ? float8_error_->mean_kl : 0));
  for (const std::string& note : folder_ ? folder_->notes() : std::vector<std::string>()) {
    journal_->warning(note);
  }
  for (const std::string& line : report_) {
    journal_->info(line);
  }
  for (const std::string& line : warnings_) {
    journal_->warning(line);
  }
  if (mesh_.world_size > 1) {
    journal_->info(absl::StrFormat(
        "ranks: %d, sharded over %d, %d replica(s)%s", mesh_.world_size, mesh_.shard_size, mesh_.replicate_size,
        models_.teacher && !config_.parallel.shard_teacher ? ", the teacher whole on each" : ""));
    journal_->info(gathers_line());
  }
  if (resumed) {
    for (const std::string& line : describe_resumption(*resumed, config_)) {
      journal_->info(line);
    }
  }
  return mesh_.is_main() ? begin_session(
                               *context_,
                               {.first_step = state_.step,
                                .total_steps = total_steps_,
                                .resumed_from = resumed ? resumed->folder : "",
                                .plan = plan_->json()})
                         : absl::OkStatus();
}

std::string Trainer::gathers_line() const {
  const bool without_room = mesh_.peers != nullptr && !plan_->shape.copies();
  return absl::StrFormat(
      "gathers: %s; %d blocks are held at a time",
      without_room ? "by all-gathers: there is no room for copies, or a better use for it" : mesh_.gather_note,
      plan_->shape.config.parallel.slots);
}

void Trainer::open_data() {
  const int64_t micro = config_.train.micro_batch_size;
  const int64_t micro_batches = config_.train.global_batch_size / (micro * mesh_.world_size);
  prefetcher_ = std::make_unique<data::Prefetcher>(
      train_data_, data::BatchSchedule{state_.samples + mesh_.rank * micro, micro, mesh_.world_size * micro},
      read_ahead(micro_batches, train_rows_ != nullptr));
  BatchLoader::Hooks hooks;
  hooks.asked_to_stop = [this] { return stop_.received() != 0; };
  hooks.contribute = [this] {
    const checkpoint::Saver::Vote vote = checkpointer_->vote();
    return BatchLoader::Numbers{vote.writing, vote.failed};
  };
  hooks.take_sums = [this](const BatchLoader::Numbers& sums) { return checkpointer_->advance({sums[0], sums[1]}); };
  loader_ = std::make_unique<BatchLoader>(mesh_, *prefetcher_, micro_batches, std::move(hooks));
}

absl::StatusOr<RunResult> Trainer::run() {
  try {
    absl::Status status = run_steps();
    if (status.ok()) {
      status = close();
    }
    if (mesh_.is_main()) {
      end_session(config_.run.dir, status, stopped_, state_.step, start_.parent_run.empty(), *journal_);
    }
    RETURN_IF_ERROR(status);
    RunResult result{stopped_, state_.step, plan_, context_->outside(), folder_};
    result.outside.end = outside_allocator(context_->environment().device);
    context_->leave();
    return result;
  } catch (const sharding::CommunicationError& error) {
    return context_->lost_ranks(state_.step, error.what());
  } catch (const metrics::DeviceTimeout& error) {
    return context_->lost_ranks(state_.step, error.what());
  }
}

absl::Status Trainer::run_steps() {
  started_ = Clock::now();
  metrics::TraceRecorder trace(
      config_.profile.trace_start, config_.profile.trace_steps, context_->environment().device.is_cuda(),
      absl::StrCat(config_.run.dir, "/trace-rank", mesh_.rank, ".json"));
  // An evaluation that was due when the run was stopped comes now.
  if (state_.step == 0 ? config_.eval.at_start : state_.step < total_steps_ && due(config_.eval.every)) {
    RETURN_IF_ERROR(evaluate());
  }
  step_->micro_batches().phases().begin_step();
  while (state_.step < last_step_ && !stopped_) {
    ASSIGN_OR_RETURN(const std::optional<GlobalBatch> batch, next_batch());
    if (!batch) { // a signal
      stopped_ = true;
      break;
    }
    trace.before_step(state_.step + 1);
    train_step(*batch);
    if (trace.after_step(state_.step)) {
      journal_->message("wrote the trace to " + trace.path());
    }
    RETURN_IF_ERROR(handle_results(/*all=*/false));
    RETURN_IF_ERROR(evaluate_and_save());
    if (capture_ && ended_epoch()) {
      RETURN_IF_ERROR(capture_->publish());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<GlobalBatch>> Trainer::next_batch() {
  mesh_.report_progress(state_.step + 1, "data");
  ASSIGN_OR_RETURN(std::optional<GlobalBatch> batch, loader_->next());
  if (batch && start_.show_samples && state_.step + 1 == last_step_) {
    RETURN_IF_ERROR(show_samples());
  }
  return batch;
}

void Trainer::train_step(const GlobalBatch& batch) {
  metrics::StepRecord record;
  TrainStep::Options options;
  record.lr = options.lr = optim::learning_rate(config_.scheduler, config_.optimizer.lr, state_.step, total_steps_);
  record.first_sample = state_.samples;
  record.num_samples = config_.train.global_batch_size;
  state_.step += 1;
  state_.samples += config_.train.global_batch_size;
  state_.tokens += config_.train.global_batch_size * config_.data.seq_len;
  record.step = state_.step;
  record.total_steps = total_steps_;
  record.means.valid_tokens = batch.valid_tokens;
  record.means.has_teacher = models_.teacher != nullptr;
  record.tokens = state_.tokens;
  if (train_rows_) {
    const auto reading = train_rows_->take_reading();
    record.teacher_read_bytes = reading.bytes;
    record.teacher_read_seconds = reading.seconds;
  }
  journal_status_.Update(capture_ ? capture_->status() : absl::OkStatus());
  options.failed = !journal_status_.ok();
  options.more = state_.step < last_step_;
  const int64_t shadow_every = config_.float8.shadow_every;
  options.shadow = shadow_every > 0 && (state_.step - 1) % shadow_every == 0;
  options.before_update = [this] { checkpointer_->before_update(); };
  step_->enqueue(batch, options, record);
}

// Reads the results that are due, in order; `all`: of every step that has been queued.
absl::Status Trainer::handle_results(bool all) {
  while (auto done = step_->results(all)) {
    RETURN_IF_ERROR(handle(*std::move(done)));
  }
  return absl::OkStatus();
}

absl::Status Trainer::handle(TrainStep::Results done) {
  metrics::StepRecord& record = done.record;
  state_.skipped_total += record.skipped ? 1 : 0;
  if (!record.empty()) { // an empty step neither continues nor ends a row of skipped ones
    state_.skipped_in_row = record.skipped ? state_.skipped_in_row + 1 : 0;
  }
  state_.empty_steps += record.empty() ? 1 : 0;
  record.skipped_total = state_.skipped_total;
  record.empty_steps = state_.empty_steps;
  throughput_->complete(record);
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
  if (record.skipped && state_.skipped_in_row >= config_.train.max_skipped_steps) {
    if (absl::Status status = checkpointer_->finish(); !status.ok()) { // one that is still being written counts
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

absl::Status Trainer::evaluate_and_save() {
  const bool evaluates = due(config_.eval.every), saves = due(config_.checkpoint.every);
  if (evaluates) {
    RETURN_IF_ERROR(evaluate());
  }
  if (saves) {
    RETURN_IF_ERROR(save_checkpoint(/*periodic=*/true));
  }
  if (evaluates || saves) {
    step_->micro_batches().phases().begin_step(); // what they took is no step's time
  }
  return absl::OkStatus();
}

absl::Status Trainer::evaluate() {
  if (eval_data_ == nullptr || state_.evaluated_step == state_.step) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(handle_results(/*all=*/true));
  mesh_.report_progress(state_.step, "evaluation");
  const EvaluationHooks hooks = {
      .asked_to_stop = [this] { return stop_.received() != 0; },
      .before_batch = [this] { context_->watchdog().report_progress(state_.step, "evaluation"); },
      .progress = config_.run.progress};
  ASSIGN_OR_RETURN(
      const EvaluationResult result,
      evaluate_dataset(
          step_->micro_batches(), eval_data_, config_.train.micro_batch_size, config_.eval.batches,
          models_.teacher != nullptr, mesh_, hooks));
  stopped_ = result.interrupted;
  const Clock::time_point begun = Clock::now();
  const std::vector<Sample> samples = samples_ && !stopped_ ? samples_->generate(hooks) : std::vector<Sample>();
  stopped_ = stopped_ || (samples_ && samples.empty());
  if (stopped_) { // the evaluation comes again after the resumption, with its samples
    return absl::OkStatus();
  }
  state_.evaluated_step = state_.step;
  absl::Status status = journal_->evaluation(state_.step, result.means);
  return sharding::agree(
      mesh_, status.ok() ? record_samples(*journal_, state_.step, samples, seconds_since(begun)) : status);
}

absl::Status Trainer::save_checkpoint(bool periodic) {
  if (capture_) {
    capture_->end_part();
  }
  RETURN_IF_ERROR(handle_results(/*all=*/true)); // the numbers of skipped steps are part of the state
  mesh_.report_progress(state_.step, "checkpoint");
  return periodic ? checkpointer_->save_periodic(state_) : checkpointer_->save_final(state_);
}

// What each sample of the next step loses by itself.
absl::Status Trainer::show_samples() {
  const auto lines =
      sample_losses(step_->micro_batches(), *train_data_, state_.samples, config_.train.global_batch_size, mesh_);
  step_->micro_batches().phases().begin_step();
  RETURN_IF_ERROR(sharding::agree(mesh_, lines.status()));
  for (const std::string& line : *lines) {
    journal_->message(line);
  }
  return absl::OkStatus();
}

absl::Status Trainer::close() {
  absl::Status status = handle_results(/*all=*/true);
  RETURN_IF_ERROR(sharding::agree(mesh_, status.ok() ? journal_status_ : status));
  if (capture_) {
    RETURN_IF_ERROR(capture_->publish());
  }
  if (!stopped_ && config_.eval.every > 0) {
    RETURN_IF_ERROR(evaluate());
  }
  const bool finished = !stopped_; // a signal may have cut the last evaluation short: that comes after the resumption
  const bool write = !finished || config_.checkpoint.at_end;
  if (write) {
    RETURN_IF_ERROR(save_checkpoint(/*periodic=*/false));
  }
  RETURN_IF_ERROR(checkpointer_->finish());
  if (!finished) {
    journal_->info(
        absl::StrFormat("stopped by a signal after step %d; the state is saved, continue with --resume", state_.step));
    return absl::OkStatus();
  }
  if (first_step_ >= last_step_) {
    return end_complete_run(/*write_model=*/write);
  }
  return write ? save_model() : absl::OkStatus();
}

// No step was left to do when the run was resumed.
absl::Status Trainer::end_complete_run(bool write_model) {
  journal_->info(describe_no_step_left(state_.step, total_steps_));
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
  journal_->message("the model in " + trained_model_folder(config_) + " is that of the last step, and stays as it is");
  return absl::OkStatus();
}

absl::Status Trainer::save_model() {
  mesh_.report_progress(state_.step, "model");
  step_->optimizer().wait();
  RETURN_IF_ERROR(save_trained_model(config_, *models_.student, mesh_));
  journal_->message("wrote the model to " + trained_model_folder(config_));
  return absl::OkStatus();
}

} // namespace

absl::StatusOr<RunResult> train(
    const config::Config& config, const launch::RankInfo& ranks, const StartOptions& start,
    const launch::StopSignal& stop) {
  try {
    ASSIGN_OR_RETURN(std::unique_ptr<RunContext> context, RunContext::join(config, ranks, stop));
    ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::build(std::move(context), start, stop));
    return trainer->run();
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(out_of_memory_report(config, ranks, error.what_without_backtrace()));
  }
}

} // namespace distill::trainer
