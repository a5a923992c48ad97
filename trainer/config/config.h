#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "losses/options.h"

// The whole configuration as plain structs with their defaults. trainer/config/fields.cpp names every key once.
namespace distill::config {

// Student and teacher are described by the same keys.
struct ModelSection {
  std::string path; // Hugging Face folder; teacher: empty means no teacher
  std::string tokenizer; // folder or tokenizer.json; empty: the model's folder
  std::string init = "pretrained"; // pretrained | random (config.json alone is read)
  std::string dtype = "auto"; // compute dtype: auto (train.dtype) | float32 | bfloat16
};

struct DataSet {
  std::string path; // a token shard, or a folder of them
  double weight = 1.0;
};

struct DataSection {
  std::vector<DataSet> train;
  std::vector<DataSet> eval;
  int64_t seq_len = 2048; // tokens
  std::string packing = "pack"; // pack (whole documents, document mask) | concat
  bool shuffle = true;
  int64_t seed = 0;
};

struct TrainSection {
  int64_t steps = 0; // optimizer steps; 0: from tokens
  int64_t tokens = 0; // token budget; 0: from steps
  int64_t micro_batch_size = 1; // sequences per forward and rank
  int64_t global_batch_size = 1; // sequences per optimizer step over all ranks
  int64_t seed = 0;
  std::string device = "auto"; // auto | cpu | cuda
  std::string dtype = "auto"; // compute: auto (bfloat16 on CUDA, float32 on CPU) | float32 | bfloat16
  int64_t max_skipped_steps = 10; // non-finite steps in a row before the run fails
  bool deterministic = false;
  double spike_sigmas = 6; // a loss so many deviations above the last ones is recorded; 0: never
};

struct OptimizerSection {
  double lr = 1e-5;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1; // on matrices only
  double max_grad_norm = 1.0; // 0: no clipping
};

struct SchedulerSection {
  std::string type = "cosine"; // constant | linear | cosine | wsd
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0; // wsd: the last steps; 0: a tenth of the run
  double min_lr_ratio = 0.0; // final lr / lr
};

struct EvalSection {
  int64_t every = 0; // steps; 0: never
  int64_t batches = 0; // micro-batches per evaluation; 0: the whole set
  bool at_start = false;
};

struct CheckpointSection {
  int64_t every = 0; // steps; 0: only at the end and on a signal
  int64_t keep = 2;
  bool async = true; // periodic saves are copied to host memory and written while training goes on
  std::string on_error = "stop"; // stop | continue: when a periodic save fails
  bool at_end = true; // state and model are written when the run has done all its steps
  std::string model_dtype = "auto"; // of the model written at the end: auto (as student.path stores it) | float32 | ...
};

struct MemorySection {
  std::string activation = "keep"; // a policy for all blocks, a list for each, or auto
  std::string optimizer = "device"; // device | host: where master weights and moments lie
  double budget_gib = 0; // what tensors may take at the peak; 0: all that the device has
  double limit_gib = 0; // what the allocator may take; 0: all that the device has
  std::string on_overflow = "refuse"; // refuse | warn: when the plan does not fit
  std::string machine; // speeds measured by `distill plan --calibrate`; empty: the built-in table
};

struct ParallelSection {
  int64_t processes = 0; // ranks that distill starts on this host itself; 0: one per visible GPU, or 1 on a CPU
  int64_t shard = 0; // ranks that hold one copy of the models between them; 0: all of them / replicate
  int64_t replicate = 1; // such copies
  bool shard_teacher = true; // false: every rank has all of it
  std::string reduce_dtype = "float32"; // float32 | bfloat16
  int64_t prefetch = 1; // units gathered ahead
  std::string accumulate = "reduce_each"; // reduce_each | keep_full: gradients of a step's micro-batches
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
  std::string progress = "auto"; // auto | bar | lines | none
  int64_t step_timeout_s = 1800; // without progress; 0: no limit
  int64_t grace_s = 300; // from a signal to the end of the process; 0: no limit
};

struct Config {
  ModelSection student;
  ModelSection teacher;
  DataSection data;
  losses::LossOptions loss;
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
};

} // namespace distill::config
