#include "trainer/config/rules.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "losses/teacher_kind.h"
#include "trainer/config/field.h"
#include "trainer/config/onpolicy_rules.h"
#include "trainer/config/run_length.h"
#include "trainer/config/teachers.h"

namespace distill::config {

namespace {

// Collects the problems of all rules.
class Rules {
 public:
  Rules(const Config& config, const CheckContext& context) : config_(config), context_(context) {}

  std::vector<Problem> run() {
    switched_off_keys();
    required();
    teachers();
    if (!config_.has_list()) {
      of_teacher();
    }
    dtypes();
    if (training()) {
      length_and_batch();
      mesh();
      scheduler();
    }
    if (context_.purpose != Purpose::kPlan && !capturing()) {
      evaluation();
    }
    return std::move(problems_);
  }

 private:
  // What is checked of each teacher, in a configuration that has it alone.
  void of_teacher() {
    teacher_source();
    missing_tokens();
    alignment();
    adapters();
    if (!capturing()) {
      loss();
    }
    // Of several teachers the rules that concern none of them are checked once.
    if (training() && (config_.this_teacher <= 0 || config_.teacher.reads_cache())) {
      check_on_policy(config_, [this](auto... texts) { fail(std::move(texts)...); });
    }
  }

  // The rules between several teachers, and those of each of them.
  void teachers() {
    const std::vector<std::string> names = config_.teacher_names();
    for (const auto& [key, sets] :
         {std::pair("data.train", &config_.data.train),
          {"data.eval", &config_.data.eval},
          {"onpolicy.prompts", &config_.onpolicy.prompts},
          {"onpolicy.eval_prompts", &config_.onpolicy.eval_prompts}}) {
      for (const DataSet& set : *sets) {
        for (const auto& [name, share] : set.teachers) {
          if (std::find(names.begin(), names.end(), name) == names.end()) {
            fail(
                {key, "teachers"},
                names.empty() ? "no teacher of its own for a data set, since there are no teachers"
                              : absl::StrCat("one of the teachers ", absl::StrJoin(names, ", ")),
                absl::StrCat(set.path, ": teacher ", name));
          }
        }
      }
    }
    if (!config_.has_list()) {
      return;
    }
    for (const Field& field : find_section("teacher")->fields) {
      const Config defaults;
      if (given(field.key()) || to_yaml(field, config_) != to_yaml(field, defaults)) {
        fail({"teachers", field.key()}, "either teacher or teachers", absl::StrCat("both: ", field.key(), " is given"));
      }
    }
    const auto origin = context_.origins.find("teachers");
    const std::string file = origin != context_.origins.end() ? origin->second.file : context_.file;
    for (size_t i = 0; i < config_.teachers.size(); ++i) {
      const Config own = config_of_teacher(config_, i);
      CheckContext context = context_;
      context.origins = origins_of_teacher(config_.teachers[i], file);
      context.file = file;
      Rules rules(own, context);
      rules.switched_off_keys();
      rules.of_teacher();
      for (Problem& problem : rules.problems_) {
        problem.key = absl::StrCat("teachers[", i, "] (", config_.teachers[i].name, ") ", problem.key);
        problems_.push_back(std::move(problem));
      }
    }
    const int64_t rows = config_.data.teacher_sequences, global = config_.train.global_batch_size;
    if (training() && rows > 0 && (global % rows != 0 || rows % config_.train.micro_batch_size != 0)) {
      fail(
          {"data.teacher_sequences", "train.global_batch_size", "train.micro_batch_size"},
          absl::StrCat(
              "a multiple of train.micro_batch_size, ", config_.train.micro_batch_size,
              ", that divides train.global_batch_size, ", global),
          absl::StrCat(rows));
    }
  }

  bool training() const {
    return context_.purpose == Purpose::kTrain;
  }
  bool capturing() const {
    return context_.purpose == Purpose::kCapture;
  }
  bool quantizing() const {
    return context_.purpose == Purpose::kQuantize;
  }
  // Whether the user gave the key: on the command line, or in a file that distill did not write.
  bool given(const std::string& key) const {
    const auto origin = context_.origins.find(key);
    const bool in_file = origin != context_.origins.end() && origin->second.line > 0;
    return origin != context_.origins.end() && !(in_file && context_.is_dump);
  }
  void fail(std::vector<std::string> keys, std::string expected, std::string found, std::string hint = "") {
    Problem problem;
    problem.key = keys.front();
    problem.expected = std::move(expected);
    problem.found = std::move(found);
    problem.hint = std::move(hint);
    add_problem(context_, std::move(keys), std::move(problem), &problems_);
  }

  // In a stream of concatenated documents a token that the teacher cannot read is to the left of later documents.
  void missing_tokens() {
    if (config_.has_teacher() && config_.teacher.missing_tokens == MissingTokens::kMask &&
        config_.data.packing != data::PackingMode::kPack) {
      fail(
          {"teacher.missing_tokens", "data.packing"}, "refuse with data.packing: concat", "mask",
          "set data.packing: pack, whose documents do not see one another");
    }
  }

  // What a teacher with a tokenizer of its own cannot be beside.
  void alignment() {
    if (!config_.has_teacher() || config_.teacher.alignment != Alignment::kBytes) {
      return;
    }
    if ((config_.teacher.reads_cache() || capturing()) && config_.cache.kind != CacheKind::kHidden) {
      fail(
          {"teacher.alignment", "cache.kind"}, "cache.kind: hidden with alignment: bytes",
          std::string(base::enum_name(config_.cache.kind)),
          "the probability of a text in the teacher's tokens needs its whole vocabulary, of which such a cache has a "
          "few tokens");
    }
    if (config_.teacher.missing_tokens == MissingTokens::kMask) {
      fail(
          {"teacher.alignment", "teacher.missing_tokens"}, "missing_tokens: refuse with alignment: bytes", "mask",
          "remove teacher.missing_tokens: the teacher reads the text in its own tokens");
    }
    if (config_.data.packing != data::PackingMode::kPack) {
      fail({"teacher.alignment", "data.packing"}, "data.packing: pack with alignment: bytes", "concat");
    }
  }

  void switched_off_keys() {
    for (const Section& section : sections()) {
      for (const Field& field : section.fields) {
        const std::string key = field.key();
        if (given(key) && !applies_to_run(field, config_)) {
          const std::string& other = field.only_when.key;
          fail(
              {key, other}, absl::StrCat("this key only when ", field.only_when.text),
              absl::StrCat(other, ": ", to_yaml(*find_field(other), config_)),
              "remove the key, which would have no effect");
        }
      }
    }
  }

  void required() {
    if (config_.student.path.empty() && !capturing()) {
      fail({"student.path"}, "the folder of the model to train", "none");
    }
    const bool own_words_alone = training() && config_.onpolicy.enabled() && !config_.onpolicy.mixes();
    if ((training() || capturing()) && config_.data.train.empty() && !own_words_alone) {
      fail({"data.train", "onpolicy.fraction"}, "token shards to train on", "none", "scripts/tokenize.py writes them");
    }
    if (training() && config_.run.dir.empty()) {
      fail({"run.dir"}, "the run folder", "none");
    }
  }

  void teacher_source() {
    const ModelSection& teacher = config_.teacher;
    const bool stored = teacher.reads_cache() || capturing();
    if (stored && teacher.cache.empty()) {
      fail(
          {"teacher.cache", "teacher.source"}, "the folder of the teacher's stored predictions", "none",
          capturing() ? "distill capture writes them there" : "");
    }
    if (capturing() && teacher.path.empty()) {
      fail({"teacher.path", "teacher.source"}, "the teacher whose predictions are stored", "none");
    }
    if (stored) {
      cache_dtype();
    }
    if (teacher.reads_cache() && !capturing() && teacher.dtype == ComputeDtype::kFloat8) {
      fail(
          {"teacher.dtype", "teacher.source"}, "auto, float32 or bfloat16, as the teacher computed outside its blocks",
          "float8", "what was captured from a float8 teacher is read without it");
    }
  }

  void cache_dtype() {
    const CacheDtype dtype = config_.cache.dtype;
    const auto one_of = [&](std::initializer_list<CacheDtype> all) {
      return std::find(all.begin(), all.end(), dtype) != all.end();
    };
    const CacheKind kind = config_.cache.kind;
    const bool fits = kind == CacheKind::kHidden ? !one_of({CacheDtype::kFloat16})
        : kind == CacheKind::kTopK ? one_of({CacheDtype::kAuto, CacheDtype::kFloat16, CacheDtype::kFloat32})
                                   : one_of({CacheDtype::kAuto, CacheDtype::kFloat32});
    if (!fits) {
      fail(
          {"cache.dtype", "cache.kind"},
          kind == CacheKind::kHidden     ? "auto, float32, bfloat16 or int8 for hidden states"
              : kind == CacheKind::kTopK ? "auto, float16 or float32 for log-probabilities (cache.kind: topk)"
                                         : "auto or float32 for the weights of draws (cache.kind: sampled)",
          base::enum_name(dtype));
    }
  }

  // What a teacher of whom a few tokens are known cannot give; its temperature is compared when the cache is opened.
  void loss_of_cache() {
    const bool sampled = config_.teacher.reads_cache() && config_.cache.kind == CacheKind::kSampled;
    const absl::Status status = sampled
        ? losses::validate_for_teacher(config_.loss, losses::TeacherKind::kSampled, config_.loss.temperature)
        : absl::OkStatus();
    if (!status.ok()) {
      fail(
          {"loss.divergence", "cache.kind"}, "forward_kl, or none, for a cache of the kind sampled",
          base::enum_name(config_.loss.divergence), std::string(status.message()));
    }
  }

  void adapters() {
    if (!config_.student.adapter.empty() && config_.lora.rank > 0) {
      fail(
          {"student.lora.rank", "student.adapter"}, "0 with student.adapter, which has a rank of its own",
          absl::StrCat(config_.lora.rank));
    }
    if (!config_.teacher.adapter.empty() && (config_.teacher.path.empty() || config_.teacher.reads_cache())) {
      fail(
          {"teacher.adapter", "teacher.path", "teacher.source"}, "teacher.path, and teacher.source: model",
          config_.teacher.path.empty() ? "no teacher.path" : "teacher.source: cache",
          "the adapter is part of what a cache was captured from");
    }
    if (quantizing() && !config_.teacher.adapter.empty()) {
      fail({"teacher.adapter"}, "a teacher without an adapter, whose own products are measured", "one");
    }
  }

  void dtypes() {
    if (config_.student.dtype == ComputeDtype::kFloat8 && !config_.trains_adapter() &&
        (gives(config_.memory.optimizer, models::StatePlace::kHost) ||
         gives(config_.memory.optimizer, models::StatePlace::kCpu))) {
      fail(
          {"student.dtype", "memory.optimizer"}, "memory.optimizer: device or auto for a float8 student",
          by_block_text(config_.memory.optimizer), "its weights are rounded from master weights on the device");
    }
  }

  void loss() {
    if ((context_.purpose == Purpose::kEvaluate || quantizing()) && !config_.has_teacher()) {
      return; // load() takes the labels alone
    }
    const losses::LossOptions& loss = config_.loss;
    const bool soft = loss.divergence != losses::Divergence::kNone && loss.soft_weight > 0;
    const std::string weights = absl::StrCat(
        "hard_weight ", loss.hard_weight, ", soft_weight ", loss.soft_weight, ", divergence ",
        base::enum_name(loss.divergence));
    if (!soft && loss.hard_weight == 0) {
      fail(
          {"loss.hard_weight", "loss.soft_weight", "loss.divergence"}, "a loss that is not zero everywhere", weights,
          "give loss.hard_weight, or loss.soft_weight with a divergence");
    }
    if (soft && !config_.has_teacher()) {
      fail(
          {"teacher.path", "loss.soft_weight", "loss.divergence"}, "a teacher for the divergence", "none",
          "set teacher.path, or loss.divergence: none and loss.hard_weight: 1 to train on labels alone");
    }
    loss_of_cache();
    const losses::ChunkOptions& chunks = config_.chunks;
    if (chunks.chunk_size > 0 && given("loss.min_chunk_size") && chunks.min_chunk_size > chunks.chunk_size) {
      fail(
          {"loss.min_chunk_size", "loss.chunk_size"}, absl::StrCat("at most loss.chunk_size, ", chunks.chunk_size),
          absl::StrCat(chunks.min_chunk_size));
    }
  }

  void length_and_batch() {
    const TrainSection& train = config_.train;
    std::vector<std::string> lengths;
    for (const char* name : {"steps", "tokens", "epochs"}) {
      const std::string value = to_yaml(*find_field(absl::StrCat("train.", name)), config_);
      if (value != "0") {
        lengths.push_back(absl::StrCat(name, ": ", value));
      }
    }
    if (lengths.size() != 1) {
      fail(
          {"train.steps", "train.tokens", "train.epochs"}, "exactly one of train.steps, train.tokens and train.epochs",
          lengths.empty() ? "none of them" : absl::StrJoin(lengths, " and "));
    }
    if (train.global_batch_size % train.micro_batch_size != 0) {
      fail(
          {"train.global_batch_size", "train.micro_batch_size"},
          absl::StrCat("a multiple of train.micro_batch_size, ", train.micro_batch_size),
          absl::StrCat(train.global_batch_size));
    }
  }

  // The number of ranks is shard x replicate, and each rank takes an equal part of the global batch. Where it is the
  // number of visible GPUs, it is not known here and is checked when the ranks join.
  void mesh() {
    const ParallelSection& parallel = config_.parallel;
    if (parallel.slots > 0 && parallel.slots <= parallel.prefetch) {
      fail(
          {"parallel.slots", "parallel.prefetch"},
          absl::StrCat("at least ", parallel.prefetch + 1, ": parallel.prefetch blocks and the one that computes"),
          absl::StrCat(parallel.slots), "0 takes as many as parallel.prefetch needs");
    }
    const int64_t micro = config_.train.micro_batch_size;
    std::vector<std::string> keys = {"parallel.replicate"};
    int64_t ranks = context_.ranks;
    std::string which = absl::StrCat("the ", ranks, " ranks that were launched");
    if (ranks == 0 && parallel.processes > 0) {
      keys = {"parallel.replicate", "parallel.processes"};
      ranks = parallel.processes;
      which = absl::StrCat("parallel.processes, ", ranks);
    }
    if (ranks > 0 && ranks % parallel.replicate != 0) {
      fail(keys, absl::StrCat("a divisor of ", which), absl::StrCat(parallel.replicate));
      return;
    }
    if (parallel.shard > 0) {
      keys.insert(keys.begin(), "parallel.shard");
      const int64_t product = parallel.shard * parallel.replicate;
      if (ranks > 0 && product != ranks) {
        fail(
            keys, absl::StrCat(ranks / parallel.replicate, ": ", which, ", divided by parallel.replicate"),
            absl::StrCat(parallel.shard), "0 takes what the ranks allow");
        return;
      }
      ranks = product;
    }
    // The number of ranks, if unknown, is some multiple of parallel.replicate.
    const int64_t at_once = (ranks > 0 ? ranks : parallel.replicate) * micro;
    const int64_t global = config_.train.global_batch_size;
    if (global % micro == 0 && global % at_once != 0) {
      keys.insert(keys.begin(), {"train.global_batch_size", "train.micro_batch_size"});
      fail(
          std::move(keys),
          absl::StrCat(
              "a multiple of ", at_once, ", ", ranks > 0 ? ranks : parallel.replicate,
              ranks > 0 ? " ranks" : " copies (parallel.replicate)", " with train.micro_batch_size ", micro, " each"),
          absl::StrCat(global));
    }
  }

  void scheduler() {
    const std::optional<int64_t> steps = known_steps(config_);
    const auto fault = steps ? schedule_fault(config_.scheduler, *steps) : std::nullopt;
    if (fault) {
      fail(
          {fault->key, "train.steps", "train.tokens", "train.global_batch_size", "data.seq_len"}, fault->expected,
          fault->found);
    }
  }

  void evaluation() {
    const bool during_training = config_.eval.during_training();
    if (quantizing()) { // measures on what a run measures its teacher on before it starts
      if (config_.data.eval.empty() && config_.data.train.empty()) {
        fail({"data.eval", "data.train"}, "token shards to measure on, or data.train", "neither");
      }
    } else if (
        config_.data.eval.empty() && (!training() || (during_training && config_.onpolicy.eval_prompts.empty()))) {
      std::vector<std::string> keys = {"data.eval"};
      if (training()) {
        keys.emplace_back(config_.eval.every > 0 ? "eval.every" : "eval.at_start");
      }
      fail(
          std::move(keys), "held-out token shards to evaluate on", "none",
          training() ? "set data.eval, or remove eval.every and eval.at_start" : "");
    }
    if (!training() || config_.eval.samples == 0) {
      return;
    }
    if (!during_training) {
      fail(
          {"eval.samples", "eval.every", "eval.at_start"}, "evaluations, after which the samples are made", "none",
          "set eval.every or eval.at_start, or remove eval.samples");
    }
    if (config_.eval.sample_tokens >= config_.data.seq_len) {
      fail(
          {"eval.sample_tokens", "data.seq_len"},
          absl::StrCat("fewer than data.seq_len, ", config_.data.seq_len, ", with room for a prompt"),
          absl::StrCat(config_.eval.sample_tokens));
    }
  }

  const Config& config_;
  const CheckContext& context_;
  std::vector<Problem> problems_;
};

} // namespace

std::set<std::string, std::less<>> suspect_keys(const std::vector<Problem>& problems) {
  std::set<std::string, std::less<>> keys;
  for (const Problem& problem : problems) {
    keys.insert(problem.key.substr(0, problem.key.find('[')));
    // A problem of data.train.weight concerns data.train.
    for (const Section& section : sections()) {
      for (const Field& field : section.fields) {
        const std::string key = field.key();
        const bool names_all_keys = problem.key.empty() || problem.key == section.name;
        if (names_all_keys || problem.key.rfind(key + ".", 0) == 0 ||
            problem.hint == absl::StrCat("did you mean ", key, "?")) {
          keys.insert(key);
        }
      }
    }
  }
  return keys;
}

void add_problem(
    const CheckContext& context, std::vector<std::string> keys, Problem problem, std::vector<Problem>* problems) {
  problem.file = context.file;
  bool placed = false;
  for (const std::string& key : keys) {
    if (context.suspect.count(key) > 0) {
      return;
    }
    const auto origin = context.origins.find(key);
    if (!placed && origin != context.origins.end()) {
      problem.file = origin->second.file;
      problem.line = origin->second.line;
      placed = true;
    }
  }
  problems->push_back(std::move(problem));
}

std::vector<Problem> check_rules(const Config& config, const CheckContext& context) {
  return Rules(config, context).run();
}

} // namespace distill::config
