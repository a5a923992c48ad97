#pragma once

#include "losses/rows/row_args.h"

// Row kernels whose teacher is a few columns of each row take these arguments: top-k log-probabilities with a tail, or
// samples with importance weights. Such a row takes three kernels: entries out of the logits (SparseStage::kTake), the
// row kernel without a teacher for the normaliser (rows/dispatch.h), and the loss with its gradient (kLoss).
namespace distill::losses {

enum class EntryType {
  kFloat32,
  kBFloat16,
  kFloat16,
  kFloat64
};

inline constexpr int64_t kMaxEntries = 1024; // of one row

struct SparseTeacher {
  const int32_t* ids = nullptr; // [N, K] columns; -1: not an entry
  const void* values = nullptr; // [N, K] of value_type: log-probabilities in nats, or the samples' weights
  const void* tail = nullptr; // [N] of tail_type, the probability of all other columns; null: samples
  const int64_t* index = nullptr; // [R] which of the N belongs to each row of the logits; null: row r itself
  EntryType value_type = EntryType::kFloat32;
  EntryType tail_type = EntryType::kFloat32;
  int64_t entries = 0; // K
  int64_t ids_stride = 0; // in elements
  int64_t values_stride = 0;
};

struct SparseRowArgs {
  // The student's logits are those after bias and softcap (the options' student_softcap is for the slope), and no bias
  // is given. `teacher` is null. `saved` holds what the row kernel wrote: for top-k, of the row without its entries.
  RowArgs rows;
  SparseTeacher teacher;
  void* entry_logits = nullptr; // [R, K] of the compute type: the student's logits of the entries
  int64_t entry_stride = 0;
};

enum class SparseStage {
  // The stage writes entry_logits. For top-k it puts -inf in the place of the entries' logits, so that the row kernel
  // normalises the tail alone: 1 - sum of the entries' probabilities would lose a small tail to rounding.
  kTake,
  // The stage writes metrics and gradient; for top-k it puts the logits back.
  kLoss,
  // For top-k of a teacher's own logits, the stage replaces entry_logits by log-probabilities, and writes the tail's
  // probability to rows.metrics [R]. It reads only `rows.saved`, sizes, options.temperature and entry_logits.
  kLogProbs,
};

} // namespace distill::losses
