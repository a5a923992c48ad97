#pragma once

#include <ATen/core/Tensor.h>

namespace distill::losses {

// Computes out_MN = scale * left_MK right_KN, plus the old out_MN where it `accumulates`; otherwise the old out_MN is
// never read. It runs on a CUDA device's current stream. left and right: bf16 or fp16, of one dtype, contiguous rows
// or contiguous columns. out: fp32, contiguous rows, which may be padded.
//
// On Hopper the algorithm is not cuBLAS's first choice, which has tiles of 128 x 256 for these results, but the first
// of those it offers that has smaller tiles: the fewer rows K the sum has, the more of a large tile's time is reading
// and writing fp32 results (docs/loss_head_notes.md has the times). The choice depends on shapes and addresses alone.
void fp32_product(
    at::Tensor& out_MN, const at::Tensor& left_MK, const at::Tensor& right_KN, double scale, bool accumulates);

} // namespace distill::losses
