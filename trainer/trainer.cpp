#include "trainer/trainer.h"

#include <chrono>
#include <thread>

#include "data/prefetch.h"
#include "trainer/components.h"
#include "trainer/config/dump.h"
#include "trainer/config/rules.h"
#include "trainer/device/device_hooks.h"
#include "trainer/evaluation.h"
#include "trainer/flight_recorder.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/launch/watchdog.h"
#include "trainer/memory_setup.h"
#include "trainer/metrics/device.h"
#include "trainer/metrics/flops.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/trace.h"
#include "trainer/optim/adamw.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/ranks.h"
#include "trainer/replay.h"
#include "trainer/run_checkpoints.h"
#include "trainer/run_folder.h"
#include "trainer/run_journal.h"
#include "trainer/start_report.h"
#include "trainer/step_gate.h"
#include "trainer/step_queue.h"
#include "trainer/trained_model.h"

namespace distill::trainer {
namespace {

using Clock = std::chrono::steady_clock;

int64_t outside_allocator(at::Device device) {
  return device::used_device_bytes(device) - device::allocator_bytes(device).reserved;
}

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
  Trainer(const config::Config& config, const launch::StopSignal& stop) : config_(config), stop_(stop) {}
  void start_watchdog();
  absl::Status plan();
  absl::Status load();
  absl::Status open(const StartOptions& start);
  absl::Status open_journal();
  absl::StatusOr<RunResult> run_steps();
  void step(const GlobalBatch& batch, Clock::time_point start);
  absl::Status read_steps(bool all);
  absl::Status finish_step(StepQueue::DoneStep done);
  std::string laggards() const;
  absl::Status lost_ranks(const std::string& error);
  void add_throughput(metrics::StepRecord& record) const;
  void report(const metrics::StepRecord& record);
  absl::Status show_samples();
  absl::Status evaluate();
  absl::Status save_checkpoint(bool periodic);
  absl::Status save_model();
  absl::Status close();
  checkpoint::RunIdentity identity() const;
  // Whether any rank was asked to stop; all ranks ask together.
  bool stop_requested() const {
    return sharding::sum_over_ranks(*mesh_, stop_.received() != 0 ? 1 : 0) > 0;
  }
  bool due(int64_t every) const {
    return every > 0 && state_.step % every == 0;
  }

  config::Config config_;
  Environment environment_;
  launch::RankInfo ranks_;
  std::optional<Inputs> inputs_; // until the weights are read
  std::unique_ptr<sharding::Mesh> mesh_;
  MemorySetup memory_;
  std::vector<std::string> start_report_;
  Slots slots_; // outlive the models that use them
  std::unique_ptr<sharding::ModelShards> student_, teacher_;
  std::unique_ptr<data::Dataset> train_data_, eval_data_;
  std::unique_ptr<data::Prefetcher> batches_; // after the data it reads
  std::unique_ptr<MicroStep> micro_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::unique_ptr<StepGate> gate_; // after the batches it takes
  std::unique_ptr<StepQueue> steps_; // after all that a step works on
  std::optional<RunJournal> journal_;
  std::unique_ptr<RunCheckpoints> checkpoints_; // after all that it saves and tells
  absl::Status journal_status_; // the first failure to write a step's line
  const launch::StopSignal& stop_;
  std::unique_ptr<launch::Watchdog> watchdog_;
  metrics::DeviceInfo device_;
  OutsideAllocator outside_;
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
  auto trainer = std::unique_ptr<Trainer>(new Trainer(config, stop));
  auto environment = resolve_environment(config, ranks.local_rank);
  if (!environment.ok()) {
    return environment.status();
  }
  trainer->environment_ = *environment;
  trainer->ranks_ = ranks;
  if (ranks.rank > 0) {
    metrics::set_log_prefix(
        absl::StrFormat("[rank %d on %s, %s] ", ranks.rank, host_name(), environment->device.str()));
  }
  configure_libtorch(config.train, environment->device);
  enable_flight_recorder(config.run.dir);
  trainer->outside_.start = outside_allocator(environment->device);
  auto mesh = join_ranks(config, ranks, environment->device);
  if (!mesh.ok()) {
    return mesh.status();
  }
  trainer->outside_.joined = outside_allocator(environment->device);
  trainer->mesh_ = *std::move(mesh);
  trainer->start_watchdog();
  absl::Status status;
  if (trainer->mesh_->is_main()) {
    status = check_run_folder(config.run.dir, start.mode);
  }
  status = sharding::agree(*trainer->mesh_, status);
  if (status.ok()) {
    status = sharding::agree(*trainer->mesh_, trainer->plan());
  }
  if (status.ok()) { // every rank has seen how much host memory is free before one takes its part
    status = sharding::agree(*trainer->mesh_, trainer->load());
  }
  if (status.ok()) {
    status = trainer->open(start);
  }
  return status.ok() ? absl::StatusOr<std::unique_ptr<Trainer>>(std::move(trainer)) : status;
}

void Trainer::start_watchdog() {
  const std::string& dir = config_.run.dir;
  const int64_t rank = mesh_->rank;
  launch::WatchdogOptions options;
  options.who = absl::StrCat("rank ", rank);
  options.step_timeout = std::chrono::seconds(config_.run.step_timeout_s);
  options.grace = std::chrono::seconds(config_.run.grace_s);
  options.stacks_file = absl::StrCat(dir, "/stacks-rank", rank, ".txt");
  options.write_more = [this, dir, rank] {
    dump_flight_recorder(dir, rank);
    if (const std::string blame = laggards(); !blame.empty()) {
      metrics::log_error(blame);
    }
  };
  watchdog_ = std::make_unique<launch::Watchdog>(std::move(options), stop_);
  mesh_->watch = [this](int64_t step, const char* place) { watchdog_->at(step, place); };
}

// Opens and checks what is only read, and plans the memory.
absl::Status Trainer::plan() {
  device_ = metrics::device_info(environment_.device);
  auto inputs = open_inputs(config_, environment_, config::Purpose::kTrain);
  if (!inputs.ok()) {
    return inputs.status();
  }
  inputs_ = *std::move(inputs);
  start_report_ = start_report(config_, environment_, *inputs_);
  auto memory = plan_memory(config_, environment_, *inputs_, ranks_);
  if (!memory.ok()) {
    return memory.status();
  }
  memory_.plan = *std::move(memory);
  const std::vector<std::string> plan_lines = memory_.plan.lines();
  start_report_.insert(start_report_.end(), plan_lines.begin(), plan_lines.end());
  return absl::OkStatus();
}

// Takes host memory, reads the weights, makes what a step needs.
absl::Status Trainer::load() {
  if (absl::Status status = take_host_memory(environment_, memory_); !status.ok()) {
    return status;
  }
  train_data_ = std::move(inputs_->train_data);
  eval_data_ = std::move(inputs_->eval_data);
  student_ = load_model(
      environment_, inputs_->student, Role::kStudent, mesh_->shard_rank, mesh_->shard_size, memory_.optimizer);
  if (inputs_->teacher) {
    teacher_ = load_model(environment_, *inputs_->teacher, Role::kTeacher, mesh_->shard_rank, mesh_->shard_size);
  }
  inputs_.reset(); // its files are no longer mapped
  slots_ = make_slots(config_.parallel, *mesh_, *student_, teacher_.get());
  micro_ = std::make_unique<MicroStep>(
      config_, *student_, teacher_.get(), ActivationMemory{memory_.plan.shape.policies, memory_.activations});
  if (slots_.weights != nullptr) {
    const auto observe = [this](bool waits) { micro_->phases().waiting(waits); };
    slots_.weights->observe_waits(observe);
    slots_.gradients->observe_waits(observe);
  }
  optimizer_ = std::make_unique<optim::AdamW>(*student_, config_.optimizer);
  steps_ = std::make_unique<StepQueue>(config_, *mesh_, *student_, *micro_, *optimizer_, slots_.checks.get());
  total_steps_ = config::total_steps(config_);
  return absl::OkStatus();
}

// From here on the run folder changes.
absl::Status Trainer::open(const StartOptions& start) {
  const checkpoint::RunIdentity own = identity();
  absl::Status status = check_same_inputs(
      config_, *mesh_, absl::StrCat(own.data, own.tokenizer),
      absl::StrCat(own.model, own.optimizer, start.resume_from));
  if (status.ok()) {
    status =
        sharding::agree(*mesh_, mesh_->is_main() ? open_run_folder(config_.run.dir, start.mode) : absl::OkStatus());
  }
  if (!status.ok()) {
    return status;
  }
  last_step_ = start.last_step > 0 ? std::min(start.last_step, total_steps_) : total_steps_;
  show_samples_ = start.show_samples;
  checkpoints_ = std::make_unique<RunCheckpoints>(config_, own, *student_, *optimizer_, *mesh_);
  const bool resumes = start.mode == StartMode::kResume || !start.resume_from.empty();
  if (resumes) {
    auto resumed = checkpoints_->resume(start.resume_from);
    if (!resumed.ok()) {
      return resumed.status();
    }
    state_ = resumed->state;
    resumed_ = *std::move(resumed);
  }
  status = sharding::agree(*mesh_, open_journal());
  if (status.ok()) {
    checkpoints_->open(*journal_, state_.step, ranks_.local_world_size);
  }
  return status;
}

absl::Status Trainer::open_journal() {
  auto journal = RunJournal::open(config_, mesh_->is_main(), {state_.step, state_.evaluated_step});
  if (!journal.ok()) {
    return journal.status();
  }
  journal_ = *std::move(journal);
  for (const std::string& line : start_report_) {
    journal_->info(line);
  }
  if (mesh_->world_size > 1) {
    journal_->info(absl::StrFormat(
        "ranks: %d, sharded over %d, %d replica(s)", mesh_->world_size, mesh_->shard_size, mesh_->replicate_size));
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
      describe_shape(student_->config()), "AdamW, float32 moments", describe_data(*train_data_),
      data::hex(train_data_->tokenizer_hash())};
}

absl::StatusOr<RunResult> Trainer::run() {
  try {
    return run_steps();
  } catch (const sharding::CommunicationError& error) {
    return lost_ranks(error.what());
  } catch (const metrics::DeviceTimeout& error) {
    return lost_ranks(error.what());
  }
}

// Which ranks hold the others up; empty on one process.
std::string Trainer::laggards() const {
  if (mesh_->heartbeat == nullptr) {
    return "";
  }
  const std::string found = mesh_->heartbeat->laggards();
  return absl::StrCat("ranks ", found.empty() ? "that hold the others up: none is seen" : found);
}

// Where a device hangs in a collective, nothing that frees its memory would come back: the
// process says what it knows and ends.
absl::Status Trainer::lost_ranks(const std::string& error) {
  const std::string message = absl::StrFormat("step %d: %s\n  %s", state_.step, error, laggards());
  if (!environment_.device.is_cpu()) {
    metrics::log_error(message);
    dump_flight_recorder(config_.run.dir, mesh_->rank);
    std::this_thread::sleep_for(std::chrono::seconds(mesh_->is_main() ? 2 : 0)); // rank 0 serves what the others ask
    std::_Exit(1);
  }
  return absl::UnavailableError(message);
}

absl::StatusOr<RunResult> Trainer::run_steps() {
  started_ = Clock::now();
  first_step_ = state_.step;
  const int64_t micro = config_.train.micro_batch_size;
  batches_ = std::make_unique<data::Prefetcher>(
      *train_data_, data::BatchSchedule{state_.samples + mesh_->rank * micro, micro, mesh_->world_size * micro},
      /*depth=*/2 * config_.train.global_batch_size / (micro * mesh_->world_size));
  gate_ = std::make_unique<StepGate>(
      *mesh_, stop_, *checkpoints_, *batches_, config_.train.global_batch_size / (micro * mesh_->world_size));
  metrics::TraceRecorder trace(
      config_.profile.trace_start, config_.profile.trace_steps, environment_.device.is_cuda(),
      absl::StrCat(config_.run.dir, "/trace-rank", mesh_->rank, ".json"));
  // An evaluation that was due when the run was stopped comes now.
  if (state_.step == 0 ? config_.eval.at_start : state_.step < total_steps_ && due(config_.eval.every)) {
    if (absl::Status status = evaluate(); !status.ok()) {
      return status;
    }
  }
  while (state_.step < last_step_ && !stopped_) {
    const Clock::time_point start = Clock::now();
    mesh_->at(state_.step + 1, "data");
    const auto batch = gate_->next();
    if (!batch.ok()) {
      return batch.status();
    }
    if (!batch->has_value()) {
      stopped_ = true;
      break;
    }
    if (show_samples_ && state_.step + 1 == last_step_) {
      if (absl::Status status = show_samples(); !status.ok()) {
        return status;
      }
    }
    trace.before_step(state_.step + 1);
    step(**batch, start);
    if (trace.after_step(state_.step)) {
      journal_->message("wrote the trace to " + trace.path());
    }
    absl::Status status = read_steps(/*all=*/false);
    if (status.ok() && due(config_.eval.every)) {
      status = evaluate();
    }
    if (status.ok() && due(config_.checkpoint.every)) {
      status = save_checkpoint(/*periodic=*/true);
    }
    if (!status.ok()) {
      return status;
    }
  }
  if (absl::Status status = close(); !status.ok()) {
    return status;
  }
  outside_.end = outside_allocator(environment_.device);
  return RunResult{stopped_, state_.step, std::make_shared<plan::Plan>(memory_.plan), outside_};
}

// Queues a step. All of its micro-batches are read before the first one runs, since the loss is divided by the number
// of valid tokens of the whole batch.
void Trainer::step(const GlobalBatch& batch, Clock::time_point start) {
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
  record.means.has_teacher = teacher_ != nullptr;
  record.tokens = state_.tokens;
  steps_->push(batch, record, {start, /*failed=*/!journal_status_.ok(), /*more=*/state_.step < last_step_, [this] {
                                 checkpoints_->before_update();
                               }});
}

// Reads the steps that are due, in order; `all`: every one that has been queued.
absl::Status Trainer::read_steps(bool all) {
  while (auto done = steps_->pop(all)) {
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
  add_throughput(record);
  report(record);
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

void Trainer::add_throughput(metrics::StepRecord& record) const {
  record.tokens_per_second =
      static_cast<double>(config_.train.global_batch_size * config_.data.seq_len) / record.seconds;
  if (device_.peak_bf16_flops > 0) {
    const metrics::TokenFlops student = metrics::token_flops(student_->config(), config_.data.seq_len);
    const metrics::TokenFlops teacher =
        teacher_ ? metrics::token_flops(teacher_->config(), config_.data.seq_len) : metrics::TokenFlops{};
    const double peak = device_.peak_bf16_flops * static_cast<double>(mesh_->world_size);
    record.mfu_causal = metrics::step_flops_per_token(student, teacher, true) * record.tokens_per_second / peak;
    record.mfu_full = metrics::step_flops_per_token(student, teacher, false) * record.tokens_per_second / peak;
  }
  record.peak_memory_bytes = metrics::peak_memory_bytes(environment_.device);
  record.peak_reserved_bytes = metrics::peak_reserved_bytes(environment_.device);
  record.eta_seconds = seconds_since(started_) / static_cast<double>(record.step - first_step_) *
      static_cast<double>(total_steps_ - record.step);
}

void Trainer::report(const metrics::StepRecord& record) {
  const absl::Status status = journal_->step(record);
  if (journal_status_.ok()) {
    journal_status_ = status;
  }
}

// What each sample of the next step loses by itself.
absl::Status Trainer::show_samples() {
  const auto lines = sample_losses(*micro_, *train_data_, state_.samples, config_.train.global_batch_size, *mesh_);
  const absl::Status status = sharding::agree(*mesh_, lines.status());
  if (status.ok()) {
    for (const std::string& line : *lines) {
      journal_->message(line);
    }
  }
  return status;
}

absl::Status Trainer::evaluate() {
  if (eval_data_ == nullptr || state_.evaluated_step == state_.step) {
    return absl::OkStatus();
  }
  if (absl::Status status = read_steps(/*all=*/true); !status.ok()) {
    return status;
  }
  mesh_->at(state_.step, "evaluation");
  const auto result = evaluate_dataset(
      *micro_, *eval_data_, config_.train.micro_batch_size, config_.eval.batches, teacher_ != nullptr, *mesh_, [this] {
        watchdog_->at(state_.step, "evaluation");
        return stop_requested();
      });
  if (!result.ok()) {
    return result.status();
  }
  if (result->interrupted) {
    stopped_ = true;
    return absl::OkStatus();
  }
  state_.evaluated_step = state_.step;
  return sharding::agree(*mesh_, journal_->evaluation(state_.step, result->means));
}

absl::Status Trainer::save_checkpoint(bool periodic) {
  if (absl::Status status = read_steps(/*all=*/true); !status.ok()) {
    return status; // the numbers of skipped steps are part of the state
  }
  mesh_->at(state_.step, "checkpoint");
  return periodic ? checkpoints_->save_periodic(state_) : checkpoints_->save_final(state_);
}

absl::Status Trainer::save_model() {
  mesh_->at(state_.step, "model");
  const absl::Status status = save_trained_model(config_, *student_, *mesh_);
  if (status.ok()) {
    journal_->message("wrote the model to " + trained_model_folder(config_));
  }
  return status;
}

absl::Status Trainer::close() {
  absl::Status status = read_steps(/*all=*/true);
  status = sharding::agree(*mesh_, status.ok() ? journal_status_ : status);
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
