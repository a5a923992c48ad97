#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/base/enum_names.h"
#include "data/packing_mode.h"
#include "data/teacher_groups.h"
#include "losses/options.h"
#include "losses/spans.h"
#include "trainer/config/by_block.h"
#include "trainer/device/allocator_kind.h"

// The whole configuration as plain structs with their defaults. trainer/config/fields.cpp names every key once.
namespace distill::config {

// The value of a number for which the word auto was given.
inline constexpr int64_t kAutomatic = -1;

enum class ModelInit {
  kPretrained,
  kRandom, // config.json alone is read
};
constexpr auto enum_names(ModelInit) {
  return base::names_of<ModelInit>("pretrained", "random");
}

// Of the run.
enum class RunDtype {
  kAuto, // bfloat16 on CUDA, float32 on the CPU
  kFloat32,
  kBFloat16,
};
constexpr auto enum_names(RunDtype) {
  return base::names_of<RunDtype>("auto", "float32", "bfloat16");
}

// Of a model.
enum class ComputeDtype {
  kAuto, // train.dtype
  kFloat32,
  kBFloat16,
  kFloat8, // the blocks' matrix products in float8, everything else in train.dtype
};
constexpr auto enum_names(ComputeDtype) {
  return base::names_of<ComputeDtype>("auto", "float32", "bfloat16", "float8");
}

enum class DeviceChoice {
  kAuto, // a GPU where one is visible
  kCpu,
  kCuda,
};
constexpr auto enum_names(DeviceChoice) {
  return base::names_of<DeviceChoice>("auto", "cpu", "cuda");
}

// The learning rate after the warm-up.
enum class LrSchedule {
  kConstant,
  kLinear,
  kCosine,
  kWsd, // warm-up, stable, decay: constant, then linear
};
constexpr auto enum_names(LrSchedule) {
  return base::names_of<LrSchedule>("constant", "linear", "cosine", "wsd");
}

// What happens when a periodic checkpoint cannot be written.
enum class OnSaveError {
  kStop,
  kContinue,
};
constexpr auto enum_names(OnSaveError) {
  return base::names_of<OnSaveError>("stop", "continue");
}

// Of a model folder that is written.
enum class StoredDtype {
  kAuto, // the one that the student's folder is stored in
  kFloat32,
  kBFloat16,
  kFloat16,
};
constexpr auto enum_names(StoredDtype) {
  return base::names_of<StoredDtype>("auto", "float32", "bfloat16", "float16");
}

// What a block computes again whose policy in memory.activation is recompute or offload_input.
enum class Recompute {
  kAuto, // what the plan chooses if memory.activation is auto, and everything otherwise
  kAll, // everything, from the block's input
  kAllButAttention, // the rest, from the input and attention's output, both of which are saved
};
constexpr auto enum_names(Recompute) {
  return base::names_of<Recompute>("auto", "all", "all_but_attention");
}

// What happens when the memory plan does not fit.
enum class OnOverflow {
  kRefuse,
  kWarn,
};
constexpr auto enum_names(OnOverflow) {
  return base::names_of<OnOverflow>("refuse", "warn");
}

// Of gradients between ranks.
enum class ReduceDtype {
  kFloat32,
  kBFloat16,
};
constexpr auto enum_names(ReduceDtype) {
  return base::names_of<ReduceDtype>("float32", "bfloat16");
}

// Of AdamW's moments and of gradient shards, which are computed in fp32.
enum class RoundedDtype {
  kFloat32,
  kBFloat16, // rounded stochastically
};
constexpr auto enum_names(RoundedDtype) {
  return base::names_of<RoundedDtype>("float32", "bfloat16");
}

// How the gradients of a step's micro-batches are added up over ranks.
enum class Accumulate {
  kReduceEach, // every micro-batch is reduced into the shards
  kKeepFull, // whole fp32 gradients stay on every rank and are reduced once a step
};
constexpr auto enum_names(Accumulate) {
  return base::names_of<Accumulate>("reduce_each", "keep_full");
}

// What of the trainer's state is in host memory while the engine of an on-policy run writes.
enum class EngineOffload {
  kAuto, // kAll where onpolicy.engine_gib does not fit beside it
  kNone,
  kAll, // weights, master weights, moments, buffers of gathered blocks
};
constexpr auto enum_names(EngineOffload) {
  return base::names_of<EngineOffload>("auto", "none", "all");
}

// How the ranks of the shard axis get each other's shards.
enum class Gather {
  kAuto, // kCopy where it can be had
  kCopy, // plain copies from memory that all of these ranks have mapped
  kNccl, // NCCL's all-gather, Gloo's on a CPU
};
constexpr auto enum_names(Gather) {
  return base::names_of<Gather>("auto", "copy", "nccl");
}

enum class ProgressStyle {
  kAuto, // a bar on a terminal, lines elsewhere
  kBar,
  kLines,
  kNone,
};
constexpr auto enum_names(ProgressStyle) {
  return base::names_of<ProgressStyle>("auto", "bar", "lines", "none");
}

// Where the teacher's predictions come from (trainer/teacher_cache/).
enum class TeacherSource {
  kModel, // the teacher runs
  kCache, // read from teacher.cache; no teacher is loaded
};
constexpr auto enum_names(TeacherSource) {
  return base::names_of<TeacherSource>("model", "cache");
}

// What a cache stores of the teacher's distribution of the next token.
enum class CacheKind {
  kHidden, // the final hidden state, of which the loss head makes the logits of the whole vocabulary
  kTopK, // the most probable tokens, and the probability of all others
  kSampled, // tokens drawn from it, with their weights
};
constexpr auto enum_names(CacheKind) {
  return base::names_of<CacheKind>("hidden", "topk", "sampled");
}

// Of the hidden states in a cache, or of the log-probabilities.
enum class CacheDtype {
  kAuto, // the one that the teacher computes in; float16 for log-probabilities
  kFloat32,
  kBFloat16,
  kInt8, // groups of 64 with a bfloat16 scale each
  kFloat16, // of log-probabilities
};
constexpr auto enum_names(CacheDtype) {
  return base::names_of<CacheDtype>("auto", "float32", "bfloat16", "int8", "float16");
}

// What happens to tokens whose left context differs from the one that was captured.
enum class OtherContexts {
  kRefuse,
  kAllow,
};
constexpr auto enum_names(OtherContexts) {
  return base::names_of<OtherContexts>("refuse", "allow");
}

// What happens to documents with a token that the teacher's tokenizer lacks.
enum class MissingTokens {
  kRefuse,
  kMask,
};
constexpr auto enum_names(MissingTokens) {
  return base::names_of<MissingTokens>("refuse", "mask");
}

// How the tokens of student and teacher are brought together.
enum class Alignment {
  kTokens, // both make the same tokens of a text
  kBytes, // by the bytes of their texts, where the tokenizers differ (data/text_alignment.h)
};
constexpr auto enum_names(Alignment) {
  return base::names_of<Alignment>("tokens", "bytes");
}

// Student and teacher are described by the same keys.
struct ModelSection {
  std::string path; // Hugging Face folder; teacher: empty means no teacher, unless it is read from a cache
  std::string tokenizer; // folder or tokenizer.json; empty: the model's folder
  ModelInit init = ModelInit::kPretrained;
  ComputeDtype dtype = ComputeDtype::kAuto;
  std::vector<std::string> float8_exceptions; // products that stay in train.dtype (trainer/models/float8_products.h)
  std::vector<std::string> ignore_config_keys; // of config.json, which are known not to change the mathematics
  double router_aux_loss = kAutomatic; // of the student: coefficient; kAutomatic: that of config.json
  TeacherSource source = TeacherSource::kModel; // of the teacher, as the next key
  std::string cache; // folder
  MissingTokens missing_tokens = MissingTokens::kRefuse; // of the teacher
  double max_dropped_mass = 0.05; // of the teacher: mean probability of its tokens that the student lacks
  Alignment alignment = Alignment::kTokens; // of the teacher, as the next key
  std::vector<std::string> token_pairs; // STUDENT=TEACHER: special tokens that stand for the same
  std::string adapter; // folder as peft writes it; empty: the model is that of `path` alone

  // The folder whose config.json, weights and tokenizer a run reads; empty: no teacher.
  std::string folder() const {
    return source == TeacherSource::kCache ? cache + "/head" : path;
  }
  bool reads_cache() const {
    return source == TeacherSource::kCache;
  }
};

// Low-rank adapters of the student, which are trained in place of its weights (models/adapter.h).
struct LoraSection {
  int64_t rank = 0; // 0: none, unless student.adapter names one
  double alpha = kAutomatic; // kAutomatic: the rank
  std::vector<std::string> targets = {"all-linear"}; // names of modules, or one regular expression, or all-linear
  std::vector<std::string> target_parameters; // parameters of transformers' model, such as mlp.experts.down_proj
  bool rslora = false; // scale alpha / sqrt(rank) instead of alpha / rank
  double dropout = 0;
  std::vector<std::string> modules_to_save; // that are trained as they are
  bool merge = false; // the model that is written has the adapters in its weights
};

// How a cache of the teacher's predictions is written, and read.
struct CacheSection {
  CacheKind kind = CacheKind::kHidden;
  CacheDtype dtype = CacheDtype::kAuto;
  int64_t topk = 64; // tokens of a row (kTopK)
  int64_t samples = 50; // draws of a row (kSampled)
  double exponent = 1; // of the probabilities that are drawn from (kSampled)
  int64_t seed = 0; // of the draws (kSampled)
  int64_t part_tokens = 131072; // tokens that the sequences of one file hold
  OtherContexts other_contexts = OtherContexts::kRefuse;
};

// The check of a float8 teacher before the run (trainer/float8_gate/gate.h), and of a float8 student during the run,
// and what of that student is in float8.
struct Float8Section {
  bool gate = true;
  int64_t gate_tokens = 0; // 0: 64 Ki on a GPU, 4 Ki on a CPU
  double max_mean_kl = 0.03; // nats
  double max_p99_kl = 0; // nats; 0: not limited
  int64_t shadow_every = 0; // steps; 0: never (trainer/step/gradient_probe.h)
  bool weight_gradients = false; // of the student are float8 products, too (trainer/models/ops/float8.h)
};

// A key that a teacher of several changes in the run's configuration.
struct TeacherKey {
  std::string key; // "teacher.path", "loss.temperature"
  std::string value; // in YAML
  int64_t line = 0; // of the file
};

// One of several teachers (config/teachers.h).
struct NamedTeacher {
  std::string name;
  std::vector<TeacherKey> keys;
};

struct DataSet {
  std::string path; // a token shard, or a folder of them
  double weight = 1.0;
  std::vector<data::TeacherShare> teachers = {}; // of several: whose rows these are; none: the documents name theirs
};

struct DataSection {
  std::vector<DataSet> train;
  std::vector<DataSet> eval;
  int64_t seq_len = 2048; // tokens
  int64_t teacher_seq_len = 0; // tokens of the teacher's sequences, for data with a teacher stream; 0: seq_len
  int64_t teacher_sequences = 0; // of several teachers: sequences in a row with one; 0: as many as ranks read at a time
  data::PackingMode packing = data::PackingMode::kPack;
  bool shuffle = true;
  int64_t seed = 0;

  int64_t teacher_length() const {
    return teacher_seq_len > 0 ? teacher_seq_len : seq_len;
  }
};

// The student's own words as training data (trainer/onpolicy/).
struct OnPolicySection {
  std::vector<DataSet> prompts; // token shards; none: the run is not on-policy
  std::vector<DataSet> eval_prompts; // held-out ones; none: the student's own words are not evaluated
  int64_t eval_completions = 64; // of the held-out prompts
  double eval_temperature = 1;
  std::string command; // a shell command with placeholders (trainer/onpolicy/command_engine.h)
  std::string server; // a shell command that lives through all rounds, likewise; empty: none
  std::string retokenize; // a shell command that writes completions in a teacher's own tokens, likewise
  int64_t every = 16; // steps of a round
  double fraction = 1; // share of on-policy sequences in a batch
  int64_t completions = 0; // of a round; 0: one for each on-policy sequence of its steps
  int64_t samples = 1; // completions of a prompt
  int64_t max_new_tokens = 512; // of a completion
  double temperature = 1;
  double top_p = 1;
  std::vector<std::string> stop; // texts that end a completion
  int64_t seed = 0; // of the prompts' order, and of what is sampled
  int64_t staleness = 0; // 1: a round is written while the one before it is trained on
  int64_t timeout_s = 3600; // for the engine to write one round
  double max_logprob_gap = 0.1; // nats, between the engine's log-probabilities and the student's own; 0: no limit
  double max_bad = 0.05; // share of a round's completions that may be unusable
  int64_t keep_rounds = 0; // 0: all
  EngineOffload offload = EngineOffload::kAuto;
  double engine_gib = 0; // device memory that the engine takes in its turn; 0: it has devices of its own
  std::string weights_dir; // folder for the weights that the engine reads; empty: in the run folder

  bool enabled() const {
    return !prompts.empty();
  }
  // Whether batches have sequences of data.train, too.
  bool mixes() const {
    return fraction < 1;
  }
  // Whether the trainer's state may have to leave the device while the engine writes.
  bool may_offload() const {
    return enabled() && (offload == EngineOffload::kAll || (offload == EngineOffload::kAuto && engine_gib > 0));
  }
};

struct TrainSection {
  // Exactly one of these is above 0 and says how long the run is (trainer/config/run_length.h).
  int64_t steps = 0; // optimizer steps
  int64_t tokens = 0; // token budget
  double epochs = 0; // passes over data.train
  int64_t micro_batch_size = 1; // sequences per forward and rank
  int64_t global_batch_size = 1; // sequences per optimizer step over all ranks
  int64_t seed = 0;
  DeviceChoice device = DeviceChoice::kAuto;
  RunDtype dtype = RunDtype::kAuto;
  int64_t max_skipped_steps = 10; // non-finite steps in a row before the run fails
  bool deterministic = false;
  double spike_sigmas = 6; // a loss this many standard deviations above the recent ones is recorded; 0: never
};

struct OptimizerSection {
  double lr = 1e-5;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1; // on matrices only
  double max_grad_norm = 1.0; // 0: no clipping
  RoundedDtype moments = RoundedDtype::kFloat32;
  RoundedDtype gradients = RoundedDtype::kFloat32; // of shards, in which they wait for the update
};

struct SchedulerSection {
  LrSchedule type = LrSchedule::kCosine;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0; // wsd: the last steps; 0: a tenth of the run
  double min_lr_ratio = 0.0; // final lr / lr
};

struct EvalSection {
  int64_t every = 0; // steps; 0: never
  int64_t batches = 0; // micro-batches per evaluation; 0: the whole set
  bool at_start = false;
  int64_t samples = 0; // held-out prompts that are continued at each evaluation
  int64_t sample_tokens = 64; // of each continuation, at most

  // Whether a training run evaluates at all.
  bool during_training() const {
    return every > 0 || at_start;
  }
};

struct CheckpointSection {
  int64_t every = 0; // steps; 0: only at the end and on a signal
  int64_t keep = 2;
  bool async = true; // periodic saves are copied to host memory and written while training goes on
  OnSaveError on_error = OnSaveError::kStop;
  bool at_end = true; // state and model are written when the run has done all its steps
  StoredDtype model_dtype = StoredDtype::kAuto; // of the model written at the end
};

struct MemorySection {
  ByBlock<models::ActivationPolicy> activation = models::ActivationPolicy::kKeep;
  ByBlock<models::StatePlace> optimizer = models::StatePlace::kDevice; // of other units: models::places_of_units
  Recompute recompute = Recompute::kAuto;
  int64_t tile_tokens = kAutomatic; // of a block's MLP; 0: no tiles; kAutomatic: the plan decides
  device::AllocatorKind allocator = device::AllocatorKind::kExpandable; // on a GPU, unless libtorch's variables say
  double budget_gib = 0; // what tensors may take at the peak; 0: all that the device has
  double limit_gib = 0; // what the allocator may take; 0: all that the device has
  OnOverflow on_overflow = OnOverflow::kRefuse;
  std::string machine; // a file of `distill plan --calibrate`, or a name of the built-in table; empty: the device's

  // For commands that have forward passes alone, which tiles do not slow down: no plan need decide.
  int64_t forward_tile_tokens() const {
    constexpr int64_t kForwardTile = 8192;
    return tile_tokens == kAutomatic ? kForwardTile : tile_tokens;
  }
};

struct ParallelSection {
  int64_t processes = 0; // ranks that distill starts on this host itself; 0: one per visible GPU, or 1 on a CPU
  int64_t shard = 0; // ranks that hold one copy of the models between them; 0: all of them / replicate
  int64_t replicate = 1; // such copies
  bool shard_teacher = true; // false: every rank has all of it
  ReduceDtype reduce_dtype = ReduceDtype::kFloat32;
  Gather gather = Gather::kAuto;
  int64_t prefetch = 1; // units whose weights are prefetched
  int64_t slots = 0; // gathered blocks that are held at a time; 0: prefetch + 1; kAutomatic: the plan decides
  Accumulate accumulate = Accumulate::kReduceEach;
  int64_t nccl_max_ctas = 0; // multiprocessors a collective may take; 0: NCCL's choice
  bool debug_checks = false;
  int64_t timeout_s = 600; // for ranks to arrive, and for a collective
};

struct ProfileSection {
  int64_t trace_steps = 0; // steps recorded into run.dir/trace-rank<N>.json; 0: none
  int64_t trace_start = 4; // the first of them, 1-based
};

struct RunSection {
  std::string dir; // run folder
  int64_t log_every = 1; // steps
  ProgressStyle progress = ProgressStyle::kAuto;
  bool tensorboard = false; // event files in the run folder
  int64_t step_timeout_s = 1800; // without progress; 0: no limit
  int64_t grace_s = 300; // from a signal to the end of the process; 0: no limit
};

// Soft caps of the logits; 0: none; kAutomatic: the one of the model's config.json.
struct Softcaps {
  double student = kAutomatic;
  double teacher = kAutomatic;
};

struct Config {
  ModelSection student;
  LoraSection lora; // keys student.lora.*
  ModelSection teacher; // the only one
  std::vector<NamedTeacher> teachers; // or several
  // Of a configuration that config_of_teacher() has made: the number of its teacher, whose keys are in `teacher`. -1:
  // the run's own.
  int64_t this_teacher = -1;
  Float8Section float8;
  CacheSection cache;
  DataSection data;
  OnPolicySection onpolicy;
  losses::LossOptions loss; // without the softcaps, which are the models' (models::ModelConfig::final_softcap)
  // Of on-policy sequences; logits_dtype, metrics and softcaps are those of `loss`.
  losses::LossOptions onpolicy_loss = {.divergence = losses::Divergence::kReverseKl};
  losses::SpanOptions spans; // keys loss.span_weight, loss.span_temperature
  losses::SpanOptions onpolicy_spans; // of on-policy sequences, likewise
  Softcaps softcaps; // keys loss.student_softcap, loss.teacher_softcap
  losses::ChunkOptions chunks; // keys loss.chunk_size, loss.memory_cap_mb, loss.min_chunk_size
  TrainSection train;
  OptimizerSection optimizer;
  SchedulerSection scheduler;
  EvalSection eval;
  CheckpointSection checkpoint;
  MemorySection memory;
  ParallelSection parallel;
  ProfileSection profile;
  RunSection run;

  // Whether adapters of the student are trained, and not its weights.
  bool trains_adapter() const {
    return lora.rank > 0 || !student.adapter.empty();
  }
  // Whether student and teacher are read from one folder, in the same way.
  bool same_folder() const;
  // The seed of a model's random weights. A teacher's are others than the student's, unless they are the base of its
  // adapters, and others than those of teachers of other folders.
  int64_t teacher_seed() const;
  // Whether this is the configuration of a run whose teachers are those of `teachers`.
  bool has_list() const {
    return this_teacher < 0 && !teachers.empty();
  }
  bool has_teacher() const {
    return has_list() || !teacher.folder().empty();
  }
  // Whether a teacher of the run has a tokenizer of its own.
  bool any_teacher_by_bytes() const;
  // The names of `teachers`.
  std::vector<std::string> teacher_names() const {
    std::vector<std::string> names;
    names.reserve(teachers.size());
    for (const NamedTeacher& named : teachers) {
      names.push_back(named.name);
    }
    return names;
  }
  // The data that a training run reads in order: data.train, or, where every sequence is on-policy, the prompts, whose
  // identity stands for the run's.
  const std::vector<DataSet>& train_sets() const {
    return data.train.empty() && onpolicy.enabled() ? onpolicy.prompts : data.train;
  }
  // The on-policy sequences of a step.
  int64_t onpolicy_sequences() const {
    const double share = onpolicy.enabled() ? onpolicy.fraction : 0;
    return static_cast<int64_t>(share * static_cast<double>(train.global_batch_size) + 0.5);
  }
  // The completions of a round.
  int64_t onpolicy_completions() const {
    return onpolicy.completions > 0 ? onpolicy.completions : onpolicy.every * onpolicy_sequences();
  }
};

} // namespace distill::config
