#include "trainer/trainer.h"

#include <chrono>

#include "data/prefetch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/components.h"
#include "trainer/config/dump.h"
#include "trainer/config/rules.h"
#include "trainer/evaluation.h"
#include "trainer/launch/stop_signal.h"
#include "trainer/metrics/device.h"
#include "trainer/metrics/flops.h"
#include "trainer/metrics/jsonl.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/progress.h"
#include "trainer/models/save_model.h"
#include "trainer/optim/adamw.h"
#include "trainer/optim/lr_schedule.h"
#include "trainer/run_folder.h"
#include "trainer/start_report.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A run from its first step to its last.
class Trainer {
 public:
  static absl::StatusOr<std::unique_ptr<Trainer>> build(const config::Config& config, StartMode mode);
  absl::StatusOr<RunResult> run();

 private:
  explicit Trainer(const config::Config& config) : config_(config) {}
  absl::Status open(StartMode mode);
  absl::StatusOr<std::vector<data::Batch>> global_batch();
  absl::StatusOr<metrics::StepRecord> step();
  absl::Status report(const metrics::StepRecord& record);
  absl::Status evaluate();
  absl::Status save_checkpoint();
  absl::Status save_model();
  absl::Status close();
  checkpoint::RunIdentity identity() const;
  bool due(int64_t every) const {
    return every > 0 && state_.step % every == 0;
  }

  config::Config config_;
  Environment environment_;
  std::vector<std::string> start_report_;
  std::unique_ptr<sharding::ModelShards> student_, teacher_;
  std::unique_ptr<data::Dataset> train_data_, eval_data_;
  std::unique_ptr<data::Prefetcher> batches_; // after the data it reads
  std::unique_ptr<MicroStep> micro_;
  std::unique_ptr<optim::AdamW> optimizer_;
  std::optional<metrics::JsonLines> metrics_file_;
  std::optional<metrics::Progress> progress_;
  launch::StopSignal stop_;
  metrics::DeviceInfo device_;
  checkpoint::TrainState state_;
  int64_t total_steps_ = 0;
  int64_t saved_step_ = -1, evaluated_step_ = -1;
  int64_t first_step_ = 0; // of this process
  Clock::time_point started_;
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::build(const config::Config& config, StartMode mode) {
  if (absl::Status status = check_run_folder(config.run.dir, mode); !status.ok()) {
    return status;
  }
  auto trainer = std::unique_ptr<Trainer>(new Trainer(config));
  configure_libtorch(config.train);
  auto environment = resolve_environment(config);
  if (!environment.ok()) {
    return environment.status();
  }
  trainer->environment_ = *environment;
  trainer->device_ = metrics::device_info(environment->device);
  auto inputs = open_inputs(config, *environment, config::Purpose::kTrain);
  if (!inputs.ok()) {
    return inputs.status();
  }
  trainer->start_report_ = start_report(config, *environment, *inputs);
  trainer->train_data_ = std::move(inputs->train_data);
  trainer->eval_data_ = std::move(inputs->eval_data);
  trainer->student_ = load_model(*environment, inputs->student, Role::kStudent);
  if (inputs->teacher) {
    trainer->teacher_ = load_model(*environment, *inputs->teacher, Role::kTeacher);
  }
  trainer->micro_ = std::make_unique<MicroStep>(trainer->config_, *trainer->student_, trainer->teacher_.get());
  trainer->optimizer_ = std::make_unique<optim::AdamW>(*trainer->student_, config.optimizer);
  trainer->total_steps_ = config::total_steps(config);
  if (absl::Status status = trainer->open(mode); !status.ok()) {
    return status;
  }
  return trainer;
}

// From here on the run folder changes.
absl::Status Trainer::open(StartMode mode) {
  const std::string& dir = config_.run.dir;
  if (absl::Status status = open_run_folder(dir, mode); !status.ok()) {
    return status;
  }
  if (mode == StartMode::kResume) {
    const auto folder = checkpoint::newest_complete(dir);
    if (!folder.ok()) {
      return folder.status();
    }
    if (!folder->has_value()) {
      return absl::NotFoundError(
          absl::StrCat("--resume: ", dir, "/checkpoints holds no complete checkpoint; start afresh with --overwrite"));
    }
    const auto state = checkpoint::load(**folder, identity(), *student_, *optimizer_);
    if (!state.ok()) {
      return state.status();
    }
    state_ = *state;
    saved_step_ = state_.step;
  }
  metrics::open_log_file(dir + "/log.txt");
  if (absl::Status status = config::write_config(config_, dir + "/config.yaml"); !status.ok()) {
    return status;
  }
  auto file = metrics::JsonLines::open(dir + "/metrics.jsonl", state_.step);
  if (!file.ok()) {
    return file.status();
  }
  metrics_file_ = std::move(*file);
  progress_.emplace(config_.run.progress, config_.run.log_every);
  for (const std::string& line : start_report_) {
    metrics::log_info(line);
  }
  if (mode == StartMode::kResume) {
    metrics::log_info(absl::StrFormat("resumed after step %d (%d samples)", state_.step, state_.samples));
  }
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
      *train_data_, data::BatchSchedule{state_.samples, micro, micro},
      /*depth=*/2 * config_.train.global_batch_size / micro);
  if (config_.eval.at_start && state_.step == 0) {
    if (absl::Status status = evaluate(); !status.ok()) {
      return status;
    }
  }
  while (state_.step < total_steps_ && stop_.received() == 0) {
    const auto record = step();
    if (!record.ok()) {
      return record.status();
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
  return RunResult{stop_.received() != 0 && state_.step < total_steps_, state_.step};
}

// The micro-batches of the next global batch. All of them are read before the first one runs, since the loss is divided
// by the number of valid tokens of the whole batch.
absl::StatusOr<std::vector<data::Batch>> Trainer::global_batch() {
  std::vector<data::Batch> batches;
  const int64_t micro = config_.train.micro_batch_size;
  for (int64_t first = 0; first < config_.train.global_batch_size; first += micro) {
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
  student_->zero_gradients();
  at::Tensor sums_K = micro_->zero_sums();
  for (const data::Batch& batch : *batches) {
    micro_->train(batch, 1.0 / static_cast<double>(std::max<int64_t>(1, valid_tokens)), sums_K);
  }
  const optim::GradNorm grad_norm = optim::measure_grad_norm(*student_, config_.optimizer.max_grad_norm);
  const double lr = optim::learning_rate(config_.scheduler, config_.optimizer.lr, state_.step, total_steps_);
  optimizer_->step(lr, grad_norm);

  metrics::StepRecord record;
  record.means = metrics::loss_means(sums_to_host(sums_K), valid_tokens, teacher_ != nullptr);
  record.grad_norm = grad_norm.norm.item<float>();
  record.skipped = !std::isfinite(record.grad_norm);
  record.lr = lr;
  const int64_t tokens = config_.train.global_batch_size * config_.data.seq_len;
  state_.step += 1;
  state_.samples += config_.train.global_batch_size;
  state_.tokens += tokens;
  state_.skipped_total += record.skipped ? 1 : 0;
  state_.skipped_in_row = record.skipped ? state_.skipped_in_row + 1 : 0;

  record.step = state_.step;
  record.total_steps = total_steps_;
  record.skipped_total = state_.skipped_total;
  record.tokens = state_.tokens;
  record.seconds = seconds_since(start);
  record.tokens_per_second = static_cast<double>(tokens) / record.seconds;
  if (device_.peak_bf16_flops > 0) {
    const metrics::TokenFlops student = metrics::token_flops(student_->config(), config_.data.seq_len);
    const metrics::TokenFlops teacher =
        teacher_ ? metrics::token_flops(teacher_->config(), config_.data.seq_len) : metrics::TokenFlops{};
    const auto mfu = [&](bool causal) {
      return metrics::step_flops_per_token(student, teacher, causal) * record.tokens_per_second /
          device_.peak_bf16_flops;
    };
    record.mfu_causal = mfu(true);
    record.mfu_full = mfu(false);
  }
  record.peak_memory_bytes = metrics::peak_memory_bytes(environment_.device);
  record.eta_seconds = seconds_since(started_) / static_cast<double>(state_.step - first_step_) *
      static_cast<double>(total_steps_ - state_.step);
  return record;
}

absl::Status Trainer::report(const metrics::StepRecord& record) {
  progress_->step(record);
  metrics::log_to_file(metrics::step_line(record));
  if (absl::Status status = metrics_file_->append(metrics::step_json(record)); !status.ok()) {
    return status;
  }
  if (record.skipped) {
    metrics::log_warning(absl::StrFormat(
        "step %d: gradients are not finite (loss %g); the step was skipped (%d in a row, %d in all)", record.step,
        record.means.rows[losses::kLoss], state_.skipped_in_row, state_.skipped_total));
  }
  if (config_.train.max_skipped_steps > 0 && state_.skipped_in_row >= config_.train.max_skipped_steps) {
    return absl::AbortedError(absl::StrFormat(
        "step %d: %d steps in a row had gradients that are not finite (train.max_skipped_steps: %d); lower optimizer.lr, "
        "or look at the samples before %d",
        record.step, state_.skipped_in_row, config_.train.max_skipped_steps, state_.samples));
  }
  return absl::OkStatus();
}

absl::Status Trainer::evaluate() {
  if (eval_data_ == nullptr || evaluated_step_ == state_.step) {
    return absl::OkStatus();
  }
  const auto result = evaluate_dataset(
      *micro_, *eval_data_, config_.train.micro_batch_size, config_.eval.batches, teacher_ != nullptr,
      [this] { return stop_.received() != 0; });
  if (!result.ok()) {
    return result.status();
  }
  if (result->interrupted) {
    return absl::OkStatus();
  }
  evaluated_step_ = state_.step;
  const std::string line = metrics::eval_line(state_.step, result->means);
  progress_->message(line);
  metrics::log_to_file(line);
  return metrics_file_->append(metrics::eval_json(state_.step, result->means));
}

absl::Status Trainer::save_checkpoint() {
  if (saved_step_ == state_.step) {
    return absl::OkStatus();
  }
  const auto folder =
      checkpoint::save(config_.run.dir, state_, identity(), *student_, *optimizer_, config_.checkpoint.keep);
  if (!folder.ok()) {
    return folder.status();
  }
  saved_step_ = state_.step;
  progress_->message("saved " + *folder);
  return absl::OkStatus();
}

// The trained student as a Hugging Face folder, in the dtype that its first weights were stored in.
absl::Status Trainer::save_model() {
  models::SaveOptions options;
  options.config_folder = config_.student.path;
  options.tokenizer_folder = fs::is_directory(config_.student.tokenizer) ? config_.student.tokenizer : "";
  const std::string& dtype =
      config_.checkpoint.model_dtype == "auto" ? student_->config().dtype : config_.checkpoint.model_dtype;
  options.dtype = dtype == "float32" ? at::kFloat : dtype == "float16" ? at::kHalf : at::kBFloat16;
  options.replace = true;
  const std::string folder = config_.run.dir + "/model";
  const auto flat = [this](size_t unit) -> absl::StatusOr<at::Tensor> { return student_->unit(unit).master; };
  absl::Status status = models::save_model(folder, student_->config(), flat, options);
  if (status.ok()) {
    progress_->message("wrote the model to " + folder);
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
    metrics::log_info(absl::StrFormat(
        "stopped by signal %d after step %d; the state is saved, continue with --resume", stop_.received(),
        state_.step));
  }
  return status;
}

} // namespace

absl::StatusOr<RunResult> train(const config::Config& config, StartMode mode) {
  auto trainer = Trainer::build(config, mode);
  if (!trainer.ok()) {
    return trainer.status();
  }
  return (*trainer)->run();
}

} // namespace distill::trainer
