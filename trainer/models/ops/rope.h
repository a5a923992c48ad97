#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/layer_kind.h"
#include "trainer/models/sequence.h"

// Rotary position embedding in Hugging Face's convention: of the 2 R rotated elements of a head, the first ones, the
// pair of element i is element i + R ("rotate_half"). N tokens, D head_dim, 2 R <= D, P positions.
namespace distill::models {

struct RopeTable {
  at::Tensor cos_PR; // fp32; with long_after, [2 P, R]: the rows of short documents, then those of long ones
  at::Tensor sin_PR;
  at::Tensor query_scale_P; // fp32: q is multiplied by it after the rotation; undefined: by 1
  int64_t long_after = 0; // documents of more tokens are long (LongRopeScaling); 0: there is one kind of rows
};

// A row of the table for each token of a micro-batch: gathered once, used by every block. Undefined angles rotate
// nothing.
struct RopeAngles {
  at::Tensor cos_NR; // fp32
  at::Tensor sin_NR;
  at::Tensor query_scale_N; // fp32; undefined: 1
};

// Returns the frequencies, fp32 [R], with the scaling applied, as transformers' modeling_rope_utils computes them.
// `is_long`: those of a document that is longer than the original context of a LongRopeScaling.
at::Tensor rope_inverse_frequencies(const RopeSpec& rope, bool is_long = false);

// Makes the table of positions 0 .. num_positions - 1.
RopeTable make_rope_table(const RopeSpec& rope, int64_t num_positions, at::Device device);
RopeAngles rope_angles(const RopeTable& table, const SequenceInfo& seq);

// Makes the table of each of a model's ropes.
std::vector<RopeTable> make_rope_tables(const std::vector<RopeSpec>& ropes, int64_t num_positions, at::Device device);
std::vector<RopeAngles> rope_angles(const std::vector<RopeTable>& tables, const SequenceInfo& seq);

// Rotates x [N, heads, D] in place; the last dimension must be contiguous, the others may be strided. fp32 mathematics.
// The query scale is that of q; this function applies none.
void rope_forward_(at::Tensor& x_NAD, const RopeAngles& angles);

// Rotates q and k of one fused buffer, in a single launch on CUDA.
void rope_forward_(at::Tensor& q_NAD, at::Tensor& k_NKD, const RopeAngles& angles);

// The inverse rotation, in place: turns the gradient with respect to the output into the gradient with respect to the
// input.
void rope_backward_(at::Tensor& dx_NAD, const RopeAngles& angles);
void rope_backward_(at::Tensor& dq_NAD, at::Tensor& dk_NKD, const RopeAngles& angles);

// Rotates backwards out of place: views [N, heads, D] of the same sizes that do not overlap.
void rope_backward(
    const at::Tensor& dq_NAD, const at::Tensor& dk_NKD, at::Tensor& dq_out_NAD, at::Tensor& dk_out_NKD,
    const RopeAngles& angles);

struct NormRopeResult {
  at::Tensor q_NAD; // contiguous
  at::Tensor k_NKD;
  at::Tensor q_rstd; // [N * heads], or [N]; fp32 (fp64 for fp64)
  at::Tensor k_rstd; // [N * kv heads], or [N]
};

// Applies RMSNorm to each head of q and k, then the rotation; q and k are not changed. Norm weights of [heads * D]
// elements normalise all heads of a token at once. With norms of heads it is one launch on CUDA, where the norm's
// output is not rounded in between. Results are bit for bit the same every time.
NormRopeResult norm_rope_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& q_norm, const at::Tensor& k_norm, double eps,
    const RopeAngles& angles, double offset = 0);

struct HeadNormResult {
  at::Tensor y_NAD; // contiguous
  at::Tensor rstd; // [N * heads]; fp32 (fp64 for fp64)
};

// Applies RMSNorm to each head of x, a view [N, heads, D] with contiguous D; one launch on CUDA. Its backward pass is
// head_rms_norm_backward_ (rms_norm.h).
HeadNormResult head_rms_norm_forward(const at::Tensor& x_NAD, const at::Tensor& weight_D, double eps);

} // namespace distill::models
