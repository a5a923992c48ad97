#pragma once

#include "losses/rows/row_args.h"

namespace distill::losses {

enum class RowStrategy {
  kAutomatic, // the cluster kernel wherever it can run
  // A row's logits stay on the chip, spread over the blocks of a cluster: one read of the logits. Needs compute
  // capability 9.0, 16-byte aligned rows, fp32 or bf16 logits, and at most 262144 columns.
  kCluster,
  kStreaming, // one block a row, three reads of which the later two mostly hit L2: any type, alignment and width
};

struct RowLaunch {
  RowStrategy strategy = RowStrategy::kAutomatic;
  int cluster_size = 0; // blocks to a row, 2 to 16; 0: automatic
};

// Queues the rows on `stream` (a cudaStream_t). Null, or what is wrong. no_cuda.cpp, in this folder, stands in for
// builds without CUDA.
const char* launch_rows(const RowArgs& args, void* stream, const RowLaunch& launch = {});

} // namespace distill::losses
