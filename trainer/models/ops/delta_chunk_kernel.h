#pragma once

#include "trainer/models/ops/delta_rule_kernel.h"

// The gated delta rule of delta_rule.h on tensor cores, in chunks of kDeltaChunk tokens: bf16 elements, fp32 sums and
// states. A segment's chunks begin at its first token, so that no chunk depends on other segments.
//
// With g the sums of the decays from the chunk's first token to each one, S the state before the chunk, and
// E_ij = exp(g_i - g_j) for i >= j, the tokens' w are the solution of L w = beta (v - exp(g) K S) with
// L = 1 + beta (K K^T) E below the diagonal; with T = L^-1, read = T beta exp(g) K and scores = (Q K^T) E:
//
//   w = T beta v - read S
//   out = exp(g) Q S + scores w
//   S' = exp(g_end) S + (exp(g_end - g) K)^T w
//
// and with D' the gradient of S', y = T^T scores^T dout + (T^T exp(g_end - g) K) D' is that of beta (v - exp(g) K S):
//
//   D = exp(g_end) D' + (exp(g) Q)^T dout - (beta exp(g) K)^T y
//
// (Yang et al. 2024, section 3.3, with the decays within the products; exponents are never positive.) Lengths of q and
// k are factors of sums and of gates: the products' operands are the elements as they are.
namespace distill::models {

inline constexpr int64_t kDeltaChunk = 64;

// A chunk of a segment. An index for which there is no chunk has a count of 0.
struct DeltaChunk {
  int32_t first; // its first token
  int32_t count; // its tokens, at most kDeltaChunk
  int32_t is_first; // of its segment
  int32_t is_last;
};

// What there is of each token and value head beside the elements, [kGates, A, N] fp32.
enum DeltaChunkGate {
  kGateSum, // g
  kGateBeta,
  kGateQueryNorm, // Dk^-0.5 / length of q
  kGateKeyNorm, // 1 / length of k
  kGateRead, // beta exp(g) / length of k
  kGateWrite, // exp(g_end - g) / length of k
  kGateQuery, // exp(g) Dk^-0.5 / length of q
  kGates
};

// Sizes are multiples of 8, and all pointers of 16 bytes. `type` is bf16.
struct DeltaChunkArgs : DeltaRuleArgs {
  DeltaChunk* chunks; // scratch [chunk_count]
  int64_t chunk_count; // delta_chunk_count()
  float* gates; // scratch [kGates, A, N]
  void* reads; // scratch [N, A, Dk]: forward, the rows of T beta exp(g) K; backward, of T^T exp(g_end - g) K
  void* scores; // forward, scratch [N, A, kDeltaChunk]
  void* states; // backward, scratch [N / kDeltaChunk + 1, A, Dk, Dv]: S of each chunk but a segment's first one, at
                // the index that is its first token's over kDeltaChunk
  void* dstates; // backward, scratch: D of the same chunks
  void* dwritten; // backward, scratch [N, A, Dv]: y
};

// The first chunk of segment s has the index cu_seqlens[s] / kDeltaChunk + s, so that no sums over segments are needed.
inline int64_t delta_chunk_count(int64_t tokens, int64_t segments) {
  return tokens / kDeltaChunk + segments;
}

// Whether the current device has the shared memory that the kernels take.
bool has_delta_chunks();

// `written` and `out` as in DeltaRuleArgs; `written` first holds T beta v.
const char* launch_delta_chunk_forward(const DeltaChunkArgs& args, CUstream_st* stream);
const char* launch_delta_chunk_backward(const DeltaChunkArgs& args, CUstream_st* stream);

} // namespace distill::models
