#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trainer/models/ops/rope.h"
#include "trainer/models/sequence.h"
#include "trainer/models/units.h"
#include "trainer/sharding/model_shards.h"

// The passes over a model's units: plain loops that ask ModelShards for a unit, start the next one's gather, compute,
// and give the unit back. N tokens, H hidden size.
namespace distill::sharding {

// The tokens of a micro-batch on the model's device.
struct MicroBatch {
  models::SequenceInfo seq;
  at::Tensor tokens_N; // int64
};

enum class Activation {
  kKeep, // everything the backward pass wants
  kRecompute, // a block's input only
};

// Final hidden states (after the last norm) with nothing kept: the teacher, evaluation.
at::Tensor forward_hidden(ModelShards& model, const models::RopeTable& rope, const MicroBatch& batch);

// One forward and one backward pass of a trainable model over one micro-batch.
class TrainingPass {
 public:
  TrainingPass(ModelShards& model, const models::RopeTable& rope, Activation activation)
      : model_(model), rope_(rope), activation_(activation) {}

  // Final hidden states [N, H].
  at::Tensor forward(const MicroBatch& batch);
  // Accumulates every unit's gradient from that of the hidden states. The lm_head's own gradient is the loss head's.
  void backward(const MicroBatch& batch, const at::Tensor& dhidden_NH);

 private:
  ModelShards& model_;
  const models::RopeTable& rope_;
  Activation activation_;
  models::RopeAngles angles_;
  std::vector<models::BlockKept> kept_;
  models::FinalNormKept norm_kept_;
};

} // namespace distill::sharding
