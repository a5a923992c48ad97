#include "trainer/sharding/passes.h"

#include "trainer/device/memory_tracker.h"
#include "trainer/models/ops/embedding.h"

namespace distill::sharding {
namespace {

at::Tensor embed(ModelShards& model, const at::Tensor& tokens_N) {
  const int64_t unit = model.embedding_unit();
  const at::Tensor weight = models::embedding_weight(model.unit(unit).layout, model.weights(unit));
  model.prefetch(model.block_unit(0));
  at::Tensor x_NH = models::embedding_forward(tokens_N, weight);
  model.release(unit);
  if (unit != model.head_unit()) {
    model.retire(unit);
  }
  return x_NH;
}

at::Tensor final_norm(ModelShards& model, const at::Tensor& x_NH, models::FinalNormSaved* saved) {
  const int64_t unit = model.head_unit();
  const at::Tensor norm_H = models::final_norm_weight(model.unit(unit).layout, model.weights(unit));
  at::Tensor hidden_NH = models::final_norm_forward(model.config(), norm_H, x_NH, saved);
  device::label(hidden_NH, device::Category::kHidden);
  if (saved != nullptr) {
    device::label(saved->x_NH, device::Category::kHidden);
    device::label(saved->rstd_N, device::Category::kHidden);
  }
  model.release(unit);
  return hidden_NH;
}

at::Tensor run_block(
    const models::BlockFunctions& functions, ModelShards& model, int64_t block, const models::SequenceInfo& seq,
    const models::RopeAngles& angles, const at::Tensor& x_NH, models::BlockSaved* saved, ModelShards* next = nullptr) {
  const int64_t unit = model.block_unit(block);
  const models::BlockParams params = model.block_params(unit);
  const int64_t blocks = model.config().num_layers;
  for (int64_t ahead = block + 1; ahead < std::min(blocks, block + 1 + model.prefetch_depth()); ++ahead) {
    model.prefetch(model.block_unit(ahead));
  }
  if (block + 1 == blocks) {
    model.prefetch(model.head_unit());
    if (next != nullptr) {
      prefetch_first(*next);
    }
  }
  at::Tensor y_NH = functions.forward(model.config(), seq, angles, params, x_NH, saved);
  model.release(unit);
  return y_NH;
}

} // namespace

void expect_passes(const std::vector<Pass>& passes) {
  WeightSlots* slots = nullptr;
  std::vector<UnitKey> uses;
  for (const auto& [model, backward] : passes) {
    if (model == nullptr || model->weight_slots() == nullptr) {
      continue;
    }
    slots = model->weight_slots();
    const int64_t blocks = model->config().num_layers;
    for (int64_t i = 0; i < blocks; ++i) {
      uses.push_back(model->key(model->block_unit(backward ? blocks - 1 - i : i)));
    }
  }
  if (slots != nullptr) {
    slots->expect(std::move(uses));
  }
}

void prefetch_first(ModelShards& model) {
  model.prefetch(model.embedding_unit());
  if (model.config().num_layers > 0) {
    model.prefetch(model.block_unit(0));
  }
}

at::Tensor lm_head(ModelShards& model) {
  const int64_t unit = model.head_unit();
  return models::lm_head_weight(model.unit(unit).layout, model.weights(unit));
}

at::Tensor forward_hidden(
    ModelShards& model, const models::RopeTable& rope, const TokenBatch& batch, ModelShards* next,
    const models::BlockFunctions& functions) {
  const models::RopeAngles angles = models::rope_angles(rope, batch.seq.positions_N);
  at::Tensor x_NH = embed(model, batch.tokens_N);
  for (int64_t block = 0; block < model.config().num_layers; ++block) {
    x_NH = run_block(functions, model, block, batch.seq, angles, x_NH, /*saved=*/nullptr, next);
  }
  return final_norm(model, x_NH, /*saved=*/nullptr);
}

at::Tensor TrainingPass::forward(const TokenBatch& batch) {
  angles_ = models::rope_angles(rope_, batch.seq.positions_N);
  at::Tensor x_NH = embed(model_, batch.tokens_N);
  for (int64_t block = 0; block < model_.config().num_layers; ++block) {
    if (models::keeps_input_only(store_.policy(block))) {
      models::BlockSaved saved = models::save_input_only(x_NH);
      x_NH = run_block(block_, model_, block, batch.seq, angles_, x_NH, /*saved=*/nullptr);
      store_.put(block, std::move(saved));
    } else {
      models::BlockSaved saved;
      x_NH = run_block(block_, model_, block, batch.seq, angles_, x_NH, &saved);
      store_.put(block, std::move(saved));
    }
  }
  store_.finish_forward();
  return final_norm(model_, x_NH, &norm_saved_);
}

void TrainingPass::backward(const TokenBatch& batch, at::Tensor dhidden_NH, bool last) {
  const int64_t head = model_.head_unit();
  const models::UnitLayout& head_layout = model_.unit(head).layout;
  at::Tensor dx_NH;
  { // a scope of their own: views keep the large buffers alive
    at::Tensor norm_gradient = models::final_norm_weight(head_layout, model_.gradient(head).flat);
    dx_NH = models::final_norm_backward(
        models::final_norm_weight(head_layout, model_.weights(head)), dhidden_NH, norm_saved_, norm_gradient);
  }
  norm_saved_ = {};
  dhidden_NH.reset();
  model_.release(head);
  model_.retire(head);
  if (head != model_.embedding_unit()) {
    model_.reduce(head, last);
  }

  for (int64_t block = model_.config().num_layers - 1; block >= 0; --block) {
    const int64_t unit = model_.block_unit(block);
    const models::UnitLayout& layout = model_.unit(unit).layout;
    const models::BlockParams params = model_.block_params(unit);
    models::BlockSaved saved = store_.take(block);
    for (int64_t ahead = block - 1; ahead >= std::max<int64_t>(0, block - model_.prefetch_depth()); --ahead) {
      model_.prefetch(model_.block_unit(ahead));
    }
    if (block > 0) {
      store_.prefetch(block - 1);
    }
    const UnitGradient gradient = model_.gradient(unit);
    models::BlockParams gradients = models::block_params(layout, gradient.flat);
    gradients.write_matrices = gradient.is_new;
    dx_NH = block_.backward(model_.config(), batch.seq, angles_, params, dx_NH, std::move(saved), gradients);
    model_.release(unit);
    model_.reduce(unit, last);
  }

  const int64_t embedding = model_.embedding_unit();
  {
    const UnitGradient gradient = model_.gradient(embedding);
    at::Tensor embedding_gradient = models::embedding_weight(model_.unit(embedding).layout, gradient.flat);
    if (gradient.is_new) { // the op only adds to rows
      embedding_gradient.zero_();
    }
    models::embedding_backward(batch.tokens_N, dx_NH, embedding_gradient);
  }
  model_.reduce(embedding, last);
}

} // namespace distill::sharding
