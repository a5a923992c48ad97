#pragma once

#include <ATen/Context.h>
#include <ATen/ops/equal.h>

#include "tests/trainer/models/llama_like.h"
#include "trainer/optim/adamw.h"
#include "trainer/sharding/model_shards.h"

namespace distill::checkpoint {

inline models::ModelConfig tiny_config() {
  return models::llama_like(
      {.vocab = 19,
       .hidden = 8,
       .ffn = 12,
       .layers = 2,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 4,
       .max_positions = 32});
}

// A model and its optimizer after one step on random gradients.
struct TrainedModel {
  sharding::ModelShards model;
  optim::AdamW optimizer;

  explicit TrainedModel(int64_t seed) : model(tiny_config(), {.trainable = true}), optimizer(model, {}) {
    at::manual_seed(seed);
    for (int64_t i = 0; i < model.num_units(); ++i) {
      model.unit(i).master.normal_();
      model.gradient(i).flat.normal_();
    }
    optimizer.step(0.1, optim::grad_norm_of_square(optim::grad_norm_square(model), 1.0));
  }
  bool same_as(TrainedModel& other) {
    bool same = at::equal(optimizer.step_count(), other.optimizer.step_count());
    for (int64_t i = 0; i < model.num_units(); ++i) {
      same = same && at::equal(model.unit(i).master, other.model.unit(i).master) &&
          at::equal(optimizer.moments(i).exp_avg, other.optimizer.moments(i).exp_avg) &&
          at::equal(optimizer.moments(i).exp_avg_sq, other.optimizer.moments(i).exp_avg_sq);
    }
    return same;
  }
};

} // namespace distill::checkpoint
