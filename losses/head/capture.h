#pragma once

#include <ATen/core/Tensor.h>

#include "losses/head/chunk_policy.h"
#include "losses/head/columns.h"
#include "losses/rows/capture_dispatch.h"

// These functions make top-k and samples of a teacher's predictions, which a cache stores instead of hidden states. The
// logits of one chunk of tokens exist at a time, under the cap of the loss head. No call waits for the device.
// Shapes: N tokens, V vocabulary, G hidden size, K entries, S samples.
namespace distill::losses {

// All tensors are on one device. With meta tensors a call makes the allocations of a run and launches no kernel.
struct CaptureInputs {
  at::Tensor hidden_NG; // fp32, bf16 or fp64
  at::Tensor weight_VG; // the same dtype
  at::Tensor bias_V; // undefined: none; the same dtype
  int64_t vocab_size = 0; // columns that exist; 0: all rows of the weight
  ColumnRanges columns; // the rows that are columns, where they are not the first ones; ids are those of rows
  double softcap = 0; // 0: off
  double temperature = 1; // p = softmax(logits / temperature): the temperature of the losses that use the result
  c10::DeviceType meta_device = c10::DeviceType::CUDA; // see LinearHeadInputs
};

struct TopK {
  at::Tensor ids_NK; // int32, the most probable token first; of equal logits the lower column is first
  at::Tensor log_probs_NK; // fp32 (fp64 for fp64 inputs), nats
  at::Tensor tail_N; // the same dtype: the probability of all other columns, their sum, so that a tiny one is exact
};

struct Samples {
  at::Tensor ids_NS; // int32, with repetitions, in the order of the draws
  at::Tensor weights_NS; // fp32; 1 / S where the exponent is 1
};

// Returns the k most probable tokens of each token's distribution; 1 <= k <= min(V, kMaxEntries). Throws c10::Error for
// inputs that contradict each other and for a cap too small for one token.
TopK capture_topk(const CaptureInputs& inputs, int64_t k, const ChunkOptions& chunks);

// Returns draws with importance weights (run_samples()). keys_N: int64, a number for each token that no chunking, order
// or rank changes, such as a hash of its document and position; equal keys draw with equal random numbers. Throws as
// capture_topk() does.
Samples capture_samples(
    const CaptureInputs& inputs, const at::Tensor& keys_N, const SampleOptions& options, const ChunkOptions& chunks);

// Returns the chunk sizes and the scratch of a call, whose inputs may be meta tensors. entries: k, or 0 for samples.
// Returns InvalidArgument where the cap is too small for one token.
absl::StatusOr<ChunkPlan> capture_plan(const CaptureInputs& inputs, int64_t entries, const ChunkOptions& chunks);

} // namespace distill::losses
