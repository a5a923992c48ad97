#include "trainer/setup/inputs.h"

#include <filesystem>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/config/lora.h"
#include "trainer/config/run_length.h"
#include "trainer/config/teachers.h"
#include "trainer/hf/peft_folder.h"
#include "trainer/metrics/log.h"
#include "trainer/models/adapter_weights.h"
#include "trainer/models/renumbered_weights.h"
#include "trainer/setup/onpolicy_inputs.h"
#include "trainer/setup/read_model.h"
#include "trainer/setup/tokenizers.h"
#include "trainer/step/head_plan.h"

namespace distill::trainer {
namespace {

absl::Status check_length(
    const config::ModelSection& section, const models::ModelConfig& model, int64_t seq_len, const char* length_key) {
  const absl::Status status = models::check_sequence_length(model, seq_len);
  return status.ok() ? status
                     : absl::InvalidArgumentError(absl::StrCat(
                           section.folder(), "/config.json against ", length_key, ": ", std::string(status.message())));
}

void log_notes(const hf::Notes& notes) {
  for (const hf::Note& note : notes) {
    note.is_warning ? metrics::log_warning(note.text) : metrics::log_info(note.text);
  }
}

// The base that an adapter names. Where its weights can be read, they must be this model's.
absl::Status check_base(
    const config::ModelSection& section, const hf::PeftConfig& peft, int64_t seed, hf::Notes& notes) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path named = peft.base, own = section.path;
  if (peft.base.empty() || fs::weakly_canonical(named, error) == fs::weakly_canonical(own, error)) {
    return absl::OkStatus();
  }
  if (fs::exists(named / "config.json", error)) {
    config::ModelSection other = section;
    other.path = peft.base;
    ASSIGN_OR_RETURN(const std::string its, config::base_hash(other, seed));
    ASSIGN_OR_RETURN(const std::string hash, config::base_hash(section, seed));
    return its == hash ? absl::OkStatus()
                       : absl::InvalidArgumentError(absl::StrCat(
                             section.adapter, "/", hf::kPeftConfig, ": base_model_name_or_path: expected the model in ",
                             section.path, ", found ", peft.base, ", whose files have other weights"));
  }
  if (named.filename() != (own.has_filename() ? own : own.parent_path()).filename()) {
    notes.push_back(
        {absl::StrCat(
             section.adapter, ": its base is called ", peft.base, ", and the model is ", section.path,
             "; the shapes fit, the weights cannot be compared"),
         /*is_warning=*/true});
  }
  return absl::OkStatus();
}

// The weights of a model and, where it has one, of its adapter: of section.adapter, or the first values of a new one.
absl::StatusOr<models::ModelSource> open_model(
    const config::Config& config, const config::ModelSection& section, models::ModelConfig model, int64_t seed,
    hf::Notes& notes) {
  models::ModelSource source{std::move(model), nullptr, nullptr};
  models::ModelConfig base = source.config;
  base.adapter.reset();
  ASSIGN_OR_RETURN(source.weights, config::open_weights(section, base, seed, &notes));
  if (!source.config.adapter) {
    return source;
  }
  if (section.adapter.empty()) {
    source.adapter = models::initial_adapter(source.weights, static_cast<uint64_t>(config.train.seed));
    return source;
  }
  ASSIGN_OR_RETURN(const hf::PeftConfig peft, hf::read_peft_config(section.adapter));
  ASSIGN_OR_RETURN(const std::string hash, config::base_hash(section, seed));
  ASSIGN_OR_RETURN(source.adapter, hf::open_adapter(section.adapter, source.config, hash));
  RETURN_IF_ERROR(check_base(section, peft, seed, notes));
  return source;
}

absl::StatusOr<models::ModelSource> open_student(const config::Config& config) {
  hf::Notes notes;
  ASSIGN_OR_RETURN(models::ModelConfig model, read_student(config, &notes));
  RETURN_IF_ERROR(check_length(config.student, model, config.data.seq_len, "data.seq_len"));
  ASSIGN_OR_RETURN(
      models::ModelSource student, open_model(config, config.student, std::move(model), config.train.seed, notes));
  log_notes(notes);
  return student;
}

// The teacher's weights, whose tables get the rows of the student's tokens where the numbers differ.
absl::StatusOr<models::ModelSource> open_teacher_model(
    const config::Config& config, const Vocabulary& vocabulary, models::ModelConfig model, hf::Notes& notes) {
  const int64_t loaded = model.vocab_size;
  model.vocab_size = vocabulary.renumbered() ? vocabulary.folder_rows : loaded;
  ASSIGN_OR_RETURN(
      models::ModelSource source, open_model(config, config.teacher, std::move(model), config.teacher_seed(), notes));
  source.config.vocab_size = loaded;
  for (auto* weights : {&source.weights, &source.adapter}) {
    if (vocabulary.renumbered() && *weights != nullptr) {
      *weights = models::renumbered_weights(*weights, vocabulary.rows, vocabulary.folder_rows);
    }
  }
  return source;
}

absl::StatusOr<TeacherSpec> open_teacher(const config::Config& config, const RunTokenizers& tokenizers) {
  hf::Notes notes;
  ASSIGN_OR_RETURN(TeacherSpec teacher, read_teacher(config, &notes, &tokenizers));
  if (!teacher.exists()) {
    return teacher;
  }
  const models::ModelConfig& model = teacher.model().config;
  const bool longer = config.data.teacher_length() > config.data.seq_len;
  RETURN_IF_ERROR(check_length(
      config.teacher, model, longer ? config.data.teacher_seq_len : config.data.seq_len,
      longer ? "data.teacher_seq_len" : "data.seq_len"));
  std::vector<models::ModelSource> sources;
  for (const models::ModelSource* loaded : teacher.loaded()) {
    ASSIGN_OR_RETURN(sources.emplace_back(), open_teacher_model(config, teacher.vocabulary(), loaded->config, notes));
  }
  teacher.set_sources(sources);
  log_notes(notes);
  return teacher;
}

// Rows of the tables in the teacher's folder; 0: there is no teacher.
int64_t table_rows(const TeacherSpec& teacher) {
  return !teacher.exists()                ? 0
      : teacher.vocabulary().renumbered() ? teacher.vocabulary().folder_rows
                                          : teacher.model().config.vocab_size;
}

// `once`: every document is read once, in the order of the data, or with `shuffle` in the shuffled order.
absl::StatusOr<std::unique_ptr<data::Dataset>> open_data(
    const config::Config& config, const std::vector<config::DataSet>& sets, bool once,
    const std::vector<base::Digest>& tokenizers, const data::TokenLimits& limits, bool pin_memory, bool shuffle = false,
    const std::vector<std::shared_ptr<const data::TextAlignment>>& alignments = {}) {
  data::DataOptions options;
  for (const config::DataSet& set : sets) {
    options.sources.push_back({set.path, set.weight, set.teachers});
  }
  options.seq_len = config.data.seq_len;
  options.teacher_seq_len = config.data.teacher_seq_len;
  options.teacher_stream = config.has_teacher();
  options.packing = config.data.packing;
  options.shuffle = config.data.shuffle && (!once || shuffle);
  options.seed = config.data.seed;
  options.once = once;
  options.tokenizer_hashes = tokenizers;
  options.teachers = config.teacher_names();
  options.only_teacher = config.this_teacher;
  options.teacher_group = std::max<int64_t>(1, config.data.teacher_sequences);
  // The prompts of a run that is partly on-policy may be those of other teachers.
  options.every_teacher = !once && !(config.onpolicy.enabled() && config.onpolicy.mixes());
  options.limits = limits;
  options.alignments = alignments;
  options.pin_memory = pin_memory;
  return data::Dataset::open(options);
}

// Opens the cache of a teacher, checks it against the run, and lets the data sets read their rows from it. `config`:
// that of the teacher.
absl::Status open_teacher_rows(
    const config::Config& config, const Environment& environment, config::Purpose purpose,
    absl::Span<const base::Digest> tokenizers, const TeacherSpec& teacher, Inputs& inputs) {
  ASSIGN_OR_RETURN(
      const auto index, open_cache(config, environment, teacher, inputs.student.config.vocab_size, tokenizers));
  inputs.teacher_texts.push_back(describe_cache(config::text_of_teacher(config), *index));
  base::ProblemList problems;
  if (inputs.train_data) {
    problems.add(attach_rows(config, environment, index, *inputs.train_data, "data.train").status());
  }
  // A run without evaluations does not read data.eval.
  const bool evaluates = purpose != config::Purpose::kTrain || config.eval.during_training();
  if (inputs.eval_data && evaluates) {
    problems.add(attach_rows(config, environment, index, *inputs.eval_data, "data.eval").status());
  }
  return problems.status();
}

// With train.epochs the data say how many steps the run has; other lengths were checked with the configuration.
absl::Status check_schedule(const config::Config& config, const data::Dataset& data) {
  const int64_t steps = config::total_steps(config, data.num_samples());
  const auto fault = config.train.epochs > 0 ? config::schedule_fault(config.scheduler, steps) : std::nullopt;
  if (!fault) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: expected %s (train.epochs %g of %d sequences, train.global_batch_size %d), found %s", fault->key,
      fault->expected, config.train.epochs, data.num_samples(), config.train.global_batch_size, fault->found));
}

} // namespace

absl::StatusOr<Inputs> open_inputs(
    const config::Config& config, const Environment& environment, config::Purpose purpose) {
  base::ProblemList problems;
  auto student = problems.take(open_student(config));
  const std::vector<config::Config> configs = config::configs_of_teachers(config);
  std::optional<Teachers> teachers(std::in_place);
  RunTokenizers tokenizers;
  std::vector<std::shared_ptr<const data::TextAlignment>> alignments;
  data::TokenLimits limits; // stay empty where the models cannot be read: nothing is checked then
  Inputs inputs;
  for (const config::Config& own : configs) {
    const auto read = read_tokenizers(own);
    problems.add(config::of_teacher(own, read.status()));
    const RunTokenizers known = read.ok() ? *read : RunTokenizers{};
    if (read.ok()) {
      log_tokenizers(own, known);
      tokenizers.add(known);
    }
    auto opened = open_teacher(own, known);
    problems.add(config::of_teacher(own, opened.status()));
    alignments.push_back(opened.ok() ? known.alignment_of(opened->vocabulary()) : known.alignment);
    if (!opened.ok()) {
      teachers.reset();
      continue;
    }
    if (student && read.ok()) {
      const Vocabulary& vocabulary = opened->vocabulary();
      const int64_t student_rows = student->config.vocab_size, teacher_rows = table_rows(*opened);
      limits = narrower(limits, known.limits(vocabulary, student_rows, teacher_rows));
      const std::string text = known.text(vocabulary, student_rows, teacher_rows);
      if (!text.empty()) {
        inputs.vocabulary_texts.push_back(
            config.has_list() ? absl::StrCat(config::text_of_teacher(own), ": ", text) : text);
      }
    }
    if (teachers) {
      teachers->push_back(*std::move(opened));
    }
  }
  if (!teachers) {
    limits = {};
  }
  const bool pin_memory = environment.device.is_cuda();
  const auto open = [&](const std::vector<config::DataSet>& sets, bool once) {
    auto data = problems.take(
        open_data(config, sets, once, tokenizers.hashes, limits, pin_memory, /*shuffle=*/false, alignments));
    return data ? *std::move(data) : nullptr;
  };
  if (purpose == config::Purpose::kTrain) {
    inputs.train_data = open(config.train_sets(), /*once=*/false);
    if (config.onpolicy.enabled()) {
      inputs.onpolicy = problems.take(open_onpolicy_inputs(config, tokenizers.hashes, limits, alignments, pin_memory));
    }
    if (inputs.train_data) {
      problems.add(check_schedule(config, *inputs.train_data));
    }
  }
  bool on_train = purpose == config::Purpose::kQuantize && config.data.eval.empty();
  if (!config.data.eval.empty()) {
    auto data = open_data(
        config, config.data.eval, /*once=*/true, tokenizers.hashes, limits, pin_memory, /*shuffle=*/false, alignments);
    // Of several teachers, one without held-out documents is measured on those that it trains on, as before a run.
    on_train = purpose == config::Purpose::kQuantize && absl::IsNotFound(data.status()) && !config.data.train.empty();
    inputs.eval_data = on_train ? nullptr : problems.take(std::move(data)).value_or(nullptr);
  }
  if (on_train) {
    inputs.train_data = open(config.data.train, /*once=*/false);
  }
  if (purpose == config::Purpose::kTrain && config.eval.samples > 0 && inputs.eval_data) {
    inputs.samples = problems.take(open_sample_inputs(config));
  }
  if (student && teachers) {
    inputs.student = *std::move(student);
    inputs.teachers = *std::move(teachers);
    for (size_t i = 0; i < configs.size(); ++i) {
      const TeacherSpec& teacher = inputs.teachers[i];
      const Environment own = environment_of_teacher(configs[i], environment);
      if (teacher.rows()) {
        problems.add(config::of_teacher(
            configs[i], open_teacher_rows(configs[i], own, purpose, tokenizers.hashes, teacher, inputs)));
      } else if (teacher.exists()) {
        inputs.teacher_texts.push_back(describe_model(
            config::text_of_teacher(configs[i]).c_str(), configs[i].teacher, teacher.model().config,
            own.teacher_dtype));
      }
    }
    const auto head = problems.take(plan_head(
        config, inputs.student.config, inputs.teachers, environment,
        /*needs_grad=*/purpose == config::Purpose::kTrain));
    inputs.head = head.value_or(losses::ChunkPlan{});
  }
  RETURN_IF_ERROR(problems.status());
  return inputs;
}

absl::StatusOr<std::vector<std::shared_ptr<data::Dataset>>> open_capture_data(
    const config::Config& config, const std::vector<base::Digest>& tokenizers, const data::TokenLimits& limits,
    bool pin_memory, std::shared_ptr<const data::TextAlignment> alignment) {
  base::ProblemList problems;
  std::vector<std::shared_ptr<const data::TextAlignment>> alignments( // by the number of the teacher
      static_cast<size_t>(std::max<int64_t>(0, config.this_teacher) + 1));
  alignments.back() = std::move(alignment);
  std::vector<std::shared_ptr<data::Dataset>> data;
  for (const std::vector<config::DataSet>* sets : {&config.data.train, &config.data.eval}) {
    if (!sets->empty()) {
      // The order of concatenated documents decides what is to the left of a token: it must be the run's.
      const bool shuffle = config.data.packing == data::PackingMode::kConcat && sets == &config.data.train;
      auto set = open_data(config, *sets, /*once=*/true, tokenizers, limits, pin_memory, shuffle, alignments);
      if (sets == &config.data.eval && absl::IsNotFound(set.status())) {
        continue; // held-out documents are those of other teachers
      }
      data.push_back(problems.take(std::move(set)).value_or(nullptr));
    }
  }
  RETURN_IF_ERROR(problems.status());
  return data;
}

absl::StatusOr<CaptureInputs> open_capture_inputs(const config::Config& config, const Environment& environment) {
  base::ProblemList problems;
  CaptureInputs inputs;
  auto read = problems.take(read_tokenizers(config));
  if (read) {
    log_tokenizers(config, *read);
  }
  const RunTokenizers tokenizers = std::move(read).value_or(RunTokenizers{});
  inputs.teacher = problems.take(open_teacher(config, tokenizers)).value_or(TeacherSpec());
  const Vocabulary& vocabulary = inputs.teacher.vocabulary();
  // Of a student, whose tokens the documents have, the rows matter that the teacher has, too.
  const int64_t rows = vocabulary.renumbered() ? vocabulary.columns.back().end : table_rows(inputs.teacher);
  const data::TokenLimits limits = tokenizers.limits(vocabulary, /*student_rows=*/0, rows);
  auto data = open_capture_data(
      config, tokenizers.hashes, limits, environment.device.is_cuda(), tokenizers.alignment_of(vocabulary));
  inputs.data = problems.take(std::move(data)).value_or(std::vector<std::shared_ptr<data::Dataset>>());
  RETURN_IF_ERROR(problems.status());
  return inputs;
}

} // namespace distill::trainer
