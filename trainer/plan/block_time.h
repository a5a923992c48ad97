#pragma once

#include <c10/core/ScalarType.h>

#include <vector>

#include "trainer/plan/machine.h"
#include "trainer/plan/run_shape.h"

// The time of a model's blocks. Each product counts its operations at machine.matmul_flops and the traffic of its
// operands at machine.memory_bytes, every other kernel its traffic.
namespace distill::plan {

// A model as it runs over a micro-batch.
struct ModelRun {
  const models::ModelConfig& config;
  at::ScalarType dtype;
  int64_t tokens = 0;
  int64_t seq_len = 0;
};

// Seconds for one block of a model, the mean over the blocks of its kind.
struct BlockTime {
  double forward = 0;
  double rebuild = 0; // recomputation: forward without the last product, or with memory.recompute without attention
  double backward = 0;
  double reduce = 0; // of its gradient
};

// By kind of layer; a kind without blocks has zeros.
std::vector<BlockTime> block_times(const RunShape& shape, const Machine& machine, const ModelRun& run);

double element_bytes(at::ScalarType dtype);

} // namespace distill::plan
