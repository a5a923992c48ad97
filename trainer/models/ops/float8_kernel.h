#pragma once

#include <cstdint>

#include "trainer/models/ops/float8_count.h"
#include "trainer/models/ops/kernel.h"

// Kernels that round rows to e4m3 (float8.h defines the format). Arithmetic is fp32.
namespace distill::models {

struct Float8RowsArgs {
  const void* x; // [R, C] contiguous; GLU: [R, 2C], the gate in columns [0, C)
  void* values; // [R, C] e4m3, contiguous
  float* scale; // [R]
  int64_t rows; // R
  int64_t columns; // C
  ElementType type; // of x
  bool power_of_two; // scales are rounded up to powers of two
  const float* factor; // [C]: x * factor is rounded; null: x. Not for GLU
  int64_t* counts; // [3] as Float8Count, added to; null: not counted
};

// values = e4m3(x / scale).
const char* launch_float8_rows(const Float8RowsArgs& args, CUstream_st* stream);

// Rounds silu(gate) * up or gelu(gate) * up in the same way, after it was rounded to `type`, as glu_forward does. It
// takes one pass over memory.
const char* launch_float8_swiglu(const Float8RowsArgs& args, CUstream_st* stream);
const char* launch_float8_geglu(const Float8RowsArgs& args, CUstream_st* stream);

constexpr int64_t kTransposeUnit = 4; // columns and out_columns are multiples of it

struct Float8TransposeArgs {
  const void* in; // [R, C] bytes, contiguous
  void* out; // [C, out_columns]: zeros after the R-th column
  int64_t rows; // R
  int64_t columns; // C
  int64_t out_columns; // R or more
};
const char* launch_float8_transpose(const Float8TransposeArgs& args, CUstream_st* stream);

// Columns of s * x that become rows of e4m3 values: what float8_scaled_columns of float8.h does, in two passes over x.
constexpr int64_t kColumnsUnit = 8; // columns are a multiple of it

struct Float8ColumnsArgs {
  const void* x; // [R, C] contiguous, 16-byte aligned; not fp64
  const float* row_scale; // [R]: s; kFloat8SmallestScale stands for zero
  float* largest; // [C]: the largest magnitudes of s * x. The first pass raises them from zero, the second reads them
  void* values; // [C, out_columns] e4m3: zeros after the R-th column
  float* scale; // [C]
  int64_t rows; // R
  int64_t columns; // C
  int64_t out_columns; // R or more, a multiple of 16
  ElementType type; // of x
  int64_t* counts; // [3] as Float8Count, added to; null: not counted
};
const char* launch_float8_column_magnitudes(const Float8ColumnsArgs& args, CUstream_st* stream);
const char* launch_float8_round_columns(const Float8ColumnsArgs& args, CUstream_st* stream);

// Elements [first, first + count) of a matrix of rows of `columns` fp32 elements.
struct Float8PartArgs {
  const float* elements; // [count]
  float* largest; // [rows of the matrix]: raised to the rows' largest magnitudes
  const float* scale; // [rows of the matrix]
  void* values; // [count] e4m3
  int64_t first;
  int64_t count;
  int64_t columns;
};
const char* launch_float8_row_magnitudes(const Float8PartArgs& args, CUstream_st* stream);
const char* launch_float8_round_part(const Float8PartArgs& args, CUstream_st* stream);

} // namespace distill::models
