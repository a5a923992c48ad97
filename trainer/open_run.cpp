// What a run does before its first step: folder, ranks, plan, models, checkpoint, journal, data.
#include <chrono>

#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/config/run_length.h"
#include "trainer/device/device_hooks.h"
#include "trainer/session.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/read_model.h"
#include "trainer/training_run.h"

namespace distill::trainer {
namespace {

std::vector<checkpoint::DataSetSize> data_set_sizes(const data::Dataset& data) {
  std::vector<checkpoint::DataSetSize> sizes;
  for (const data::SourceStats& stats : data.stats()) {
    sizes.push_back({stats.path, stats.documents, stats.tokens});
  }
  return sizes;
}

} // namespace

absl::StatusOr<std::unique_ptr<TrainingRun>> TrainingRun::build(
    std::unique_ptr<RunContext> context, const StartOptions& start, const launch::StopSignal& stop) {
  std::unique_ptr<TrainingRun> trainer(new TrainingRun(std::move(context), start, stop));
  const sharding::Mesh& mesh = trainer->mesh_;
  RETURN_IF_ERROR(sharding::agree(mesh, mesh.is_main() ? trainer->claim_folder() : absl::OkStatus()));
  auto prepared = prepare_run(*trainer->context_);
  RETURN_IF_ERROR(sharding::agree(mesh, prepared.status()));
  const RunContext& ready = *trainer->context_;
  RETURN_IF_ERROR(
      sharding::agree(mesh, settle_plan(ready.config(), ready.environment(), ready.ranks(), mesh, *prepared)));
  // Every rank has seen how much host memory is free before one takes its part.
  RETURN_IF_ERROR(sharding::agree(mesh, trainer->load(*std::move(prepared))));
  RETURN_IF_ERROR(trainer->open());
  return trainer;
}

absl::Status TrainingRun::claim_folder() {
  ASSIGN_OR_RETURN(folder_, RunFolder::claim(config_.run.dir, start_.mode, start_.parent_run));
  return absl::OkStatus();
}

// Takes host memory and reads the weights. The input files are no longer mapped afterwards.
absl::Status TrainingRun::load(PreparedRun prepared) {
  plan_ = std::make_shared<plan::Plan>(std::move(prepared.plan));
  report_ = std::move(prepared.report);
  warnings_ = std::move(prepared.warnings);
  const Environment& environment = context_->environment();
  Inputs& inputs = prepared.inputs;
  if (inputs.teacher.exists()) {
    ASSIGN_OR_RETURN(
        float8_error_,
        float8_gate::check_teacher(
            config_, environment, mesh_, inputs.teacher.model(),
            inputs.eval_data ? *inputs.eval_data : *inputs.train_data));
    if (float8_error_) {
      report_.push_back(absl::StrCat("float8 teacher against the same in its compute dtype: ", float8_error_->text()));
    }
  }
  auto memory = take_host_memory(environment, *plan_);
  RETURN_IF_ERROR(sharding::agree(mesh_, memory.status())); // the ranks read a float8 teacher together
  const auto began = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(
      models_,
      load_models(
          plan_->shape.config, environment, mesh_, inputs.student, inputs.teacher, std::move(memory->optimizer)));
  device::synchronize(environment.device);
  const std::chrono::duration<double> loading = std::chrono::steady_clock::now() - began;
  report_.push_back(absl::StrFormat("models: loaded or initialised in %.1f s", loading.count()));
  step_ = std::make_unique<TrainStep>(
      config_, mesh_, models_, ActivationMemory{plan_->shape.policies, std::move(memory->activations)});
  throughput_ = std::make_unique<metrics::Throughput>(
      environment.device, models_.student->config(), models_.teacher.spec.flops(plan_->shape.teacher_seq_len()),
      config_.data.seq_len, plan_->shape.teacher_seq_len(), config_.train.global_batch_size * config_.data.seq_len,
      mesh_.world_size);
  step_->micro_batches().watch_teacher_tokens(std::move(inputs.teacher_tokens));
  train_data_ = std::move(inputs.train_data);
  eval_data_ = std::move(inputs.eval_data);
  if (inputs.samples) {
    samples_ = std::make_unique<SampleGenerator>(config_, *std::move(inputs.samples), step_->micro_batches(), mesh_);
  }
  return absl::OkStatus();
}

// From here on the run folder changes.
absl::Status TrainingRun::open() {
  const checkpoint::RunIdentity own{
      describe_shape(models_.student->config()), "AdamW, float32 moments", describe_data(*train_data_),
      base::hex(train_data_->tokenizer_hash()), data_set_sizes(*train_data_)};
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
    RETURN_IF_ERROR(sharding::agree(mesh_, train_data_->check_teacher_rows()));
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
  open_data();
  return absl::OkStatus();
}

absl::Status TrainingRun::open_journal(const std::optional<checkpoint::Resumed>& resumed) {
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
        !models_.teacher.weights.empty() && !config_.parallel.shard_teacher ? ", the teacher whole on each" : ""));
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

std::string TrainingRun::gathers_line() const {
  const bool without_room = mesh_.peers != nullptr && !plan_->shape.copies();
  return absl::StrFormat(
      "gathers: %s; %d blocks are held at a time",
      without_room ? "by all-gathers: there is no room for copies, or a better use for it" : mesh_.gather_note,
      plan_->shape.config.parallel.slots);
}

void TrainingRun::open_data() {
  const int64_t micro = config_.train.micro_batch_size;
  const int64_t micro_batches = config_.train.global_batch_size / mesh_.samples_together(micro);
  prefetcher_ = std::make_unique<data::Prefetcher>(
      train_data_, data::BatchSchedule{mesh_.own_first(state_.samples, micro), micro, mesh_.samples_together(micro)},
      read_ahead(micro_batches, models_.teacher.spec.row_bytes()));
  BatchLoader::Hooks hooks;
  hooks.asked_to_stop = [this] { return stop_.received() != 0; };
  hooks.own_writers = [this] {
    const checkpoint::Saver::Vote vote = checkpointer_->vote();
    return BatchLoader::Writers{vote.writing, vote.failed};
  };
  hooks.take_writers = [this](const BatchLoader::Writers& sums) {
    return checkpointer_->advance({sums.writing, sums.failed});
  };
  loader_ = std::make_unique<BatchLoader>(mesh_, *prefetcher_, micro_batches, std::move(hooks));
}

} // namespace distill::trainer
