#pragma once

#include <ATen/ATen.h>

#include "tests/trainer/models/llama_like.h"
#include "trainer/models/random_weights.h"
#include "trainer/step/train_step.h"

namespace distill::trainer {

inline models::ModelConfig tiny_model(int64_t layers, int64_t hidden = 16) {
  return models::llama_like({.hidden = hidden, .layers = layers, .head_dim = hidden / 2, .max_positions = 1024});
}

// One step takes four sequences of 12 tokens.
inline config::Config tiny_config(int64_t micro_batch_size) {
  config::Config config;
  config.data.seq_len = 12;
  config.train.micro_batch_size = micro_batch_size;
  config.train.global_batch_size = 4;
  config.loss.hard_weight = 0.5;
  config.optimizer.max_grad_norm = 0;
  return config;
}

// Makes the same four sequences whatever the micro-batches; every third token has no target.
inline GlobalBatch tiny_batch(const config::Config& config, uint64_t seed = 7) {
  const int64_t sequences = config.train.global_batch_size, length = config.data.seq_len;
  at::manual_seed(seed);
  const at::Tensor tokens = at::randint(0, 40, {sequences, length}, at::kLong);
  at::Tensor targets = at::randint(0, 40, {sequences, length}, at::kLong);
  targets.view({-1}).slice(0, 0, sequences * length, 3).fill_(-100);
  GlobalBatch batch;
  for (int64_t first = 0; first < sequences; first += config.train.micro_batch_size) {
    data::Batch micro;
    const int64_t count = config.train.micro_batch_size;
    micro.tokens_BS = tokens.narrow(0, first, count);
    micro.targets_BS = targets.narrow(0, first, count);
    micro.positions_BS = at::arange(length).expand({count, length}).contiguous();
    micro.cu_seqlens = at::arange(0, (count + 1) * length, length, at::kInt);
    micro.max_seqlen = length;
    micro.valid_tokens = micro.targets_BS.ne(-100).sum().item<int64_t>();
    batch.valid_tokens += micro.valid_tokens;
    batch.micro_batches.push_back(std::move(micro));
  }
  return batch;
}

// A student of two blocks, a wider teacher of one, and the step over both, on one process.
struct TinyStep {
  config::Config config;
  sharding::Mesh mesh;
  LoadedModels models;
  std::unique_ptr<TrainStep> step;

  explicit TinyStep(
      config::Config settings,
      std::vector<models::ActivationPolicy> policies =
          {models::ActivationPolicy::kKeep, models::ActivationPolicy::kKeep},
      std::shared_ptr<device::HostSlab> host = nullptr)
      : config(std::move(settings)) {
    const auto source = [](const models::ModelConfig& model, uint64_t seed) {
      return ModelSource{model, models::random_weights(model, seed)};
    };
    const ModelSource student = source(tiny_model(2), 1), teacher = source(tiny_model(1, 32), 2);
    models = *load_models(config, Environment{}, mesh, student, TeacherSpec::running(teacher), {});
    step = std::make_unique<TrainStep>(config, mesh, models, ActivationMemory{std::move(policies), std::move(host)});
  }

  TrainStep::Results run(const GlobalBatch& batch, double lr = 1e-2) {
    step->enqueue(batch, {.lr = lr}, {.means = {.valid_tokens = batch.valid_tokens}});
    return *step->results(/*all=*/true);
  }
  at::Tensor weights() {
    std::vector<at::Tensor> flat;
    flat.reserve(static_cast<size_t>(models.student->num_units()));
    for (int64_t unit = 0; unit < models.student->num_units(); ++unit) {
      flat.push_back(models.student->unit(unit).master);
    }
    return at::cat(flat).to(at::kDouble);
  }
};

} // namespace distill::trainer
