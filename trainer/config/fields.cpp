#include <limits>

#include "trainer/config/field.h"

// Every key of the configuration, once.
namespace distill::config {

namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxSteps = 1'000'000'000'000;
constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxTokens = 1'000'000'000'000'000'000;
constexpr int64_t kMaxBatch = 1 << 24;
constexpr int64_t kMaxSeqLen = 1 << 26;
constexpr double kInf = std::numeric_limits<double>::infinity();

template <auto kSection, auto kMember>
auto& member(Config& config) {
  return config.*kSection.*kMember;
}

template <auto kSection, auto kMember>
Choice one_of(std::vector<std::string> names) {
  return {
      names, [](Config& config) -> std::string { return config.*kSection.*kMember; },
      [names](Config& config, size_t index) { config.*kSection.*kMember = names[index]; }};
}

// Names in the order of the enumerators.
template <auto kSection, auto kMember>
Choice enumerator(std::vector<std::string> names) {
  return {
      names, [names](Config& config) { return names[static_cast<size_t>(config.*kSection.*kMember)]; },
      [](Config& config, size_t index) {
        auto& value = config.*kSection.*kMember;
        value = static_cast<std::remove_reference_t<decltype(value)>>(index);
      }};
}

template <auto kModel>
std::vector<Field> model_fields(const std::string& section, Condition condition) {
  return {
      {section, "path", Text{member<kModel, &ModelSection::path>}, "folder",
       section == "student" ? "Hugging Face folder of the model that is trained. Required."
                            : "Hugging Face folder of the frozen teacher. Empty: no teacher, hard labels only."},
      {section, "tokenizer", Text{member<kModel, &ModelSection::tokenizer>}, "path",
       "Folder with tokenizer.json, or the file itself. Empty: the model's folder.", condition},
      {section, "init", one_of<kModel, &ModelSection::init>({"pretrained", "random"}), "",
       "random reads config.json alone and draws the weights from train.seed.", condition},
      {section, "dtype", one_of<kModel, &ModelSection::dtype>({"auto", "float32", "bfloat16"}), "",
       "Dtype that the model computes in. auto: train.dtype.", condition},
  };
}

std::vector<Field> data_fields() {
  constexpr auto kData = &Config::data;
  return {
      {"data", "train", DataSets{member<kData, &DataSection::train>}, "",
       "Token shards to train on, as scripts/tokenize.py writes them: a file or a folder of them. Several sets are mixed by "
       "weight (default 1). Required."},
      {"data", "eval", DataSets{member<kData, &DataSection::eval>}, "", "Held-out token shards."},
      {"data", "seq_len", Integer{member<kData, &DataSection::seq_len>, 2, kMaxSeqLen}, "tokens",
       "Tokens in a sequence."},
      {"data", "packing", one_of<kData, &DataSection::packing>({"pack", "concat"}), "",
       "pack: whole documents, no attention across them. concat: one stream of tokens cut into sequences."},
      {"data", "shuffle", Boolean{member<kData, &DataSection::shuffle>}, "",
       "A new order in every epoch, from data.seed."},
      {"data", "seed", Integer{member<kData, &DataSection::seed>, 0, kMaxInt}, "", "Seed of order and mixing."},
  };
}

const Condition kSoftLoss = {
    [](const Config& c) { return c.loss.divergence != losses::Divergence::kNone; }, "loss.divergence is not none",
    "loss.divergence"};
const Condition kJsdOnly = {
    [](const Config& c) { return c.loss.divergence == losses::Divergence::kJsd; }, "loss.divergence is jsd",
    "loss.divergence"};
const Condition kSkewOnly = {
    [](const Config& c) {
      return c.loss.divergence == losses::Divergence::kSkewForwardKl ||
          c.loss.divergence == losses::Divergence::kSkewReverseKl;
    },
    "loss.divergence is skew_forward_kl or skew_reverse_kl", "loss.divergence"};
const Condition kHardLoss = {
    [](const Config& c) { return c.loss.hard_weight > 0; }, "loss.hard_weight is above 0", "loss.hard_weight"};
const Condition kTeacher = {
    [](const Config& c) { return !c.teacher.path.empty(); }, "teacher.path is set", "teacher.path"};

std::vector<Field> loss_fields() {
  using losses::ChunkOptions;
  using losses::LossOptions;
  constexpr auto kLoss = &Config::loss;
  constexpr auto kChunks = &Config::chunks;
  return {
      {"loss", "divergence",
       enumerator<kLoss, &LossOptions::divergence>(
           {"none", "jsd", "forward_kl", "reverse_kl", "skew_forward_kl", "skew_reverse_kl", "total_variation"}),
       "", "Divergence of the student q from the teacher p. none: hard labels only."},
      {"loss", "beta", Real{member<kLoss, &LossOptions::beta>, 0, 1}, "",
       "Generalised JSD: 0 is forward KL(p||q), 1 is reverse KL(q||p). The JSD tends to 0 towards both ends, where the full "
       "KLs stand instead.",
       kJsdOnly},
      {"loss", "skew_alpha", Real{member<kLoss, &LossOptions::skew_alpha>, 0, 1, false, true}, "",
       "Skew KL's share of its own side in the mixture.", kSkewOnly},
      {"loss", "temperature", Real{member<kLoss, &LossOptions::temperature>, 0, kInf, true}, "",
       "Divides both logits in the divergence.", kSoftLoss},
      {"loss", "scale_by_temperature_squared", Boolean{member<kLoss, &LossOptions::scale_by_temperature_squared>}, "",
       "Multiplies the divergence and its gradient by temperature^2 (Hinton et al. 2015).", kSoftLoss},
      {"loss", "hard_weight", Real{member<kLoss, &LossOptions::hard_weight>, 0, kInf}, "",
       "Weight of the cross-entropy on the labels."},
      {"loss", "soft_weight", Real{member<kLoss, &LossOptions::soft_weight>, 0, kInf}, "", "Weight of the divergence.",
       kSoftLoss},
      {"loss", "label_smoothing", Real{member<kLoss, &LossOptions::label_smoothing>, 0, 1, false, true}, "",
       "Share of the label's probability spread over the vocabulary.", kHardLoss},
      {"loss", "z_loss", Real{member<kLoss, &LossOptions::z_loss>, 0, kInf}, "",
       "Weight of log-sum-exp^2 within the hard loss.", kHardLoss},
      {"loss", "student_softcap", Real{member<kLoss, &LossOptions::student_softcap>, 0, kInf}, "",
       "Logits become cap * tanh(logits / cap). 0: off."},
      {"loss", "teacher_softcap", Real{member<kLoss, &LossOptions::teacher_softcap>, 0, kInf}, "",
       "The same for the teacher's logits. 0: off.", kTeacher},
      {"loss", "logits_dtype", enumerator<kLoss, &LossOptions::logits_dtype>({"float32", "bfloat16"}), "",
       "bfloat16 halves the head's memory; its gradients are wrong by tens of per cent once the student is close to the "
       "teacher."},
      {"loss", "chunk_size", Integer{member<kChunks, &ChunkOptions::chunk_size>, 0, kMaxSeqLen}, "tokens",
       "Tokens whose logits exist at once. 0: automatic."},
      {"loss", "memory_cap_mb", Integer{member<kChunks, &ChunkOptions::memory_cap_mb>, 1, 1 << 24}, "MiB",
       "Hard limit of the head's buffers; wins over chunk_size and min_chunk_size."},
      {"loss", "min_chunk_size", Integer{member<kChunks, &ChunkOptions::min_chunk_size>, 1, kMaxSeqLen}, "tokens",
       "The automatic chunk is no smaller, unless the memory cap says so."},
  };
}

std::vector<Field> train_fields() {
  constexpr auto kTrain = &Config::train;
  return {
      {"train", "steps", Integer{member<kTrain, &TrainSection::steps>, 0, kMaxSteps}, "steps",
       "Optimizer steps of the run. Exactly one of train.steps and train.tokens is given."},
      {"train", "tokens", Integer{member<kTrain, &TrainSection::tokens>, 0, kMaxTokens}, "tokens",
       "Budget of tokens, padding included; rounded up to whole steps."},
      {"train", "micro_batch_size", Integer{member<kTrain, &TrainSection::micro_batch_size>, 1, kMaxBatch}, "sequences",
       "Sequences in one forward pass on one rank."},
      {"train", "global_batch_size", Integer{member<kTrain, &TrainSection::global_batch_size>, 1, kMaxBatch},
       "sequences",
       "Sequences in one optimizer step over all ranks: a multiple of micro_batch_size x ranks; the rest is gradient "
       "accumulation."},
      {"train", "seed", Integer{member<kTrain, &TrainSection::seed>, 0, kMaxInt}, "", "Seed of random weights."},
      {"train", "device", one_of<kTrain, &TrainSection::device>({"auto", "cpu", "cuda"}), "",
       "auto: cuda where there is a GPU."},
      {"train", "dtype", one_of<kTrain, &TrainSection::dtype>({"auto", "float32", "bfloat16"}), "",
       "Dtype of the computation; master weights are float32 always. auto: bfloat16 on CUDA, float32 on CPU."},
      {"train", "max_skipped_steps", Integer{member<kTrain, &TrainSection::max_skipped_steps>, 1, kMaxInt}, "steps",
       "Steps with non-finite gradients are skipped; so many in a row end the run."},
      {"train", "deterministic", Boolean{member<kTrain, &TrainSection::deterministic>}, "",
       "Only kernels that give the same bits every time."},
      {"train", "spike_sigmas", Real{member<kTrain, &TrainSection::spike_sigmas>, 0, kInf}, "",
       "A step whose loss is above the median of the last 64 by so many (robust) standard deviations is recorded in "
       "events.jsonl with its samples. 0: none is."},
  };
}

std::vector<Field> optimizer_fields() {
  constexpr auto kOptimizer = &Config::optimizer;
  return {
      {"optimizer", "lr", Real{member<kOptimizer, &OptimizerSection::lr>, 0, kInf, true}, "",
       "Peak learning rate of AdamW."},
      {"optimizer", "beta1", Real{member<kOptimizer, &OptimizerSection::beta1>, 0, 1, false, true}, "",
       "Decay of the first moment."},
      {"optimizer", "beta2", Real{member<kOptimizer, &OptimizerSection::beta2>, 0, 1, false, true}, "",
       "Decay of the second moment."},
      {"optimizer", "eps", Real{member<kOptimizer, &OptimizerSection::eps>, 0, kInf, true}, "",
       "Added to the root of the second moment."},
      {"optimizer", "weight_decay", Real{member<kOptimizer, &OptimizerSection::weight_decay>, 0, kInf}, "",
       "Decoupled decay of matrices; norms and biases have none."},
      {"optimizer", "max_grad_norm", Real{member<kOptimizer, &OptimizerSection::max_grad_norm>, 0, kInf}, "",
       "Gradients are clipped to this global L2 norm. 0: no clipping."},
  };
}

std::vector<Field> scheduler_fields() {
  constexpr auto kScheduler = &Config::scheduler;
  static const Condition kDecays = {
      [](const Config& c) { return c.scheduler.type != "constant"; }, "scheduler.type is not constant",
      "scheduler.type"};
  static const Condition kWsd = {
      [](const Config& c) { return c.scheduler.type == "wsd"; }, "scheduler.type is wsd", "scheduler.type"};
  return {
      {"scheduler", "type", one_of<kScheduler, &SchedulerSection::type>({"constant", "linear", "cosine", "wsd"}), "",
       "What follows the warm-up; wsd: constant, then linear decay."},
      {"scheduler", "warmup_steps", Integer{member<kScheduler, &SchedulerSection::warmup_steps>, 0, kMaxSteps}, "steps",
       "Linear from lr / warmup_steps to lr."},
      {"scheduler", "decay_steps", Integer{member<kScheduler, &SchedulerSection::decay_steps>, 0, kMaxSteps}, "steps",
       "The last steps of the run, in which wsd decays. 0: a tenth of the run.", kWsd},
      {"scheduler", "min_lr_ratio", Real{member<kScheduler, &SchedulerSection::min_lr_ratio>, 0, 1}, "",
       "Final learning rate divided by the peak.", kDecays},
  };
}

std::vector<Field> eval_fields() {
  constexpr auto kEval = &Config::eval;
  return {
      {"eval", "every", Integer{member<kEval, &EvalSection::every>, 0, kMaxSteps}, "steps",
       "Evaluate on data.eval every so many steps. 0: never."},
      {"eval", "batches", Integer{member<kEval, &EvalSection::batches>, 0, kMaxSteps}, "micro-batches",
       "Size of one evaluation. 0: the whole set."},
      {"eval", "at_start", Boolean{member<kEval, &EvalSection::at_start>}, "", "Also evaluate before the first step."},
  };
}

std::vector<Field> parallel_fields() {
  constexpr auto kParallel = &Config::parallel;
  return {
      {"parallel", "processes", Integer{member<kParallel, &ParallelSection::processes>, 0, 4096}, "ranks",
       "Ranks that distill starts on this host itself, when no launcher did. 0: one for each visible GPU, 1 on a CPU."},
      {"parallel", "shard", Integer{member<kParallel, &ParallelSection::shard>, 0, kMaxRanks}, "ranks",
       "Ranks that hold one copy of the models between them. 0: all ranks divided by parallel.replicate."},
      {"parallel", "replicate", Integer{member<kParallel, &ParallelSection::replicate>, 1, kMaxRanks}, "copies",
       "Copies of the sharded models (HSDP), usually one for each node."},
      {"parallel", "shard_teacher", Boolean{member<kParallel, &ParallelSection::shard_teacher>}, "",
       "The teacher is spread over the same ranks as the student. false: every rank holds all of it, at 2 bytes per "
       "parameter (bfloat16), and gathers nothing for it."},
      {"parallel", "reduce_dtype", one_of<kParallel, &ParallelSection::reduce_dtype>({"float32", "bfloat16"}), "",
       "Dtype in which gradients travel; bfloat16 halves the traffic and rounds every rank's part."},
      {"parallel", "prefetch", Integer{member<kParallel, &ParallelSection::prefetch>, 1, 16}, "units",
       "Units gathered ahead of the one that computes; each costs a slot."},
      {"parallel", "accumulate", one_of<kParallel, &ParallelSection::accumulate>({"reduce_each", "keep_full"}), "",
       "With several micro-batches in a step: reduce_each adds every one's gradients to the shards; keep_full keeps whole "
       "float32 gradients and reduces once a step, at 4 bytes per parameter on every rank."},
      {"parallel", "nccl_max_ctas", Integer{member<kParallel, &ParallelSection::nccl_max_ctas>, 0, 64}, "",
       "Multiprocessors that one NCCL collective may take from the computation beside it. 0: NCCL decides."},
      {"parallel", "debug_checks", Boolean{member<kParallel, &ParallelSection::debug_checks>}, "",
       "Compares checksums of every gathered unit between its uses, and makes an error of anything in a step for which the "
       "host waits for the GPU. Costs time and memory."},
      {"parallel", "timeout_s", Integer{member<kParallel, &ParallelSection::timeout_s>, 1, 86400}, "seconds",
       "How long ranks wait for each other to arrive, and for a collective to end."},
  };
}

std::vector<Field> memory_fields() {
  constexpr auto kMemory = &Config::memory;
  return {
      {"memory", "activation", Text{member<kMemory, &MemorySection::activation>}, "",
       "What each block keeps for its backward pass: keep (all of it), recompute (its input; the forward pass runs again), "
       "offload (all of it, in host memory), offload_input (its input, in host memory), a list of runs in forward order "
       "such as recompute*24,keep*8, or auto: the fastest mix that fits."},
      {"memory", "optimizer", one_of<kMemory, &MemorySection::optimizer>({"device", "host"}), "",
       "Where float32 master weights and moments lie. host: they pass through the device in pieces, "
       "beside the next step's teacher."},
      {"memory", "budget_gib", Real{member<kMemory, &MemorySection::budget_gib>, 0, kInf}, "GiB",
       "What tensors may take on the device at the peak; auto plans for it. 0: all that the device has."},
      {"memory", "limit_gib", Real{member<kMemory, &MemorySection::limit_gib>, 0, kInf}, "GiB",
       "The allocator takes no more than this from the device; a request beyond it is out of memory. 0: no limit."},
      {"memory", "on_overflow", one_of<kMemory, &MemorySection::on_overflow>({"refuse", "warn"}), "",
       "When the plan does not fit: refuse to start, or warn and try anyway."},
      {"memory", "machine", Text{member<kMemory, &MemorySection::machine>}, "file",
       "Speeds that `distill plan --calibrate` measured. Empty: the built-in table."},
  };
}

std::vector<Field> run_fields() {
  constexpr auto kRun = &Config::run;
  return {
      {"run", "dir", Text{member<kRun, &RunSection::dir>}, "folder",
       "Run folder: resolved config, log, metrics, checkpoints, the trained model. Required."},
      {"run", "log_every", Integer{member<kRun, &RunSection::log_every>, 1, kMaxSteps}, "steps",
       "Steps between two lines of progress; metrics.jsonl has every step."},
      {"run", "progress", one_of<kRun, &RunSection::progress>({"auto", "bar", "lines", "none"}), "",
       "Progress on standard output. auto: a bar on a terminal, lines elsewhere."},
      {"run", "step_timeout_s", Integer{member<kRun, &RunSection::step_timeout_s>, 0, 31536000}, "seconds",
       "A rank that is in one phase of a step (or in a save) for longer ends the run, with its place and the stacks of its "
       "threads in stacks-rank<N>.txt. 0: no limit."},
      {"run", "grace_s", Integer{member<kRun, &RunSection::grace_s>, 0, 31536000}, "seconds",
       "After SIGINT, SIGTERM or SIGUSR1 the run stops at the end of its step and saves. A rank that has not ended after "
       "this long is ended all the same; the checkpoints before stay. 0: no limit."},
  };
}

std::vector<Section> make_sections() {
  constexpr auto kCheckpoint = &Config::checkpoint;
  return {
      {"student", "the model that is trained", model_fields<&Config::student>("student", {})},
      {"teacher", "the frozen model it learns from", model_fields<&Config::teacher>("teacher", kTeacher)},
      {"data", "token shards and how they become sequences", data_fields()},
      {"loss", "hard_weight x cross-entropy + soft_weight x divergence, per token in nats", loss_fields()},
      {"train", "length, batch and device of the run", train_fields()},
      {"optimizer", "AdamW", optimizer_fields()},
      {"scheduler", "the learning rate over the run", scheduler_fields()},
      {"eval", "evaluation during training, and of `distill eval`", eval_fields()},
      {"checkpoint",
       "training state for --resume",
       {{"checkpoint", "every", Integer{member<kCheckpoint, &CheckpointSection::every>, 0, kMaxSteps}, "steps",
         "Save every so many steps. 0: only at the end and when a signal stops the run."},
        {"checkpoint", "keep", Integer{member<kCheckpoint, &CheckpointSection::keep>, 1, kMaxSteps}, "",
         "How many of the newest checkpoints stay. One more is on the disk while the next one is written."},
        {"checkpoint", "async", Boolean{member<kCheckpoint, &CheckpointSection::async>}, "",
         "Copy the state to host memory (12 bytes for each parameter of this rank's shard) and write it while training goes "
         "on. false: training waits until it is written."},
        {"checkpoint", "on_error", one_of<kCheckpoint, &CheckpointSection::on_error>({"stop", "continue"}), "",
         "When a save at checkpoint.every fails (full disk, folder gone): stop ends the run, continue warns and tries again "
         "at the next one. The checkpoints before stay as they are; a save at the end or on a signal that fails is an error "
         "always."},
        {"checkpoint", "at_end", Boolean{member<kCheckpoint, &CheckpointSection::at_end>}, "",
         "Write a checkpoint and the trained model when the run has done all its steps. false: for measurements."},
        {"checkpoint", "model_dtype",
         one_of<kCheckpoint, &CheckpointSection::model_dtype>({"auto", "float32", "bfloat16", "float16"}), "",
         "Stored dtype of the trained model. auto: the one that student.path is stored in."}}},
      {"memory", "what lies where, and what the backward pass keeps (docs/memory.md)", memory_fields()},
      {"parallel", "ranks, and how models are spread over them", parallel_fields()},
      {"profile",
       "traces",
       {{"profile", "trace_steps", Integer{member<&Config::profile, &ProfileSection::trace_steps>, 0, 1000}, "steps",
         "Record so many steps into run.dir/trace-rank<N>.json, a Chrome trace. 0: none."},
        {"profile", "trace_start", Integer{member<&Config::profile, &ProfileSection::trace_start>, 1, kMaxSteps}, "",
         "The first step recorded, counted from 1."}}},
      {"run", "the run folder and what is printed", run_fields()},
  };
}

} // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> all = make_sections();
  return all;
}

} // namespace distill::config
