#pragma once

#include <cstdint>

#include "trainer/models/ops/kernel.h"

// Kernels that round rows to e4m3 (float8.h defines the format). Arithmetic is fp32.
namespace distill::models {

struct Float8RowsArgs {
  const void* x; // [R, C] contiguous; SwiGLU: [R, 2C], the gate in columns [0, C)
  void* values; // [R, C] e4m3, contiguous
  float* scale; // [R]
  int64_t rows; // R
  int64_t columns; // C
  ElementType type; // of x
};

// values = e4m3(x / scale).
const char* launch_float8_rows(const Float8RowsArgs& args, CUstream_st* stream);

// The same of silu(gate) * up, rounded to `type` first: what swiglu_forward gives. One pass over memory.
const char* launch_float8_swiglu(const Float8RowsArgs& args, CUstream_st* stream);

} // namespace distill::models
