#include "trainer/open_run.h"

#include <chrono>
#include <filesystem>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/config/lora.h"
#include "trainer/config/teachers.h"
#include "trainer/device/device_hooks.h"
#include "trainer/device/device_info.h"
#include "trainer/dropped_mass_check.h"
#include "trainer/float8_gate/gate.h"
#include "trainer/run_folder/sessions.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/prepared_run.h"
#include "trainer/setup/read_model.h"
#include "trainer/step/head_plan.h"

namespace distill::trainer {
namespace {

using sharding::agree;

// What the journal has to know of the start.
struct StartNotes {
  std::vector<std::string> lines, warnings; // the first ones of the log
  double float8_error = 0; // mean KL of a float8 teacher to itself without float8, nats; 0: not measured
};

// Measures how far a float8 teacher is from the same teacher without float8, and the float8 base of a student's
// adapters from the same base; an error of the teacher's above the limits ends the run.
absl::Status check_float8_models(const RunContext& context, const Inputs& inputs, StartNotes& notes) {
  if (inputs.student.config.adapter) {
    ASSIGN_OR_RETURN(
        const std::optional<float8_gate::TeacherError> error,
        float8_gate::measure_base(
            context.config(), context.environment(), context.mesh(), inputs.student,
            inputs.eval_data ? *inputs.eval_data : *inputs.train_data));
    if (error) {
      notes.lines.push_back(
          absl::StrCat("the student's float8 base against the same in its compute dtype: ", error->text()));
    }
  }
  const std::vector<config::Config> configs = config::configs_of_teachers(context.config());
  const auto has_rows_in_eval = [&](size_t teacher) {
    return inputs.eval_data != nullptr && inputs.eval_data->teacher_shares()[teacher] > 0;
  };
  base::ProblemList refused;
  for (size_t i = 0; i < configs.size(); ++i) {
    if (!inputs.teachers[i].exists()) {
      continue;
    }
    const auto error = float8_gate::check_teacher(
        configs[i], environment_of_teacher(configs[i], context.environment()), context.mesh(),
        inputs.teachers[i].model(), has_rows_in_eval(i) ? *inputs.eval_data : *inputs.train_data);
    if (absl::IsFailedPrecondition(error.status())) { // which all ranks have found together
      refused.add(config::of_teacher(configs[i], error.status()));
      continue;
    }
    RETURN_IF_ERROR(config::of_teacher(configs[i], error.status()));
    if (*error) {
      notes.float8_error = std::max(notes.float8_error, (*error)->mean_kl);
      notes.lines.push_back(absl::StrCat(
          "float8 ", config::text_of_teacher(configs[i]),
          " against the same in its compute dtype: ", (*error)->text()));
    }
  }
  return refused.status();
}

// Takes host memory and reads the weights. The input files are no longer mapped afterwards.
absl::Status load(PreparedRun prepared, OpenedRun& run, StartNotes& notes) {
  const RunContext& context = *run.context;
  const config::Config& config = context.config();
  const sharding::Mesh& mesh = context.mesh();
  const Environment& environment = context.environment();
  Inputs& inputs = prepared.inputs;
  run.plan = std::make_shared<plan::Plan>(std::move(prepared.plan));
  notes = {std::move(prepared.report), std::move(prepared.warnings)};
  RETURN_IF_ERROR(check_float8_models(context, inputs, notes));
  auto memory = take_host_memory(environment, *run.plan);
  RETURN_IF_ERROR(agree(mesh, memory.status())); // the ranks read a float8 teacher together
  const plan::RunShape& shape = run.plan->shape;
  const auto began = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(
      LoadedModels models,
      load_models(
          shape.config, environment, mesh, inputs.student, inputs.teachers, shape.state(std::move(memory->optimizer))));
  run.models = std::make_unique<LoadedModels>(std::move(models));
  device::synchronize(environment.device);
  const std::chrono::duration<double> loading = std::chrono::steady_clock::now() - began;
  notes.lines.push_back(absl::StrFormat("models: loaded or initialised in %.1f s", loading.count()));
  run.step = std::make_unique<TrainStep>(
      config, mesh, *run.models, ActivationMemory{shape.policies, std::move(memory->activations)}, shape.blocks());
  run.throughput = std::make_unique<metrics::Throughput>(
      environment.device, run.models->student->config(),
      inputs.teachers.flops(shape.teacher_seq_len(), inputs.train_data->teacher_shares()), config.data.seq_len,
      shape.teacher_seq_len(), config.train.global_batch_size * config.data.seq_len, mesh.world_size);
  // The documents of an on-policy run without data.train are its prompts: the rounds are judged.
  RETURN_IF_ERROR(check_dropped_mass(
      config, run.step->micro_batches(), {inputs.eval_data, config.data.train.empty() ? nullptr : inputs.train_data},
      mesh));
  run.data = std::make_unique<TrainingData>(std::move(inputs.train_data));
  run.eval_data = std::move(inputs.eval_data);
  if (inputs.onpolicy) {
    run.rounds = std::make_unique<onpolicy::Rounds>(
        config, *std::move(inputs.onpolicy), *run.models->student, mesh, run.start.parent_run);
  }
  if (inputs.samples) {
    run.samples =
        std::make_unique<SampleGenerator>(config, *std::move(inputs.samples), run.step->micro_batches(), mesh);
  }
  return absl::OkStatus();
}

// Whether a run that is resumed was ended in its first round, before there was a checkpoint: it begins again, and goes
// on with the completions that are there.
bool begins_with_its_rounds(const OpenedRun& run) {
  namespace fs = std::filesystem;
  const std::string& dir = run.context->config().run.dir;
  int64_t without = 0;
  if (run.rounds != nullptr && run.start.resume_from.empty() && run.context->mesh().is_main()) {
    std::error_code error;
    without =
        checkpoint::complete_checkpoints(dir).empty() && fs::exists(fs::path(dir) / onpolicy::kRoundsFolder, error);
  }
  return sharding::sum_over_ranks(run.context->mesh(), without) > 0;
}

// Continues from a checkpoint where the run is to be resumed; nullopt: it begins. From here on the run folder changes.
absl::StatusOr<std::optional<checkpoint::Resumed>> resume(OpenedRun& run) {
  const config::Config& config = run.context->config();
  const sharding::Mesh& mesh = run.context->mesh();
  const checkpoint::RunIdentity own{
      describe_shape(run.models->student->config()),
      absl::StrFormat("AdamW, %s moments", base::enum_name(config.optimizer.moments)),
      base::hex(run.data->set().tokenizer_hash())};
  RETURN_IF_ERROR(check_same_inputs(
      config, mesh, absl::StrCat(run.data->stages().back().data.text, own.tokenizer),
      absl::StrCat(own.model, own.optimizer, run.start.resume_from)));
  if (run.samples && mesh.host != nullptr) {
    RETURN_IF_ERROR(sharding::check_equal_on_all_ranks(
        mesh, "data.eval (the prompts of eval.samples)", run.samples->fingerprint()));
  }
  RETURN_IF_ERROR(agree(mesh, run.folder ? run.folder->remove_earlier_run() : absl::OkStatus()));
  auto model_files = config::hashes_beside_checkpoints(config);
  RETURN_IF_ERROR(agree(mesh, model_files.status()));
  run.checkpoints = std::make_unique<RunCheckpoints>(
      config, own, *std::move(model_files), *run.data, *run.models->student, run.step->optimizer(), mesh);
  if (run.start.mode != StartMode::kResume && run.start.resume_from.empty()) {
    return std::optional<checkpoint::Resumed>();
  }
  // On-policy rounds may follow other data, those of an earlier phase, but data.train is the same in all rounds.
  const auto other_data_allowed = [&](const checkpoint::TrainState& state) {
    return run.start.other_data_allowed || (config.onpolicy.enabled() && !state.round.begun());
  };
  if (begins_with_its_rounds(run)) {
    return std::optional<checkpoint::Resumed>();
  }
  ASSIGN_OR_RETURN(checkpoint::Resumed resumed, run.checkpoints->resume(run.start.resume_from, other_data_allowed));
  run.state = resumed.state;
  RETURN_IF_ERROR(agree(mesh, run.data->set().check_teacher_rows()));
  return std::optional(std::move(resumed));
}

absl::Status set_length(OpenedRun& run) {
  run.total_steps = run.data->total_steps(run.context->config(), run.state);
  const int64_t last = run.start.last_step;
  if (last > run.total_steps) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--step: expected a step of the run, 1 to %d, found %d", run.total_steps, last));
  }
  run.last_step = last > 0 ? last : run.total_steps;
  if (run.rounds != nullptr) {
    run.rounds->set_length(run.total_steps);
  }
  return absl::OkStatus();
}

// Adds the line of this start to sessions.jsonl.
absl::Status record_start(const OpenedRun& run, const std::optional<checkpoint::Resumed>& resumed) {
  const at::Device device = run.context->environment().device;
  return record_session_start(
      run.context->config().run.dir,
      {.program = "distill " DISTILL_VERSION,
       .host = host_name(),
       .device = absl::StrFormat("%s (%s)", device.str(), device::device_info(device).name),
       .ranks = run.context->mesh().world_size,
       .first_step = run.state.step,
       .total_steps = run.total_steps,
       .resumed_from = resumed ? resumed->folder : "",
       .plan = run.plan->json()});
}

// How units are gathered, and why.
std::string gathers_line(const sharding::Mesh& mesh, const plan::RunShape& shape) {
  const bool without_room = mesh.peers != nullptr && !shape.copies();
  return absl::StrFormat(
      "gathers: %s; %d blocks are held at a time",
      without_room ? "by all-gathers: there is no room for copies, or a better use for it" : mesh.gather_note,
      shape.config.parallel.slots);
}

metrics::KeptSteps kept_lines(const checkpoint::TrainState& state) {
  return {state.step, state.evaluated_step, state.round.begun() ? state.round.first_step : -1};
}

absl::Status open_journal(const StartNotes& notes, const std::optional<checkpoint::Resumed>& resumed, OpenedRun& run) {
  const config::Config& config = run.context->config();
  const sharding::Mesh& mesh = run.context->mesh();
  ASSIGN_OR_RETURN(
      RunJournal journal, RunJournal::open(config, mesh.is_main(), kept_lines(run.state), notes.float8_error));
  run.journal = std::make_unique<RunJournal>(std::move(journal));
  for (const std::string& note : run.folder ? run.folder->notes() : std::vector<std::string>()) {
    run.journal->warning(note);
  }
  for (const std::string& line : notes.lines) {
    run.journal->info(line);
  }
  for (const std::string& line : notes.warnings) {
    run.journal->warning(line);
  }
  if (mesh.world_size > 1) {
    const bool whole = run.plan->shape.has_whole_teacher();
    run.journal->info(absl::StrFormat(
        "ranks: %d, sharded over %d, %d replica(s)%s", mesh.world_size, mesh.shard_size, mesh.replicate_size,
        whole ? ", the teacher whole on each" : ""));
    run.journal->info(gathers_line(mesh, run.plan->shape));
  }
  if (resumed) {
    for (const std::string& line : describe_resumption(*resumed, config)) {
      run.journal->info(line);
    }
  }
  return mesh.is_main() ? record_start(run, resumed) : absl::OkStatus();
}

// The data of the run where it stands. In a round, its token shard must be there; where a round is due, it is written
// when the run begins.
absl::Status open_data(const launch::StopSignal& stop, OpenedRun& run) {
  BatchLoader::Hooks hooks;
  hooks.asked_to_stop = [&stop] { return stop.received() != 0; };
  RunCheckpoints* checkpoints = run.checkpoints.get();
  hooks.own_writing = [checkpoints] { return checkpoints->own_writing(); };
  hooks.take_writing = [checkpoints](const sharding::WritingRanks& ranks) { return checkpoints->advance(ranks); };
  run.batches = std::make_unique<RunBatches>(
      run.context->config(), run.context->mesh(), *run.data, run.plan->shape.teachers.row_bytes(), std::move(hooks));
  if (run.rounds == nullptr) {
    run.batches->read_train(run.state);
  } else if (!run.batches->round_is_due(run.state)) {
    ASSIGN_OR_RETURN(const onpolicy::Round round, run.rounds->reopen(run.state.round));
    run.batches->read_round(run.state, round.data);
  }
  return absl::OkStatus();
}

absl::Status claim_folder(OpenedRun& run) {
  ASSIGN_OR_RETURN(run.folder, RunFolder::claim(run.context->config().run.dir, run.start.mode, run.start.parent_run));
  return absl::OkStatus();
}

} // namespace

absl::StatusOr<OpenedRun> open_run(
    std::unique_ptr<RunContext> context, const StartOptions& start, const launch::StopSignal& stop) {
  OpenedRun run;
  run.start = start;
  run.context = std::move(context);
  const RunContext& own = *run.context;
  const sharding::Mesh& mesh = own.mesh();
  RETURN_IF_ERROR(agree(mesh, mesh.is_main() ? claim_folder(run) : absl::OkStatus()));
  auto prepared = prepare_run(own);
  RETURN_IF_ERROR(agree(mesh, prepared.status()));
  RETURN_IF_ERROR(agree(mesh, settle_plan(own.config(), own.environment(), own.ranks(), mesh, *prepared)));
  // Every rank has seen how much host memory is free before one takes its part.
  StartNotes notes;
  RETURN_IF_ERROR(agree(mesh, load(*std::move(prepared), run, notes)));
  ASSIGN_OR_RETURN(const std::optional<checkpoint::Resumed> resumed, resume(run));
  RETURN_IF_ERROR(set_length(run));
  RETURN_IF_ERROR(agree(mesh, open_journal(notes, resumed, run)));
  run.checkpoints->open(*run.journal, own.ranks().local_world_size);
  RETURN_IF_ERROR(open_data(stop, run));
  return run;
}

} // namespace distill::trainer
