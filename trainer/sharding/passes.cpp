#include "trainer/sharding/passes.h"

#include "trainer/device/memory_tracker.h"
#include "trainer/models/ops/embedding.h"
#include "trainer/sharding/unit_walk.h"

namespace distill::sharding {
namespace {

// Gives a block's adapters the elements of their inputs that are left out.
void set_dropout(models::BlockParams& params, models::Dropout dropout, int64_t block) {
  constexpr int64_t kStreams = 16; // of a block: one for each product that it may have
  if (dropout.probability > 0) {
    TORCH_CHECK(params.projections().size() <= kStreams, "a block has more products than streams of dropout");
    dropout.stream = block * kStreams;
    params.set_dropout(dropout);
  }
}

// A walk over gathered shards. `store` and `norm_saved` get what a backward pass needs; null: none follows. `next`: the
// model whose pass follows, or null. `balance`: of routers that are trained, or null. `dropout`: of adapters that are.
class ShardsWalk : public UnitWalk {
 public:
  ShardsWalk(
      ModelShards& model, const models::SequenceInfo& seq, const std::vector<models::RopeAngles>& angles,
      const models::BlockFunctions& functions, ModelShards* next, ActivationStore* store,
      models::FinalNormSaved* norm_saved, models::RouterBalance* balance, const models::Dropout& dropout = {})
      : model_(model),
        seq_(seq),
        angles_(angles),
        functions_(functions),
        next_(next),
        store_(store),
        norm_saved_(norm_saved),
        balance_(balance),
        dropout_(dropout) {}

 private:
  const models::ModelConfig& config() const override {
    return model_.config();
  }

  at::Tensor begin_embedding() override {
    at::Tensor weight_VH = model_.embedding_weight();
    model_.prefetch(model_.block_unit(0));
    return weight_VH;
  }

  void end_embedding() override {
    const int64_t unit = model_.embedding_unit();
    model_.release(unit);
    if (unit != model_.head_unit()) {
      model_.retire(unit);
    }
  }

  void begin_block(int64_t block) override {
    params_ = model_.block_params(model_.block_unit(block));
    set_dropout(params_, dropout_, block);
    for (int64_t ahead = block + 1; ahead < std::min(num_blocks(), block + 1 + model_.prefetch_depth()); ++ahead) {
      model_.prefetch(model_.block_unit(ahead));
    }
    if (block + 1 == num_blocks()) {
      model_.prefetch(model_.head_unit());
      if (next_ != nullptr) {
        prefetch_first(*next_);
      }
    }
  }

  at::Tensor run_block(int64_t block, size_t /*batch*/, const at::Tensor& x_NH) override {
    const models::BlockContext context{model_.config().layer(block), seq_, angles_, balance_, functions_.tile_tokens};
    if (store_ == nullptr) {
      return functions_.forward(context, params_, x_NH, /*saved=*/nullptr);
    }
    const bool runs_again = models::keeps_input_only(store_->policy(block));
    if (runs_again && functions_.recomputes_attention) {
      saved_ = models::save_input_only(x_NH);
      return functions_.forward(context, params_, x_NH, /*saved=*/nullptr);
    }
    at::Tensor y_NH = functions_.forward(context, params_, x_NH, &saved_);
    if (runs_again) {
      saved_ = models::save_input_and_attention(std::move(saved_));
    }
    return y_NH;
  }

  void end_block(int64_t block) override {
    params_ = {};
    model_.release(model_.block_unit(block));
    if (store_ != nullptr) {
      store_->put(block, std::exchange(saved_, {}));
    }
  }

  at::Tensor begin_head() override {
    if (store_ != nullptr) {
      store_->finish_forward();
    }
    return model_.final_norm_weight();
  }

  at::Tensor run_norm(const at::Tensor& norm_H, const at::Tensor& x_NH) override {
    at::Tensor hidden_NH = models::final_norm_forward(model_.config(), norm_H, x_NH, norm_saved_);
    device::label(hidden_NH, device::Category::kHidden);
    if (norm_saved_ != nullptr) {
      device::label(norm_saved_->x_NH, device::Category::kHidden);
      device::label(norm_saved_->rstd_N, device::Category::kHidden);
    }
    return hidden_NH;
  }

  void end_head() override {
    model_.release(model_.head_unit());
  }

  ModelShards& model_;
  const models::SequenceInfo& seq_;
  const std::vector<models::RopeAngles>& angles_;
  const models::BlockFunctions& functions_;
  ModelShards* next_;
  ActivationStore* store_;
  models::FinalNormSaved* norm_saved_;
  models::RouterBalance* balance_;
  models::Dropout dropout_;
  models::BlockParams params_; // of the block that runs
  models::BlockSaved saved_;
};

} // namespace

void expect_passes(const std::vector<Pass>& passes) {
  WeightSlots* slots = nullptr;
  std::vector<UnitKey> uses;
  for (const auto& [model, backward] : passes) {
    if (model == nullptr || model->weight_slots() == nullptr) {
      continue;
    }
    slots = model->weight_slots();
    const int64_t blocks = model->config().num_layers();
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t unit = model->block_unit(backward ? blocks - 1 - i : i);
      if (model->base() != nullptr) {
        uses.push_back(model->base()->key(unit));
      }
      if (model->has(unit)) {
        uses.push_back(model->key(unit));
      }
    }
  }
  if (slots != nullptr) {
    slots->expect(std::move(uses));
  }
}

void prefetch_first(ModelShards& model) {
  model.prefetch(model.embedding_unit());
  if (model.config().num_layers() > 0) {
    model.prefetch(model.block_unit(0));
  }
}

at::Tensor lm_head(ModelShards& model) {
  return model.lm_head_weight();
}

at::Tensor forward_hidden(
    ModelShards& model, const std::vector<models::RopeTable>& ropes, const TokenBatch& batch, ModelShards* next,
    const models::BlockFunctions& functions) {
  const std::vector<models::RopeAngles> angles = models::rope_angles(ropes, batch.seq);
  return ShardsWalk(
             model, batch.seq, angles, functions, next, /*store=*/nullptr, /*norm_saved=*/nullptr, /*balance=*/nullptr)
      .run({batch.tokens_N})
      .front();
}

at::Tensor TrainingPass::forward(
    const TokenBatch& batch, models::RouterBalance* balance, const models::Dropout& dropout) {
  dropout_ = dropout;
  angles_ = models::rope_angles(ropes_, batch.seq);
  return ShardsWalk(model_, batch.seq, angles_, block_, /*next=*/nullptr, &store_, &norm_saved_, balance, dropout_)
      .run({batch.tokens_N})
      .front();
}

void TrainingPass::backward(const TokenBatch& batch, at::Tensor dhidden_NH, bool last, models::RouterBalance* balance) {
  const int64_t head = model_.head_unit();
  at::Tensor dx_NH;
  { // a scope of their own: views keep the large buffers alive
    at::Tensor norm_gradient =
        model_.has(head) ? model_.unit(head).layout.view(model_.gradient(head).flat, "final_norm") : at::Tensor();
    dx_NH = models::final_norm_backward(
        model_.config(), model_.final_norm_weight(), dhidden_NH, norm_saved_, norm_gradient);
  }
  norm_saved_ = {};
  dhidden_NH.reset();
  model_.release(head);
  model_.retire(head);
  if (head != model_.embedding_unit()) {
    model_.reduce(head, last);
  }

  for (int64_t block = model_.config().num_layers() - 1; block >= 0; --block) {
    const int64_t unit = model_.block_unit(block);
    const models::UnitLayout& layout = model_.unit(unit).layout;
    models::BlockParams params = model_.block_params(unit);
    set_dropout(params, dropout_, block);
    models::BlockSaved saved = store_.take(block);
    for (int64_t ahead = block - 1; ahead >= std::max<int64_t>(0, block - model_.prefetch_depth()); --ahead) {
      model_.prefetch(model_.block_unit(ahead));
    }
    if (block > 0) {
      store_.prefetch(block - 1);
    }
    const UnitGradient gradient = model_.has(unit) ? model_.gradient(unit) : UnitGradient{};
    models::BlockParams gradients = models::block_params(layout, gradient.flat);
    for (const auto& [name, projection] : gradients.projections()) {
      projection->is_new = gradient.is_new;
    }
    const models::BlockContext context{model_.config().layer(block), batch.seq, angles_, balance, block_.tile_tokens};
    dx_NH = block_.backward(context, params, dx_NH, std::move(saved), gradients);
    model_.release(unit);
    model_.reduce(unit, last);
  }

  const int64_t embedding = model_.embedding_unit();
  const models::UnitLayout& embedding_layout = model_.unit(embedding).layout;
  if (embedding_layout.find("embedding") != nullptr) {
    const UnitGradient gradient = model_.gradient(embedding);
    at::Tensor embedding_gradient = models::embedding_weight(embedding_layout, gradient.flat);
    if (gradient.is_new) { // the op only adds to rows
      embedding_gradient.zero_();
    }
    models::embedding_backward(batch.tokens_N, dx_NH, embedding_gradient, model_.config().embedding_scale);
  }
  model_.reduce(embedding, last);
}

} // namespace distill::sharding
