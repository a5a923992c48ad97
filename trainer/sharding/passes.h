#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/block.h"
#include "trainer/models/ops/rope.h"
#include "trainer/models/sequence.h"
#include "trainer/models/units.h"
#include "trainer/sharding/activation_store.h"
#include "trainer/sharding/model_shards.h"

// The passes over a model's units (unit_walk.h): they ask ModelShards for a unit, start the next one's gather, compute,
// and give the unit back. N tokens, H hidden size. `ropes`: the tables of the model's ropes.
namespace distill::sharding {

// The tokens of a micro-batch on the model's device.
struct TokenBatch {
  models::SequenceInfo seq;
  at::Tensor tokens_N; // int64
};

// A pass over a model's blocks.
struct Pass {
  const ModelShards* model = nullptr; // null: none
  bool backward = false; // from the last block to the first
};

// Tells the slots which passes come next, so that they hold the blocks that are needed soonest. A model whose weights
// change is left out from there on.
void expect_passes(const std::vector<Pass>& passes);

// Starts gathering the first units of a pass over the model.
void prefetch_first(ModelShards& model);

// The lm_head of a model, whose unit is gathered and stays in its slot until it is released.
at::Tensor lm_head(ModelShards& model);

// Final hidden states [N, H] after the last norm, for the teacher and for evaluation: nothing is saved for a backward
// pass. The head's unit is released but not retired, so that lm_head() finds it in its slot. `next` is the model whose
// pass follows, or null; its first units are prefetched while the last block computes.
at::Tensor forward_hidden(
    ModelShards& model, const std::vector<models::RopeTable>& ropes, const TokenBatch& batch,
    ModelShards* next = nullptr, const models::BlockFunctions& block = {});

// A forward and a backward pass of a trainable model over one micro-batch.
class TrainingPass {
 public:
  // `policies`: one for each block; none if forward and backward are not called. `host`: as for ActivationStore.
  TrainingPass(
      ModelShards& model, const std::vector<models::RopeTable>& ropes, std::vector<models::ActivationPolicy> policies,
      std::shared_ptr<device::HostSlab> host, models::BlockFunctions block = {})
      : model_(model),
        ropes_(ropes),
        block_(std::move(block)),
        store_(std::move(policies), model.options().device, std::move(host)) {}

  // Final hidden states [N, H]. `balance`: of the model's routers; null: it has none. `dropout`: of the inputs of its
  // adapters, in this pass and in the backward pass; `stream` is not read.
  at::Tensor forward(
      const TokenBatch& batch, models::RouterBalance* balance = nullptr, const models::Dropout& dropout = {});
  // Accumulates the gradient of every unit that is trained, given the gradient of the hidden states. The loss head has
  // accumulated the lm_head's gradient already. `last`: this is the step's last micro-batch. `balance`: that of the
  // forward pass.
  void backward(const TokenBatch& batch, at::Tensor dhidden_NH, bool last, models::RouterBalance* balance = nullptr);

 private:
  ModelShards& model_;
  const std::vector<models::RopeTable>& ropes_;
  models::BlockFunctions block_;
  ActivationStore store_;
  std::vector<models::RopeAngles> angles_;
  models::Dropout dropout_;
  models::FinalNormSaved norm_saved_;
};

} // namespace distill::sharding
