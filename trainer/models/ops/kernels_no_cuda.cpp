#include "trainer/models/ops/attention_scores_kernel.h"
#include "trainer/models/ops/combine_kernel.h"
#include "trainer/models/ops/delta_chunk_kernel.h"
#include "trainer/models/ops/delta_rule_kernel.h"
#include "trainer/models/ops/dropout_kernel.h"
#include "trainer/models/ops/embedding_kernel.h"
#include "trainer/models/ops/float8_kernel.h"
#include "trainer/models/ops/gated_norm_kernel.h"
#include "trainer/models/ops/glu_kernel.h"
#include "trainer/models/ops/group_gradient_kernel.h"
#include "trainer/models/ops/normal_kernel.h"
#include "trainer/models/ops/rms_norm_kernel.h"
#include "trainer/models/ops/rope_kernel.h"
#include "trainer/models/ops/rounded_sum_kernel.h"
#include "trainer/models/ops/short_conv_kernel.h"

namespace distill::models {
namespace {

constexpr const char* kNoKernels = "this build of distill has no CUDA kernels: configure it with DISTILL_CUDA=ON";

} // namespace

const char* launch_attention_softmax(const AttentionScoresArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_attention_softmax_backward(const AttentionScoresArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_rms_norm_forward(const RmsNormArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_rms_norm_apply(const RmsNormArgs&, CUstream_st*) {
  return kNoKernels;
}

int64_t rms_norm_backward_blocks(const RmsNormBackwardArgs&) {
  return 1;
}

const char* launch_rms_norm_backward(const RmsNormBackwardArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_rope(const RopeArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_norm_rope(const RopeArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_glu_forward(const GluArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_glu_backward(const GluBackwardArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_float8_rows(const Float8RowsArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_float8_swiglu(const Float8RowsArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_float8_geglu(const Float8RowsArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_float8_transpose(const Float8TransposeArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_float8_column_magnitudes(const Float8ColumnsArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_float8_round_columns(const Float8ColumnsArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_float8_row_magnitudes(const Float8PartArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_float8_round_part(const Float8PartArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_normal(const NormalArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_rounded_sum(const RoundedSumArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_combine(const CombineArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_group_gradient(const GroupGradientArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_dropout(const DropoutArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_embedding_backward(const EmbeddingBackwardArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_short_conv_forward(const ShortConvArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_short_conv_backward(const ShortConvArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_gated_norm_forward(const GatedNormArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_gated_norm_backward(const GatedNormArgs&, CUstream_st*) {
  return kNoKernels;
}

bool has_delta_chunks() {
  return false;
}

const char* launch_delta_chunk_forward(const DeltaChunkArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_delta_chunk_backward(const DeltaChunkArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_delta_rule_forward(const DeltaRuleArgs&, CUstream_st*) {
  return kNoKernels;
}

const char* launch_delta_rule_backward(const DeltaRuleArgs&, CUstream_st*) {
  return kNoKernels;
}

} // namespace distill::models
