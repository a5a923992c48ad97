#include "trainer/config/field_kinds.h"
#include "trainer/config/model_fields.h"
#include "trainer/config/onpolicy_fields.h"

// The keys of the remaining sections, and the list of all sections. Every key is described once, here, in
// model_fields.cpp or in onpolicy_fields.cpp.
namespace distill::config {

namespace {

std::vector<Field> data_fields() {
  constexpr auto kData = &Config::data;
  return {
      {"data", "train", DataSets{member<kData, &DataSection::train>}, "",
       "Token shards to train on, written by scripts/tokenize.py: a file, or a folder of files. Several data sets are "
       "mixed in proportion to their weights (default 1). With several teachers, the key teacher of a data set gives all of "
       "its rows to one, or with a mapping of names to shares, deals them; without it each document names its teacher "
       "(docs/teachers.md). Required, unless onpolicy.fraction is 1."},
      {"data", "eval", DataSets{member<kData, &DataSection::eval>}, "", "Held-out token shards for evaluation."},
      {"data", "seq_len", Integer{member<kData, &DataSection::seq_len>, 2, kMaxSeqLen}, "tokens",
       "Length of a training sequence."},
      {"data", "teacher_seq_len", Integer{member<kData, &DataSection::teacher_seq_len>, 0, kMaxSeqLen}, "tokens",
       "Length of the sequences that the teacher reads, for data with a teacher stream: texts of the teacher's own, such "
       "as a prompt with the answer, before the same completion. 0: as data.seq_len."},
      {"data", "teacher_sequences", Integer{member<kData, &DataSection::teacher_sequences>, 0, kMaxBatch}, "sequences",
       "With several teachers: how many training sequences in a row have the same teacher, so that a micro-batch of all "
       "ranks has one. A multiple of train.micro_batch_size x ranks, and a divisor of train.global_batch_size. 0: "
       "train.micro_batch_size x ranks. A run that is resumed on another number of ranks needs the number that it had.",
       kTeacherList},
      {"data", "packing", one_of<kData, &DataSection::packing>(), "",
       "pack: a sequence holds whole documents, and no token attends to another document. concat: all documents form "
       "one stream of tokens, which is cut into sequences."},
      {"data", "shuffle", Boolean{member<kData, &DataSection::shuffle>}, "",
       "Read the data in a new random order in every epoch."},
      {"data", "seed", Integer{member<kData, &DataSection::seed>, 0, kMaxInt}, "", "Seed of the random order."},
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
const Condition kAlignedLoss = {
    [](const Config& c) {
      return c.teacher.alignment == Alignment::kBytes && c.loss.divergence != losses::Divergence::kNone;
    },
    "teacher.alignment is bytes and loss.divergence is not none", "teacher.alignment"};
std::vector<Field> loss_fields() {
  using losses::ChunkOptions;
  using losses::LossOptions;
  constexpr auto kLoss = &Config::loss;
  constexpr auto kChunks = &Config::chunks;
  return {
      {"loss", "divergence", one_of<kLoss, &LossOptions::divergence>(), "",
       "Divergence between the teacher's distribution p and the student's distribution q. none: the labels alone."},
      {"loss", "beta", real_of<kLoss, &LossOptions::beta>(), "",
       "Weight of the generalised JSD: 0 is forward KL(p || q), 1 is reverse KL(q || p). The JSD between them tends to "
       "0 as beta goes to 0 or 1, so the loss jumps at both ends.",
       kJsdOnly},
      {"loss", "skew_alpha", real_of<kLoss, &LossOptions::skew_alpha>(), "",
       "Weight of the first distribution in the mixture it is compared with: KL(p || alpha p + (1 - alpha) q), or "
       "KL(q || alpha q + (1 - alpha) p).",
       kSkewOnly},
      {"loss", "temperature", real_of<kLoss, &LossOptions::temperature>(), "",
       "Divisor of the logits of both models in the divergence.", kSoftLoss},
      {"loss", "scale_by_temperature_squared", Boolean{member<kLoss, &LossOptions::scale_by_temperature_squared>}, "",
       "Multiply the divergence and its gradient by temperature^2 (Hinton et al. 2015).", kSoftLoss},
      {"loss", "hard_weight", real_of<kLoss, &LossOptions::hard_weight>(), "",
       "Weight of the cross-entropy on the labels."},
      {"loss", "soft_weight", real_of<kLoss, &LossOptions::soft_weight>(), "", "Weight of the divergence.", kSoftLoss},
      {"loss", "label_smoothing", real_of<kLoss, &LossOptions::label_smoothing>(), "",
       "Part of the label's probability that is spread evenly over the vocabulary.", kHardLoss},
      {"loss", "z_loss", real_of<kLoss, &LossOptions::z_loss>(), "",
       "Coefficient of logsumexp(logits)^2, which is added to the cross-entropy.", kHardLoss},
      {"loss", "student_softcap", softcap_of<&Softcaps::student>(), "",
       "Soft cap of the student's logits: cap * tanh(logits / cap). auto: final_logit_softcapping of its config.json. "
       "0: none."},
      {"loss", "teacher_softcap", softcap_of<&Softcaps::teacher>(), "",
       "Soft cap of the teacher's logits. auto: as student_softcap. 0: none.", kTeacher},
      {"loss", "span_weight", Real{member<&Config::spans, &losses::SpanOptions::weight>, 0, losses::kMost}, "",
       "Weight, beside the divergence of a token, of that of a span: a piece of text that is more than one token of "
       "either model. It is the divergence between their probabilities of writing that text (docs/vocabulary.md). 0: "
       "spans are not compared.",
       kAlignedLoss},
      {"loss", "span_starts", Boolean{member<&Config::spans, &losses::SpanOptions::starts>}, "",
       "Compare the distributions of the next token where a span begins, too. There the two models expect tokens of other "
       "lengths, and the student would learn to write the teacher's.",
       kAlignedLoss},
      {"loss", "span_temperature", Real{member<&Config::spans, &losses::SpanOptions::temperature>, 0.01, 1e6}, "",
       "The probabilities of a span are taken to the power 1 / span_temperature, and its divergence times "
       "span_temperature. 1: the probabilities as they are. The higher, the more an improbable span counts.",
       kAlignedLoss},
      {"loss", "logits_dtype", one_of<kLoss, &LossOptions::logits_dtype>(), "",
       "Dtype of the logits. bfloat16 halves the memory of the loss head, but its gradients are wrong by tens of per "
       "cent once the student is close to the teacher."},
      {"loss", "metrics", one_of<kLoss, &LossOptions::metrics>(), "",
       "Which numbers of a token training steps compute (docs/metrics.md). loss: the loss, its parts and the log-sum-exps "
       "alone, which takes less time on a GPU. Evaluations compute all of them, and so do steps whose teacher is a cache "
       "of top-k or samples."},
      {"loss", "chunk_size", integer_of<kChunks, &ChunkOptions::chunk_size>(), "tokens",
       "Number of tokens whose logits are computed at a time. 0: chosen automatically, and the chunks of a group may become "
       "smaller (docs/loss_head.md)."},
      {"loss", "memory_cap_mb", integer_of<kChunks, &ChunkOptions::memory_cap_mb>(), "MiB",
       "Hard limit of the loss head's scratch memory. It takes precedence over chunk_size and min_chunk_size."},
      {"loss", "min_chunk_size", integer_of<kChunks, &ChunkOptions::min_chunk_size>(), "tokens",
       "Smallest chunk size that is chosen automatically, unless memory_cap_mb requires a smaller one. The last chunk of a "
       "group may be smaller."},
  };
}

std::vector<Field> train_fields() {
  constexpr auto kTrain = &Config::train;
  return {
      {"train", "steps", Integer{member<kTrain, &TrainSection::steps>, 0, kMaxSteps}, "steps",
       "Optimizer steps of the run. Exactly one of train.steps, train.tokens and train.epochs is given."},
      {"train", "tokens", Integer{member<kTrain, &TrainSection::tokens>, 0, kMaxTokens}, "tokens",
       "Training tokens of the run, padding included, rounded up to whole steps."},
      {"train", "epochs", Real{member<kTrain, &TrainSection::epochs>, 0, kMaxEpochs}, "epochs",
       "Passes over data.train, rounded up to whole steps; 0.5 is half a pass. An epoch is as many sequences as all its "
       "data sets have together, whatever their weights."},
      {"train", "micro_batch_size", Integer{member<kTrain, &TrainSection::micro_batch_size>, 1, kMaxBatch}, "sequences",
       "Sequences in one forward and backward pass on one rank."},
      {"train", "global_batch_size", Integer{member<kTrain, &TrainSection::global_batch_size>, 1, kMaxBatch},
       "sequences",
       "Sequences in one optimizer step over all ranks: a multiple of micro_batch_size x ranks. The quotient is the "
       "number of gradient accumulation steps."},
      {"train", "seed", Integer{member<kTrain, &TrainSection::seed>, 0, kMaxInt}, "",
       "Seed of randomly initialised weights."},
      {"train", "device", one_of<kTrain, &TrainSection::device>(), "", "auto: cuda where a GPU is visible, else cpu."},
      {"train", "dtype", one_of<kTrain, &TrainSection::dtype>(), "",
       "Dtype of the forward and backward passes; master weights are always float32. auto: bfloat16 on CUDA, float32 on "
       "the CPU. teacher.dtype and student.dtype may be float8."},
      {"train", "max_skipped_steps", Integer{member<kTrain, &TrainSection::max_skipped_steps>, 1, kMaxInt}, "steps",
       "A step whose gradients are not finite is skipped: it changes no weight. The run fails after this many skipped "
       "steps in a row."},
      {"train", "deterministic", Boolean{member<kTrain, &TrainSection::deterministic>}, "",
       "Use only kernels whose results are bit for bit the same every time."},
      {"train", "spike_sigmas", Real{member<kTrain, &TrainSection::spike_sigmas>, 0, kMost}, "",
       "A step is recorded in events.jsonl as a loss spike, with its samples, when its loss exceeds the median of the "
       "last 64 steps by this many robust standard deviations. 0: spikes are not recorded."},
  };
}

std::vector<Field> optimizer_fields() {
  constexpr auto kOptimizer = &Config::optimizer;
  return {
      {"optimizer", "lr", Real{member<kOptimizer, &OptimizerSection::lr>, kLeast, kMost}, "", "Peak learning rate."},
      {"optimizer", "beta1", Real{member<kOptimizer, &OptimizerSection::beta1>, 0, 1, false, true}, "",
       "Decay rate of the first moment."},
      {"optimizer", "beta2", Real{member<kOptimizer, &OptimizerSection::beta2>, 0, 1, false, true}, "",
       "Decay rate of the second moment."},
      {"optimizer", "eps", Real{member<kOptimizer, &OptimizerSection::eps>, kLeast, kMost}, "",
       "Added to the square root of the second moment."},
      {"optimizer", "weight_decay", Real{member<kOptimizer, &OptimizerSection::weight_decay>, 0, kMost}, "",
       "Decoupled weight decay of matrices. Norm weights and biases are not decayed."},
      {"optimizer", "max_grad_norm",
       Real{member<kOptimizer, &OptimizerSection::max_grad_norm>, kLeast, kMost, false, false, /*or_zero=*/true}, "",
       "Global L2 norm that gradients are clipped to. 0: no clipping."},
      {"optimizer", "moments", one_of<kOptimizer, &OptimizerSection::moments>(), "",
       "Dtype of the moments in memory and in checkpoints. bfloat16: 4 bytes less for each parameter; moments are updated "
       "in float32 and rounded stochastically, alike on any number of ranks and after a resumption."},
      {"optimizer", "gradients", one_of<kOptimizer, &OptimizerSection::gradients>(), "",
       "Dtype of the gradient shards. bfloat16: 2 bytes less for each parameter; every micro-batch's gradient is computed "
       "and reduced as ever, added in float32 and rounded stochastically. Norm and clipping are those of what is stored."},
  };
}

std::vector<Field> scheduler_fields() {
  constexpr auto kScheduler = &Config::scheduler;
  static const Condition kDecays = {
      [](const Config& c) { return c.scheduler.type != LrSchedule::kConstant; }, "scheduler.type is not constant",
      "scheduler.type"};
  static const Condition kWsd = {
      [](const Config& c) { return c.scheduler.type == LrSchedule::kWsd; }, "scheduler.type is wsd", "scheduler.type"};
  return {
      {"scheduler", "type", one_of<kScheduler, &SchedulerSection::type>(), "",
       "Learning rate after the warm-up. wsd (warm-up, stable, decay): constant, then a linear decay."},
      {"scheduler", "warmup_steps", Integer{member<kScheduler, &SchedulerSection::warmup_steps>, 0, kMaxSteps}, "steps",
       "Length of the linear warm-up from lr / warmup_steps to lr."},
      {"scheduler", "decay_steps", Integer{member<kScheduler, &SchedulerSection::decay_steps>, 0, kMaxSteps}, "steps",
       "Length of the linear decay at the end of the run. 0: a tenth of the run.", kWsd},
      {"scheduler", "min_lr_ratio", Real{member<kScheduler, &SchedulerSection::min_lr_ratio>, 0, 1}, "",
       "Learning rate at the end of the run divided by optimizer.lr. The decay reaches it with the end of the last step, "
       "whose own learning rate is still above it.",
       kDecays},
  };
}

std::vector<Field> eval_fields() {
  constexpr auto kEval = &Config::eval;
  static const Condition kSamples = {
      [](const Config& c) { return c.eval.samples > 0; }, "eval.samples is above 0", "eval.samples"};
  return {
      {"eval", "every", Integer{member<kEval, &EvalSection::every>, 0, kMaxSteps}, "steps",
       "Steps from one evaluation on data.eval to the next; the last step is followed by one, too. 0: no evaluation "
       "during training."},
      {"eval", "batches", Integer{member<kEval, &EvalSection::batches>, 0, kMaxSteps}, "micro-batches",
       "Size of one evaluation over all ranks. Of several teachers each has its share, and one at least on each rank. "
       "0: all of data.eval."},
      {"eval", "at_start", Boolean{member<kEval, &EvalSection::at_start>}, "", "Evaluate before the first step, too."},
      {"eval", "samples", Integer{member<kEval, &EvalSection::samples>, 0, 1024}, "",
       "Number of prompts of data.eval that student and teacher continue greedily at each evaluation during training, "
       "into samples.jsonl of the run folder. A prompt is a conversation up to its first token in the loss, or the first "
       "half of a text. Needs the student's tokenizer. 0: none."},
      {"eval", "sample_tokens", Integer{member<kEval, &EvalSection::sample_tokens>, 1, kMaxSteps}, "tokens",
       "Largest length of a continuation. Prompts take at most the rest of data.seq_len.", kSamples},
  };
}

std::vector<Field> checkpoint_fields() {
  constexpr auto kCheckpoint = &Config::checkpoint;
  return {
      {"checkpoint", "every", Integer{member<kCheckpoint, &CheckpointSection::every>, 0, kMaxSteps}, "steps",
       "Steps from one periodic checkpoint to the next. 0: save only at the end of the run and when a signal stops it."},
      {"checkpoint", "keep", Integer{member<kCheckpoint, &CheckpointSection::keep>, 1, kMaxSteps}, "",
       "Number of checkpoints that are kept; older ones are deleted. One more is on the disk while the next one is "
       "being written."},
      {"checkpoint", "async", Boolean{member<kCheckpoint, &CheckpointSection::async>}, "",
       "Copy the state to host memory (master weights and moments of this rank's shard) and write it while training "
       "continues. false: training waits until the checkpoint is written."},
      {"checkpoint", "on_error", one_of<kCheckpoint, &CheckpointSection::on_error>(), "",
       "What happens when a periodic checkpoint cannot be written (full disk, missing folder). stop: the run ends with "
       "an error. continue: the run logs a warning and tries again at the next checkpoint. Earlier checkpoints are not "
       "touched. A checkpoint at the end of the run or on a signal that cannot be written is always an error."},
      {"checkpoint", "at_end", Boolean{member<kCheckpoint, &CheckpointSection::at_end>}, "",
       "Write a checkpoint and the trained model after the last step. false: for measurements."},
      {"checkpoint", "model_dtype", one_of<kCheckpoint, &CheckpointSection::model_dtype>(), "",
       "Dtype that the trained model is stored in. auto: the one that student.path is stored in."},
  };
}

std::vector<Field> memory_fields() {
  constexpr auto kMemory = &Config::memory;
  return {
      {"memory", "activation", by_block<kMemory, &MemorySection::activation>(), "",
       "What each decoder block saves for its backward pass. keep: all its activations, on the device. recompute: its "
       "input; the block's forward pass runs again. offload: all its activations, in host memory. offload_input: its "
       "input, in host memory. recompute*24,keep*8: a policy for each block in forward order. auto: the fastest mix of "
       "policies that fits."},
      {"memory", "optimizer", by_block<kMemory, &MemorySection::optimizer>(), "",
       "Where float32 master weights and AdamW's moments are stored. host: in pinned host memory; the update streams "
       "them through the device, overlapped with the next step. cpu: there too, and the host's cores update them. "
       "host*24,device*8: a place for each block in forward order; the embedding's is the first block's, that of the "
       "final norm and lm_head the last block's. auto: as few blocks on the host as the memory plan needs; it chooses "
       "them, and which of them the CPU updates, together with memory.activation where that is auto, by predicted time. "
       "A float8 student's are on the device."},
      {"memory", "recompute", one_of<kMemory, &MemorySection::recompute>(), "",
       "What a block under recompute or offload_input computes again. all: everything, from its input. "
       "all_but_attention: everything but attention, whose output is saved as well, which takes twice the memory of the "
       "input; for long sequences, where attention takes most of the time. auto: the faster of both where "
       "memory.activation is auto, all otherwise."},
      {"memory", "tile_tokens", Integer{member<kMemory, &MemorySection::tile_tokens>, 0, kMaxTokens, /*or_auto=*/true},
       "tokens",
       "Tokens of a micro-batch for which a block's MLP, with its norms, is computed at a time. Less memory for long "
       "sequences; the backward pass computes the MLP again, tile by tile, whatever memory.activation is. 0: all tokens "
       "at once. auto: as 0, unless the memory plan does not fit or is slower without tiles."},
      {"memory", "allocator", one_of<kMemory, &MemorySection::allocator>(), "",
       "How libtorch's allocator takes memory from a GPU. expandable: in pages that are mapped one after the other, so "
       "that little is lost between tensors; where the driver cannot do that, the run says so and uses segments. segments: "
       "in pieces of fixed size. PYTORCH_CUDA_ALLOC_CONF with expandable_segments comes before this key."},
      {"memory", "budget_gib", Real{member<kMemory, &MemorySection::budget_gib>, 0, kMostGib}, "GiB",
       "Device memory that tensors may take at the peak of a step, according to the memory plan. 0: all of the device."},
      {"memory", "limit_gib", Real{member<kMemory, &MemorySection::limit_gib>, 0, kMostGib}, "GiB",
       "Device memory that the allocator may take; a request beyond it fails as out of memory. 0: no limit."},
      {"memory", "on_overflow", one_of<kMemory, &MemorySection::on_overflow>(), "",
       "What happens when the memory plan does not fit. refuse: the run does not start. warn: the run logs a warning and "
       "starts."},
      {"memory", "machine", Text{member<kMemory, &MemorySection::machine>}, "name or file",
       "The machine whose speeds the plan predicts times with: a name of the built-in table, such as H100-SXM (an unknown "
       "name lists them), or a file that `distill plan --calibrate` has written. Empty: the row of this host's GPU; where "
       "there is none, H200."},
  };
}

std::vector<Field> parallel_fields() {
  constexpr auto kParallel = &Config::parallel;
  return {
      {"parallel", "processes", Integer{member<kParallel, &ParallelSection::processes>, 0, 4096}, "ranks",
       "Ranks that distill itself starts on this host when no launcher has started any. 0: one for each visible GPU, "
       "one on a CPU."},
      {"parallel", "shard", Integer{member<kParallel, &ParallelSection::shard>, 0, kMaxRanks}, "ranks",
       "Ranks that one copy of the models is sharded over (FSDP). 0: all ranks divided by parallel.replicate."},
      {"parallel", "replicate", Integer{member<kParallel, &ParallelSection::replicate>, 1, kMaxRanks}, "replicas",
       "Copies of the sharded models (HSDP), usually one for each node."},
      {"parallel", "shard_teacher", Boolean{member<kParallel, &ParallelSection::shard_teacher>}, "",
       "Shard the teacher over the same ranks as the student. false: every rank holds the whole teacher, at 2 bytes per "
       "parameter in bfloat16, and the teacher's weights need no all-gather."},
      {"parallel", "reduce_dtype", one_of<kParallel, &ParallelSection::reduce_dtype>(), "",
       "Dtype in which gradients are reduced over ranks. bfloat16 halves the traffic and rounds every rank's "
       "contribution."},
      {"parallel", "gather", one_of<kParallel, &ParallelSection::gather>(), "",
       "How whole units are gathered from the ranks' shards (docs/ranks.md). copy: plain copies from memory that all "
       "ranks of a copy of the models have mapped, which takes no multiprocessor; they must be on one host, and the "
       "student's shards are also held in the dtype that it computes in. nccl: NCCL's all-gather, Gloo's on a CPU. "
       "auto: copy where it can be had and the memory plan has room, else nccl."},
      {"parallel", "prefetch", Integer{member<kParallel, &ParallelSection::prefetch>, 1, 16}, "units",
       "Decoder blocks whose weights are gathered ahead of the block that computes."},
      {"parallel", "slots", Integer{member<kParallel, &ParallelSection::slots>, 0, kMaxSlots, /*or_auto=*/true},
       "blocks",
       "Decoder blocks that are held gathered at a time, each in the memory of one whole block; at least "
       "parallel.prefetch + 1. Blocks that are still held when they are needed again are not gathered again. 0: "
       "parallel.prefetch + 1. auto: as many as save gathers and as the memory plan has room for."},
      {"parallel", "accumulate", one_of<kParallel, &ParallelSection::accumulate>(), "",
       "How gradients are accumulated over the micro-batches of a step. reduce_each: every micro-batch is reduced into "
       "the shards. keep_full: whole float32 gradients are accumulated and reduced once a step, at 4 bytes per "
       "parameter on every rank."},
      {"parallel", "nccl_max_ctas", Integer{member<kParallel, &ParallelSection::nccl_max_ctas>, 0, 64}, "",
       "Streaming multiprocessors that one NCCL collective may take from the computation it is overlapped with. 0: NCCL "
       "decides."},
      {"parallel", "debug_checks", Boolean{member<kParallel, &ParallelSection::debug_checks>}, "",
       "Compare checksums of every gathered unit between its uses, and fail when the host synchronises with the GPU "
       "within a step. Costs time and memory."},
      {"parallel", "timeout_s", Integer{member<kParallel, &ParallelSection::timeout_s>, 1, 86400}, "seconds",
       "Timeout for the ranks to join each other, and for a collective to finish."},
  };
}

std::vector<Field> profile_fields() {
  constexpr auto kProfile = &Config::profile;
  return {
      {"profile", "trace_steps", Integer{member<kProfile, &ProfileSection::trace_steps>, 0, 1000}, "steps",
       "Steps that are recorded into run.dir/trace-rank<N>.json, a Chrome trace. 0: none."},
      {"profile", "trace_start", Integer{member<kProfile, &ProfileSection::trace_start>, 1, kMaxSteps}, "",
       "First step that is recorded, counted from 1."},
  };
}

std::vector<Field> run_fields() {
  constexpr auto kRun = &Config::run;
  return {
      {"run", "dir", Text{member<kRun, &RunSection::dir>}, "folder",
       "Run folder. It receives the resolved configuration, the log, metrics, checkpoints and the trained model. "
       "Required."},
      {"run", "log_every", Integer{member<kRun, &RunSection::log_every>, 1, kMaxSteps}, "steps",
       "Steps from one progress line to the next. metrics.jsonl has a line for every step."},
      {"run", "progress", one_of<kRun, &RunSection::progress>(), "",
       "How progress is shown on standard output. auto: a progress bar on a terminal, lines elsewhere."},
      {"run", "tensorboard", Boolean{member<kRun, &RunSection::tensorboard>}, "",
       "Write run.dir/tensorboard, an event file with every number of metrics.jsonl, for `tensorboard --logdir`."},
      {"run", "step_timeout_s", Integer{member<kRun, &RunSection::step_timeout_s>, 0, 31536000}, "seconds",
       "Watchdog timeout. A rank that stays in one phase of a step, or in a save, for longer ends the run; the error "
       "names the phase, and stacks-rank<N>.txt has the stacks of all threads. 0: no timeout."},
      {"run", "grace_s", Integer{member<kRun, &RunSection::grace_s>, 0, 31536000}, "seconds",
       "After SIGINT, SIGTERM, SIGUSR1 or SIGHUP the run finishes its step, saves and ends. A rank that has not ended "
       "after this time is killed; earlier checkpoints are not touched. 0: no limit."},
  };
}

std::vector<Section> make_sections() {
  return {
      {"student", "the model that is trained", student_fields()},
      {"student.lora", "low-rank adapters, which are trained in place of the student's weights (docs/lora.md)",
       lora_fields()},
      {"teacher", "the frozen model that the student learns from", teacher_fields()},
      {"teachers", "several of them, in the place of teacher (docs/teachers.md)", teacher_list_fields()},
      {"float8",
       "checks of what float8 changes in a teacher and a student, and the student's weight gradients (docs/float8.md)",
       float8_fields()},
      {"cache", "the teacher's predictions in a folder (docs/teacher_cache.md)", cache_fields()},
      {"data", "token shards and how documents become sequences", data_fields()},
      {"onpolicy", "the student's own words as training data, judged by the teacher (docs/onpolicy.md)",
       onpolicy_fields()},
      {"loss", "hard_weight x cross-entropy + soft_weight x divergence, per token in nats", loss_fields()},
      {"onpolicy_loss", "the loss of on-policy sequences", onpolicy_loss_fields()},
      {"train", "length, batch, device and precision of the run", train_fields()},
      {"optimizer", "AdamW", optimizer_fields()},
      {"scheduler", "the learning rate over the run", scheduler_fields()},
      {"eval", "evaluation during training, and by `distill eval`", eval_fields()},
      {"checkpoint", "saved training state, for --resume", checkpoint_fields()},
      {"memory", "where tensors are stored, and what is saved for the backward pass (docs/memory.md)", memory_fields()},
      {"parallel", "ranks, and how the models are sharded over them (docs/ranks.md)", parallel_fields()},
      {"profile", "traces of single steps", profile_fields()},
      {"run", "the run folder, and what is printed", run_fields()},
  };
}

} // namespace

const std::vector<Section>& sections() {
  static const std::vector<Section> all = make_sections();
  return all;
}

} // namespace distill::config
