#pragma once

#include <cstdint>

#include "losses/options.h"
#include "losses/token_metrics.h"

// The row kernels take these arguments: logits in, the metrics of each token and the gradient with respect to the
// student's logits out. A row is the logits of one token.
namespace distill::losses {

enum class ElementType {
  kFloat32,
  kBFloat16,
  kFloat64
};

// The forward pass saves these numbers of each row for a backward pass over the same logits (losses/logits/).
enum SavedValue : int64_t {
  kSavedStudentMax,
  kSavedStudentLog2Sum, // of 2^((logit - max) log2(e) / T)
  kSavedStudentUnitLog2Sum, // the same at T = 1
  kSavedTeacherMax,
  kSavedTeacherLog2Sum,
  kSavedMean, // of the divergence's slope under the student's distribution
  kNumSavedValues
};

// There are R rows of V columns. Strides are in elements. Computation is in fp32, or fp64 where the logits are fp64.
struct RowArgs {
  const void* student = nullptr; // [R, V] logits
  const void* teacher = nullptr; // [R, V], null: no teacher
  const void* student_bias = nullptr; // [V] of bias_type, added to the logits; null: none
  const void* teacher_bias = nullptr;
  const int64_t* targets =
      nullptr; // [R], kIgnoreIndex: the row's outputs are all 0; null: no row is ignored, no labels
  const void* token_weights = nullptr; // [R] of the compute type (fp32, or fp64 for fp64 logits); null: 1
  void* gradient = nullptr; // [R, V] of gradient_type; null: none. May be `student` itself where the types are equal
  void* metrics = nullptr; // [kNumTokenMetrics, R] of the compute type
  void* saved = nullptr; // [kNumSavedValues, R] likewise, for a later backward; null: none
  ElementType logits_type = ElementType::kFloat32;
  ElementType gradient_type = ElementType::kFloat32;
  ElementType bias_type = ElementType::kFloat32;
  int64_t num_rows = 0; // R
  int64_t vocab = 0; // V
  int64_t student_stride = 0;
  int64_t teacher_stride = 0;
  int64_t gradient_stride = 0;
  int64_t metrics_stride = 0; // row stride of `metrics` and `saved`, at least R
  LossOptions options;
};

} // namespace distill::losses
