#pragma once

#include <ATen/Context.h>
#include <ATen/ops/equal.h>

#include "trainer/optim/adamw.h"
#include "trainer/sharding/model_shards.h"

namespace distill::checkpoint {

inline models::ModelConfig tiny_config() {
  models::ModelConfig config;
  config.model_type = "llama";
  config.vocab_size = 19;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_layers = 2;
  config.num_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 4;
  config.max_position_embeddings = 32;
  return config;
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
