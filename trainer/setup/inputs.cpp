#include "trainer/setup/inputs.h"

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/config/run_length.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/metrics/log.h"
#include "trainer/models/random_weights.h"
#include "trainer/setup/read_model.h"
#include "trainer/setup/tokenizers.h"
#include "trainer/step/head_plan.h"

namespace distill::trainer {
namespace {

// `rows_only`: a teacher of whom a cache has a few tokens, and no weight.
absl::StatusOr<ModelSource> open_model(
    const config::ModelSection& section, const std::string& name, int64_t seq_len, const char* length_key,
    uint64_t seed, bool rows_only = false) {
  hf::Notes notes;
  auto config = read_model(section, name, &notes);
  if (!config.ok()) {
    return config.status();
  }
  if (absl::Status status = models::check_sequence_length(*config, seq_len); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(section.folder(), "/config.json against ", length_key, ": ", std::string(status.message())));
  }
  ModelSource input;
  input.config = *config;
  const auto log_notes = [&notes] {
    for (const hf::Note& note : notes) {
      note.is_warning ? metrics::log_warning(note.text) : metrics::log_info(note.text);
    }
  };
  if (section.init == config::ModelInit::kRandom && !section.reads_cache()) {
    input.weights = models::random_weights(*config, seed);
    log_notes();
    return input;
  }
  if (rows_only) {
    log_notes();
    return input;
  }
  auto weights = hf::open_weights(section.folder(), *config, &notes);
  if (!weights.ok()) {
    return weights.status();
  }
  log_notes();
  input.weights = *std::move(weights);
  return input;
}

absl::StatusOr<ModelSource> open_teacher(const config::Config& config) {
  bool rows_only = false; // a cache has a few tokens of each row, and no weight of the teacher
  if (config.teacher.reads_cache()) {
    ASSIGN_OR_RETURN(const teacher_cache::Manifest manifest, teacher_cache::read_manifest(config.teacher.cache));
    rows_only = manifest.rows.is_sparse();
  }
  const bool longer = config.data.teacher_length() > config.data.seq_len;
  return open_model(
      config.teacher, "teacher", longer ? config.data.teacher_seq_len : config.data.seq_len,
      longer ? "data.teacher_seq_len" : "data.seq_len", config.train.seed + 1, rows_only);
}

// `once`: every document once, in the order of the data; `shuffle`: all the same, in the shuffled order.
absl::StatusOr<std::unique_ptr<data::Dataset>> open_data(
    const config::Config& config, const std::vector<config::DataSet>& sets, bool once,
    const std::vector<base::Digest>& tokenizers, const data::TokenLimits& limits, bool pin_memory,
    bool shuffle = false) {
  data::DataOptions options;
  for (const config::DataSet& set : sets) {
    options.sources.push_back({set.path, set.weight});
  }
  options.seq_len = config.data.seq_len;
  options.teacher_seq_len = config.data.teacher_seq_len;
  options.teacher_stream = config.has_teacher();
  options.packing = config.data.packing;
  options.shuffle = config.data.shuffle && (!once || shuffle);
  options.seed = config.data.seed;
  options.once = once;
  options.tokenizer_hashes = tokenizers;
  options.limits = limits;
  options.pin_memory = pin_memory;
  return data::Dataset::open(options);
}

// A teacher that is read from a cache: lets the data sets read its rows.
absl::Status open_cached_teacher(
    const config::Config& config, const Environment& environment, config::Purpose purpose,
    absl::Span<const base::Digest> tokenizers, Inputs& inputs) {
  ASSIGN_OR_RETURN(
      const auto index,
      open_cache(config, environment, inputs.teacher->config, inputs.student.config.vocab_size, tokenizers));
  inputs.teacher->cached_rows = index->manifest().rows;
  inputs.teacher_text = describe_cache(*index);
  base::ProblemList problems;
  if (inputs.train_data) {
    inputs.train_rows =
        problems.take(attach_rows(config, environment, index, *inputs.train_data, "data.train")).value_or(nullptr);
  }
  // A run without evaluations does not read data.eval.
  const bool evaluates = purpose != config::Purpose::kTrain || config.eval.during_training();
  if (inputs.eval_data && evaluates) {
    problems.add(attach_rows(config, environment, index, *inputs.eval_data, "data.eval").status());
  }
  return problems.status();
}

const teacher_cache::RowFormat* rows_of(const Inputs& inputs) {
  return inputs.teacher && inputs.teacher->cached_rows ? &*inputs.teacher->cached_rows : nullptr;
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
  const bool has_teacher = config.has_teacher();
  auto student =
      problems.take(open_model(config.student, "student", config.data.seq_len, "data.seq_len", config.train.seed));
  std::optional<ModelSource> teacher;
  if (has_teacher) {
    teacher = problems.take(open_teacher(config));
  }
  const RunTokenizers tokenizers = problems.take(check_tokenizers(config)).value_or(RunTokenizers{});
  data::TokenLimits limits; // of models that cannot be read: nothing is checked
  if (student && (teacher || !has_teacher)) {
    limits = tokenizers.limits(student->config.vocab_size, teacher ? teacher->config.vocab_size : 0);
  }
  Inputs inputs;
  inputs.teacher_tokens = tokenizers.one_sided.teacher;
  const bool pin_memory = environment.device.is_cuda();
  const auto open = [&](const std::vector<config::DataSet>& sets, bool once) {
    auto data = problems.take(open_data(config, sets, once, tokenizers.hashes, limits, pin_memory));
    return data ? *std::move(data) : nullptr;
  };
  if (purpose == config::Purpose::kTrain) {
    inputs.train_data = open(config.data.train, /*once=*/false);
    if (inputs.train_data) {
      problems.add(check_schedule(config, *inputs.train_data));
    }
  }
  if (!config.data.eval.empty()) {
    inputs.eval_data = open(config.data.eval, /*once=*/true);
  } else if (purpose == config::Purpose::kQuantize) {
    inputs.train_data = open(config.data.train, /*once=*/false);
  }
  if (purpose == config::Purpose::kTrain && config.eval.samples > 0 && inputs.eval_data) {
    inputs.samples = problems.take(open_sample_inputs(config));
  }
  const bool models_are_known = student && (teacher || !has_teacher);
  if (models_are_known) {
    inputs.student = *std::move(student);
    inputs.teacher = std::move(teacher);
  }
  if (inputs.teacher && config.teacher.reads_cache()) {
    problems.add(open_cached_teacher(config, environment, purpose, tokenizers.hashes, inputs));
  }
  if (models_are_known) {
    const auto head = problems.take(plan_head(
        config, inputs.student.config, inputs.teacher ? &inputs.teacher->config : nullptr, rows_of(inputs), environment,
        /*needs_grad=*/purpose == config::Purpose::kTrain));
    inputs.head = head.value_or(losses::ChunkPlan{});
  }
  RETURN_IF_ERROR(problems.status());
  return inputs;
}

absl::StatusOr<std::vector<std::shared_ptr<data::Dataset>>> open_capture_data(
    const config::Config& config, const std::vector<base::Digest>& tokenizers, const data::TokenLimits& limits,
    bool pin_memory) {
  base::ProblemList problems;
  std::vector<std::shared_ptr<data::Dataset>> data;
  for (const std::vector<config::DataSet>* sets : {&config.data.train, &config.data.eval}) {
    if (!sets->empty()) {
      // The order of concatenated documents decides what is to the left of a token: it must be the run's.
      const bool shuffle = config.data.packing == data::PackingMode::kConcat && sets == &config.data.train;
      auto set = problems.take(open_data(config, *sets, /*once=*/true, tokenizers, limits, pin_memory, shuffle));
      data.push_back(set ? *std::move(set) : nullptr);
    }
  }
  RETURN_IF_ERROR(problems.status());
  return data;
}

absl::StatusOr<CaptureInputs> open_capture_inputs(const config::Config& config, const Environment& environment) {
  base::ProblemList problems;
  CaptureInputs inputs;
  inputs.teacher = problems.take(open_teacher(config)).value_or(ModelSource{});
  const RunTokenizers tokenizers = problems.take(check_tokenizers(config)).value_or(RunTokenizers{});
  const data::TokenLimits limits = tokenizers.limits(/*student_rows=*/0, inputs.teacher.config.vocab_size);
  inputs.data = problems.take(open_capture_data(config, tokenizers.hashes, limits, environment.device.is_cuda()))
                    .value_or(std::vector<std::shared_ptr<data::Dataset>>());
  RETURN_IF_ERROR(problems.status());
  return inputs;
}

std::string describe_shape(const models::ModelConfig& config) {
  return absl::StrFormat(
      "%s, vocabulary %d, hidden %d, ffn %d, %d layers, %d heads of %d, %d kv heads, %s embeddings%s%s",
      config.model_type, config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers,
      config.num_heads, config.head_dim, config.num_kv_heads, config.tie_word_embeddings ? "tied" : "untied",
      config.qkv_bias ? ", qkv bias" : "", config.qk_norm ? ", qk norm" : "");
}

std::string describe_data(const data::Dataset& data) {
  const data::DataOptions& options = data.options();
  return describe_data(data, {0, options.seq_len, options.packing, options.teacher_seq_len});
}

std::string describe_data(const data::Dataset& data, const data::Stage& stage) {
  const data::DataOptions& options = data.options();
  const int64_t teacher_seq_len = stage.teacher_seq_len > 0 ? stage.teacher_seq_len : stage.seq_len;
  return absl::StrFormat(
      "%d sources, seq_len %d, %s%s, %s, seed %d, sha256 %s", options.sources.size(), stage.seq_len,
      data.teacher_seq_len() > 0 ? absl::StrFormat("teacher_seq_len %d, ", teacher_seq_len) : "",
      base::enum_name(stage.packing), options.shuffle ? "shuffled" : "in order", options.seed,
      base::hex(data.fingerprint(stage)));
}

} // namespace distill::trainer
