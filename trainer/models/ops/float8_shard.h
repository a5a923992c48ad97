#pragma once

#include <ATen/core/Tensor.h>

// Float8 matrices (float8.h) that several ranks hold in parts which cut rows. The scales are powers of two and belong
// to whole rows: each rank takes the magnitudes of its part, the ranks agree on the largest, and each rounds its part.
namespace distill::models {

// A part of a matrix [R, C] of fp32: consecutive elements in row-major order.
struct MatrixPart {
  at::Tensor elements; // fp32, one-dimensional, contiguous
  int64_t first = 0; // index of the first of them in the matrix
  int64_t columns = 0; // C
};

// Raises largest_R (fp32) to the largest magnitudes of the rows in the part. Rows without elements in it stay.
void raise_row_magnitudes_(const MatrixPart& part, at::Tensor& largest_R);

// Turns the rows' largest magnitudes, any shape of fp32, into their scales: the smallest powers of two that are not
// less than magnitude / 448, and at least kFloat8SmallestPower.
void magnitudes_to_scales_(at::Tensor& largest_R);

// Rounds the part with the scales of its rows into `values` (kByte, as many as the part has elements): bit for bit what
// float8_rows gives for the whole matrix.
void round_matrix_part(const MatrixPart& part, const at::Tensor& scale_R, at::Tensor& values);

} // namespace distill::models
