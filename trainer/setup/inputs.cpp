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

absl::StatusOr<ModelSource> open_model(
    const config::ModelSection& section, const std::string& name, int64_t seq_len, const char* length_key,
    uint64_t seed) {
  auto config = read_model(section, name);
  if (!config.ok()) {
    return config.status();
  }
  if (absl::Status status = models::check_sequence_length(*config, seq_len); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(section.path, "/config.json against ", length_key, ": ", std::string(status.message())));
  }
  ModelSource input;
  input.config = *config;
  if (section.init == config::ModelInit::kRandom) {
    input.weights = models::random_weights(*config, seed);
    return input;
  }
  std::vector<std::string> notes;
  auto weights = hf::open_weights(section.path, *config, &notes);
  if (!weights.ok()) {
    return weights.status();
  }
  for (const std::string& note : notes) {
    metrics::log_info(note);
  }
  input.weights = *std::move(weights);
  return input;
}

absl::StatusOr<std::unique_ptr<data::Dataset>> open_data(
    const config::Config& config, config::Purpose purpose, const std::optional<base::Digest>& tokenizer,
    int64_t vocab_size, bool pin_memory) {
  const bool once = purpose == config::Purpose::kEvaluate;
  data::DataOptions options;
  for (const config::DataSet& set : once ? config.data.eval : config.data.train) {
    options.sources.push_back({set.path, set.weight});
  }
  options.seq_len = config.data.seq_len;
  options.teacher_seq_len = config.data.teacher_seq_len;
  options.teacher_stream = !config.teacher.path.empty();
  options.packing = config.data.packing;
  options.shuffle = config.data.shuffle && !once;
  options.seed = config.data.seed;
  options.once = once;
  options.tokenizer_hash = tokenizer;
  options.vocab_size = vocab_size;
  options.pin_memory = pin_memory;
  return data::Dataset::open(options);
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
  const bool has_teacher = !config.teacher.path.empty();
  auto student =
      problems.take(open_model(config.student, "student", config.data.seq_len, "data.seq_len", config.train.seed));
  std::optional<ModelSource> teacher;
  if (has_teacher) {
    const bool longer = config.data.teacher_length() > config.data.seq_len;
    teacher = problems.take(open_model(
        config.teacher, "teacher", longer ? config.data.teacher_seq_len : config.data.seq_len,
        longer ? "data.teacher_seq_len" : "data.seq_len", config.train.seed + 1));
  }
  const auto tokenizer = problems.take(check_tokenizers(config));
  int64_t vocab_size = student ? student->config.vocab_size : 0; // 0: not known, not checked
  if (has_teacher) {
    vocab_size = student && teacher ? std::min(vocab_size, teacher->config.vocab_size) : 0;
  }
  Inputs inputs;
  const bool pin_memory = environment.device.is_cuda();
  const auto open = [&](config::Purpose kind) {
    auto data = problems.take(open_data(config, kind, tokenizer.value_or(std::nullopt), vocab_size, pin_memory));
    return data ? *std::move(data) : nullptr;
  };
  if (purpose == config::Purpose::kTrain) {
    inputs.train_data = open(config::Purpose::kTrain);
    if (inputs.train_data) {
      problems.add(check_schedule(config, *inputs.train_data));
    }
  }
  if (!config.data.eval.empty()) {
    inputs.eval_data = open(config::Purpose::kEvaluate);
  }
  if (purpose == config::Purpose::kTrain && config.eval.samples > 0 && inputs.eval_data) {
    inputs.samples = problems.take(open_sample_inputs(config));
  }
  if (student && (teacher || !has_teacher)) {
    inputs.student = *std::move(student);
    inputs.teacher = std::move(teacher);
    const auto head = problems.take(plan_head(
        config, inputs.student.config, inputs.teacher ? &inputs.teacher->config : nullptr, environment,
        /*needs_grad=*/purpose == config::Purpose::kTrain));
    inputs.head = head.value_or(losses::ChunkPlan{});
  }
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
