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

// A model on some tokens in several precisions at once, without holding the model: the tokens' hidden states go from
// block to block, and only one block's weights are in memory at a time.
namespace distill::precision {

// One variant of the model: which of its products run in float8.
using Variant = models::Float8Products;

// What the walk computes for one micro-batch of one variant: the token metrics of the loss head, with the variant as
// the student and the model in its compute dtype as the teacher. KL(p || q) is then the error of the variant in nats,
// and the hard loss its cross-entropy on the labels, next to the model's (kTeacherCe).
using TokenMetrics = std::vector<at::Tensor>; // [M, N] for each micro-batch, on the device

struct WalkOptions {
  losses::ChunkOptions chunks; // of the loss head
  config::ProgressStyle progress = config::ProgressStyle::kNone; // of rank 0
};

// Every rank calls it with batches of its own, as many as the other ranks have; the weights of a block are read in
// parts by the ranks of the shard axis and gathered. A variant costs computing only from its first float8 product on.
// The result has one member for each variant. Progress is reported to the mesh after every block. InvalidArgument:
// weights that are not finite.
absl::StatusOr<std::vector<TokenMetrics>> walk(
    const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
    absl::Span<const data::Batch> batches, absl::Span<const Variant> variants, const WalkOptions& options);

} // namespace distill::precision
