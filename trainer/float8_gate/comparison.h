#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <vector>

#include "data/batch.h"
#include "losses/head/linear_head.h"
#include "trainer/config/config.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/passes.h"
#include "trainer/step/environment.h"
#include "trainer/step/loaded_models.h"

// Compares a model with the same model in float8, for several choices of its float8 products at once, without holding
// the model: the tokens' hidden states go from block to block, and only one block's weights are in memory at a time.
namespace distill::float8_gate {

// The comparison for one choice: the loss head's token metrics, with the model in float8 as the student and the model
// in its compute dtype as the teacher. KL(p || q) is then the error in nats, and the hard loss the float8 model's
// cross-entropy on the labels, next to that of the other (kTeacherCe).
using TokenMetrics = std::vector<at::Tensor>; // [M, N] for each micro-batch, on the device

struct ComparisonOptions {
  losses::ChunkOptions chunks; // of the loss head
  config::ProgressStyle progress = config::ProgressStyle::kNone; // of rank 0
  int64_t tile_tokens = 0; // as of models::BlockContext
};

// Every rank calls it with its own batches, whose number is equal on all ranks; the ranks of the shard axis read the
// weights of a block in parts and gather them. A choice costs computing only from its first float8 product on. The
// result has one member for each of `choices`, each a set of the products that run in float8. Progress is reported to
// the mesh after every block. InvalidArgument: weights that are not finite.
absl::StatusOr<std::vector<TokenMetrics>> compare(
    const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
    absl::Span<const data::Batch> batches, absl::Span<const models::Float8Products> choices,
    const ComparisonOptions& options);

} // namespace distill::float8_gate
