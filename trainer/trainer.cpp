#include "trainer/trainer.h"

#include <chrono>

#include "data/prefetch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/components.h"
#include "trainer/config/dump.h"
#include "trainer/config/rules.h"
#include "trainer/evaluation.h"
#include "trainer/launch/ranks.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/device.h"
#include "trainer/metrics/flops.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/trace.h"
#include "trainer/models/save_model.h"
#include "trainer/optim/adamw.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/ranks.h"
#include "trainer/run_folder.h"
#include "trainer/run_journal.h"
#include "trainer/start_report.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A run from its first step to its last, on one rank.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> build(
      const config::Config& config, StartMode mode, const launch::RankInfo& ranks);
  absl::StatusOr<RunResult> run();

 private:
  explicit Trainer(const config::Config& config) : config_(config) {}
  absl::Status read_inputs();
  absl::Status open(StartMode mode);
  absl::Status resume();
  absl::StatusOr<std::vector<data::Batch>> global_batch();
  absl::StatusOr<metrics::StepRecord> step();
  void add_throughput(metrics::StepRecord& record, Clock::time_point start) const;
  absl::Status report(const metrics::StepRecord& record);
  absl::Status evaluate();
  absl::Status save_checkpoint();
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
  std::unique_ptr<sharding::Mesh> mesh_;
  std::vector<std::string> start_report_;
  Slots slots_; // outlive the models that use them
  std::unique_ptr<sharding::ModelShards> student_, teacher_;
  std::unique_ptr<data::Dataset> train_data_, eval_data_;
  std::unique_ptr<data::Prefetcher> batches_; // after the data it reads
  std::unique_ptr<MicroStep> micro_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::optional<RunJournal> journal_;
  launch::StopSignal stop_;
  metrics::DeviceInfo device_;
  checkpoint::TrainState state_;
  int64_t total_steps_ = 0;
  int64_t saved_step_ = -1, evaluated_step_ = -1;
  int64_t first_step_ = 0; // of this process
  bool stopped_ = false;
  Clock::time_point started_;
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::build(
    const config::Config& config, StartMode mode, const launch::RankInfo& ranks) {
  auto trainer = std::unique_ptr<Trainer>(new Trainer(config));
  auto environment = resolve_environment(config, ranks.local_rank);
  if (!environment.ok()) {
    return environment.status();
  }
  trainer->environment_ = *environment;
  configure_libtorch(config.train, environment->device);
  auto mesh = join_ranks(config, ranks, environment->device);
  if (!mesh.ok()) {
    return mesh.status();
  }
  trainer->mesh_ = *std::move(mesh);
  absl::Status status;
  if (trainer->mesh_->is_main()) {
    status = check_run_folder(config.run.dir, mode);
  }
  status = sharding::agree(*trainer->mesh_, status);
  if (status.ok()) {
    status = sharding::agree(*trainer->mesh_, trainer->read_inputs());
  }
  if (status.ok()) {
    status = trainer->open(mode);
  }
  return status.ok() ? absl::StatusOr<std::unique_ptr<Trainer>>(std::move(trainer)) : status;
}

// Everything that is only read: data, models.
absl::Status Trainer::read_inputs() {
  device_ = metrics::device_info(environment_.device);
  auto inputs = open_inputs(config_, environment_, config::Purpose::kTrain);
  if (!inputs.ok()) {
    return inputs.status();
  }
  start_report_ = start_report(config_, environment_, *inputs);
  train_data_ = std::move(inputs->train_data);
  eval_data_ = std::move(inputs->eval_data);
  student_ = load_model(environment_, inputs->student, Role::kStudent, mesh_->shard_rank, mesh_->shard_size);
  if (inputs->teacher) {
    teacher_ = load_model(environment_, *inputs->teacher, Role::kTeacher, mesh_->shard_rank, mesh_->shard_size);
  }
  slots_ = make_slots(config_.parallel, *mesh_, *student_, teacher_.get());
  micro_ = std::make_unique<MicroStep>(config_, *student_, teacher_.get());
  optimizer_ = std::make_unique<optim::AdamW>(*student_, config_.optimizer);
  total_steps_ = config::total_steps(config_);
  return absl::OkStatus();
}

// From here on the run folder changes.
absl::Status Trainer::open(StartMode mode) {
  absl::Status status = sharding::check_equal_on_all_ranks(
      *mesh_, "configuration, model shape or data", config::dump(config_) + identity().model + identity().data);
  if (status.ok()) {
    status = sharding::agree(*mesh_, mesh_->is_main() ? open_run_folder(config_.run.dir, mode) : absl::OkStatus());
  }
  if (status.ok() && mode == StartMode::kResume) {
    status = sharding::agree(*mesh_, resume());
  }
  if (!status.ok()) {
    return status;
  }
  auto journal = RunJournal::open(config_, mesh_->is_main(), state_.step);
  status = sharding::agree(*mesh_, journal.status());
  if (!status.ok()) {
    return status;
  }
  journal_ = *std::move(journal);
  for (const std::string& line : start_report_) {
    journal_->info(line);
  }
  if (mesh_->world_size > 1) {
    journal_->info(absl::StrFormat(
        "ranks: %d, sharded over %d, %d replica(s)", mesh_->world_size, mesh_->shard_size, mesh_->replicate_size));
  }
  if (mode == StartMode::kResume) {
    journal_->info(absl::StrFormat("resumed after step %d (%d samples)", state_.step, state_.samples));
  }
  return absl::OkStatus();
}

absl::Status Trainer::resume() {
  const auto folder = checkpoint::newest_complete(config_.run.dir);
  if (!folder.ok()) {
    return folder.status();
  }
  if (!folder->has_value()) {
    return absl::NotFoundError(absl::StrCat(
        "--resume: ", config_.run.dir, "/checkpoints holds no complete checkpoint; start afresh with --overwrite"));
  }
  const auto state = checkpoint::load(**folder, identity(), *student_, *optimizer_);
  if (!state.ok()) {
    return state.status();
  }
  state_ = *state;
  saved_step_ = state_.step;
  return absl::OkStatus();
}

checkpoint::RunIdentity Trainer::identity() const {
  return {describe_shape(student_->config()), describe_data(*train_data_)};
}

absl::StatusOr<RunResult> Trainer::run() {
  started_ = Clock::now();
  first_step_ = state_.step;
  const int64_t micro = config_.train.micro_batch_size;
  batches_ = std::make_unique<data::Prefetcher>(
      *train_data_, data::BatchSchedule{state_.samples + mesh_->rank * micro, micro, mesh_->world_size * micro},
      /*depth=*/2 * config_.train.global_batch_size / (micro * mesh_->world_size));
  metrics::TraceRecorder trace(
      config_.profile.trace_start, config_.profile.trace_steps, environment_.device.is_cuda(),
      absl::StrCat(config_.run.dir, "/trace-rank", mesh_->rank, ".json"));
  if (config_.eval.at_start && state_.step == 0) {
    if (absl::Status status = evaluate(); !status.ok()) {
      return status;
    }
  }
  while (state_.step < total_steps_ && !(stopped_ = stopped_ || stop_requested())) {
    trace.before_step(state_.step + 1);
    const auto record = step();
    if (!record.ok()) {
      return record.status();
    }
    if (trace.after_step(record->step)) {
      journal_->message("wrote the trace to " + trace.path());
    }
    absl::Status status = report(*record);
    if (status.ok() && due(config_.eval.every)) {
      status = evaluate();
    }
    if (status.ok() && due(config_.checkpoint.every)) {
      status = save_checkpoint();
    }
    if (!status.ok()) {
      return status;
    }
  }
  if (absl::Status status = close(); !status.ok()) {
    return status;
  }
  return RunResult{stopped_ && state_.step < total_steps_, state_.step};
}

// This rank's micro-batches of the next global batch. All of them are read before the first one runs, since the loss is
// divided by the number of valid tokens of the whole batch.
absl::StatusOr<std::vector<data::Batch>> Trainer::global_batch() {
  std::vector<data::Batch> batches;
  const int64_t samples = config_.train.micro_batch_size * mesh_->world_size;
  for (int64_t first = 0; first < config_.train.global_batch_size; first += samples) {
    auto batch = batches_->next();
    if (!batch.ok()) {
      return batch.status();
    }
    batches.push_back(*std::move(batch));
  }
  return batches;
}

absl::StatusOr<metrics::StepRecord> Trainer::step() {
  const Clock::time_point start = Clock::now();
  const auto batches = global_batch();
  if (!batches.ok()) {
    return batches.status();
  }
  int64_t valid_tokens = 0;
  for (const data::Batch& batch : *batches) {
    valid_tokens += batch.valid_tokens;
  }
  valid_tokens = sharding::sum_over_ranks(*mesh_, valid_tokens);
  student_->zero_gradients();
  at::Tensor sums_K = micro_->zero_sums();
  for (const data::Batch& batch : *batches) {
    micro_->train(batch, 1.0 / static_cast<double>(std::max<int64_t>(1, valid_tokens)), sums_K);
  }
  micro_->phases().begin(metrics::Phase::kOptimizer);
  student_->finish_gradients();
  const optim::GradNorm grad_norm =
      optim::measure_grad_norm(*student_, config_.optimizer.max_grad_norm, mesh_->reduce.get());
  const double lr = optim::learning_rate(config_.scheduler, config_.optimizer.lr, state_.step, total_steps_);
  optimizer_->step(lr, grad_norm);
  if (mesh_->world != nullptr) {
    mesh_->world->all_reduce(sums_K);
  }

  metrics::StepRecord record;
  record.means = metrics::loss_means(sums_to_host(sums_K), valid_tokens, teacher_ != nullptr);
  record.grad_norm = grad_norm.norm.item<float>();
  record.skipped = !std::isfinite(record.grad_norm);
  record.lr = lr;
  state_.step += 1;
  state_.samples += config_.train.global_batch_size;
  state_.tokens += config_.train.global_batch_size * config_.data.seq_len;
  state_.skipped_total += record.skipped ? 1 : 0;
  state_.skipped_in_row = record.skipped ? state_.skipped_in_row + 1 : 0;
  record.step = state_.step;
  record.total_steps = total_steps_;
  record.skipped_total = state_.skipped_total;
  record.tokens = state_.tokens;
  record.phases = micro_->phases().finish();
  add_throughput(record, start);
  return record;
}

void Trainer::add_throughput(metrics::StepRecord& record, Clock::time_point start) const {
  record.seconds = seconds_since(start);
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
  record.eta_seconds = seconds_since(started_) / static_cast<double>(state_.step - first_step_) *
      static_cast<double>(total_steps_ - state_.step);
}

absl::Status Trainer::report(const metrics::StepRecord& record) {
  if (absl::Status status = sharding::agree(*mesh_, journal_->step(record)); !status.ok()) {
    return status;
  }
  if (record.skipped && mesh_->is_main()) {
    metrics::log_warning(absl::StrFormat(
        "step %d: gradients are not finite (loss %g); the step was skipped (%d in a row, %d in all)", record.step,
        record.means.rows[losses::kLoss], state_.skipped_in_row, state_.skipped_total));
  }
  if (state_.skipped_in_row >= config_.train.max_skipped_steps) {
    return absl::AbortedError(absl::StrFormat(
        "step %d: %d steps in a row had gradients that are not finite (train.max_skipped_steps: %d); lower "
        "optimizer.lr, or look at the samples before %d",
        record.step, state_.skipped_in_row, config_.train.max_skipped_steps, state_.samples));
  }
  return absl::OkStatus();
}

absl::Status Trainer::evaluate() {
  if (eval_data_ == nullptr || evaluated_step_ == state_.step) {
    return absl::OkStatus();
  }
  const auto result = evaluate_dataset(
      *micro_, *eval_data_, config_.train.micro_batch_size, config_.eval.batches, teacher_ != nullptr, *mesh_,
      [this] { return stop_requested(); });
  if (!result.ok()) {
    return result.status();
  }
  if (result->interrupted) {
    stopped_ = true;
    return absl::OkStatus();
  }
  evaluated_step_ = state_.step;
  return sharding::agree(*mesh_, journal_->evaluation(state_.step, result->means));
}

absl::Status Trainer::save_checkpoint() {
  if (saved_step_ == state_.step) {
    return absl::OkStatus();
  }
  const auto folder =
      checkpoint::save(config_.run.dir, state_, identity(), *student_, *optimizer_, config_.checkpoint.keep, *mesh_);
  if (!folder.ok()) {
    return folder.status();
  }
  saved_step_ = state_.step;
  journal_->message("saved " + *folder);
  return absl::OkStatus();
}

// The trained student as a Hugging Face folder. Every rank takes part in gathering; the main one writes.
absl::Status Trainer::save_model() {
  models::SaveOptions options;
  options.config_folder = config_.student.path;
  options.tokenizer_folder = fs::is_directory(config_.student.tokenizer) ? config_.student.tokenizer : "";
  const std::string& dtype =
      config_.checkpoint.model_dtype == "auto" ? student_->config().dtype : config_.checkpoint.model_dtype;
  options.dtype = dtype == "float32" ? at::kFloat : dtype == "float16" ? at::kHalf : at::kBFloat16;
  options.replace = true;
  const std::string folder = config_.run.dir + "/model";
  int64_t gathered = 0;
  const auto flat = [&](size_t unit) -> absl::StatusOr<at::Tensor> {
    ++gathered;
    return student_->gather_master(static_cast<int64_t>(unit), mesh_->gather.get());
  };
  absl::Status status;
  if (mesh_->is_main()) {
    status = models::save_model(folder, student_->config(), flat, options);
  }
  while (gathered < student_->num_units()) { // ranks that write nothing, or a writer that failed half-way
    flat(static_cast<size_t>(gathered)).IgnoreError();
  }
  status = sharding::agree(*mesh_, status);
  if (status.ok()) {
    journal_->message("wrote the model to " + folder);
  }
  return status;
}

absl::Status Trainer::close() {
  const bool finished = state_.step >= total_steps_;
  absl::Status status = finished && config_.eval.every > 0 ? evaluate() : absl::OkStatus();
  const bool write = !finished || config_.checkpoint.at_end;
  if (status.ok() && write) {
    status = save_checkpoint();
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

absl::StatusOr<RunResult> train(const config::Config& config, StartMode mode) {
  const auto ranks = launch::detect_ranks(launch::process_environ());
  if (!ranks.ok()) {
    return ranks.status();
  }
  auto trainer = Trainer::build(config, mode, *ranks);
  if (!trainer.ok()) {
    return trainer.status();
  }
  return (*trainer)->run();
}

} // namespace distill::trainer
