#include "trainer/precision/block_walk.h"

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/metrics/task_progress.h"
#include "trainer/models/ops/embedding.h"
#include "trainer/models/packed_layout.h"
#include "trainer/models/units.h"
#include "trainer/teacher/token_batch.h"

namespace distill::precision {
namespace {

using models::Product;
using models::UnitLayout;

Variant all_products(int64_t blocks) {
  return *Variant::all_but({}, blocks);
}

// The block in which a variant begins to differ from the model in its compute dtype.
int64_t first_block(const Variant& variant, int64_t blocks) {
  int64_t block = 0;
  while (block < blocks && !variant.any_of(block)) {
    ++block;
  }
  return block;
}

// The weights of a block in one variant, from those in the compute dtype and those in float8.
models::BlockParams params_of(
    const Variant& variant, int64_t block, const models::BlockParams& plain, const models::BlockParams& float8) {
  models::BlockParams params = plain;
  const auto take = [&](Product product, auto weight, auto scale) {
    if (variant.contains(block, product)) {
      params.*weight = float8.*weight;
      params.*scale = float8.*scale;
    }
  };
  using Params = models::BlockParams;
  take(Product::kQkv, &Params::qkv_AH, &Params::qkv_scale_A);
  take(Product::kO, &Params::o_HQ, &Params::o_scale_H);
  take(Product::kGateUp, &Params::gate_up_2FH, &Params::gate_up_scale_2F);
  take(Product::kDown, &Params::down_HF, &Params::down_scale_H);
  return params;
}

class Walk {
 public:
  Walk(
      const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
      absl::Span<const data::Batch> batches, absl::Span<const Variant> variants, const WalkOptions& options)
      : model_(model),
        environment_(environment),
        mesh_(mesh),
        variants_(variants),
        options_(options),
        layouts_(models::unit_layouts(model.config)) {
    if (mesh.gather != nullptr) {
      take_largest_ = [&mesh](at::Tensor values) { mesh.gather->all_reduce_max(values); };
    }
    for (const data::Batch& batch : batches) {
      Batch& own = batches_.emplace_back();
      own.tokens = trainer::teacher_token_batch(batch, environment.device);
      own.targets_N = trainer::teacher_targets(batch).to(environment.device);
      own.valid_tokens = batch.valid_tokens;
      longest_ = std::max(longest_, own.tokens.seq.seq_len);
    }
  }

  absl::StatusOr<std::vector<TokenMetrics>> run() {
    metrics::TaskProgress progress(
        "comparing precisions", model_.config.num_layers, "blocks",
        mesh_.is_main() ? options_.progress : config::ProgressStyle::kNone);
    embed();
    report_progress();
    for (int64_t block = 0; block < model_.config.num_layers; ++block) {
      run_block(block);
      report_progress();
      progress.add(1);
    }
    std::vector<TokenMetrics> result = run_head();
    RETURN_IF_ERROR(sharding::agree(mesh_, model_.weights->status())); // each rank has read other weights
    return result;
  }

 private:
  struct Batch {
    sharding::TokenBatch tokens;
    at::Tensor targets_N;
    int64_t valid_tokens = 0;
    models::RopeAngles angles;
    at::Tensor reference_NH;
    std::vector<at::Tensor> variant_NH; // undefined: still the same as the reference
  };

  // Tells the watchdog and the other ranks that this rank goes on: reading a large model from a slow disk takes long.
  void report_progress() const {
    mesh_.report_progress(0, "comparing precisions");
  }
  at::TensorOptions options(at::ScalarType dtype) const {
    return at::TensorOptions().dtype(dtype).device(environment_.device);
  }
  at::ScalarType dtype() const {
    return environment_.teacher_dtype;
  }

  // A whole flat buffer of `numel`, of which every rank of the shard axis reads a part.
  template <typename Read>
  at::Tensor whole(int64_t numel, at::ScalarType type, const Read& read) const {
    const sharding::ShardRange range = sharding::shard_range(numel, mesh_.shard_rank, mesh_.shard_size);
    at::Tensor part = at::zeros({range.numel}, options(type));
    read(range.begin, part);
    if (mesh_.gather == nullptr) {
      return part;
    }
    at::Tensor flat = at::empty({range.padded_numel}, options(type));
    mesh_.gather->all_gather(flat, part);
    return flat;
  }
  at::Tensor plain_unit(const UnitLayout& layout) const {
    return whole(layout.numel, dtype(), [&](int64_t begin, at::Tensor& part) {
      model_.weights->copy_range(layout, begin, part);
    });
  }

  void embed() {
    const UnitLayout& layout = layouts_[models::embedding_unit(layouts_)];
    const at::Tensor flat = plain_unit(layout);
    const models::RopeTable rope = models::make_rope_table(model_.config, longest_, environment_.device);
    for (Batch& batch : batches_) {
      batch.angles = models::rope_angles(rope, batch.tokens.seq.positions_N);
      batch.reference_NH = models::embedding_forward(batch.tokens.tokens_N, models::embedding_weight(layout, flat));
      batch.variant_NH.resize(variants_.size());
    }
  }

  void run_block(int64_t block) {
    const UnitLayout layout = models::block_layout(model_.config, block);
    const at::Tensor flat = plain_unit(layout);
    const models::BlockParams plain = models::block_params(layout, flat);
    at::Tensor bytes;
    models::BlockParams float8;
    if (std::any_of(variants_.begin(), variants_.end(), [&](const Variant& v) { return v.any_of(block); })) {
      const UnitLayout packed = models::packed_layout(layout, all_products(model_.config.num_layers), dtype());
      bytes = whole(packed.numel, at::kByte, [&](int64_t begin, at::Tensor& part) {
        models::read_packed(*model_.weights, model_.config, packed, begin, part, take_largest_);
      });
      float8 = models::block_params(packed, bytes);
    }
    for (Batch& batch : batches_) {
      const auto forward = [&](const models::BlockParams& params, const at::Tensor& x_NH) {
        return models::block_forward(model_.config, batch.tokens.seq, batch.angles, params, x_NH, /*saved=*/nullptr);
      };
      for (size_t i = 0; i < variants_.size(); ++i) {
        if (block >= first_block(variants_[i], model_.config.num_layers)) {
          at::Tensor& x_NH = batch.variant_NH[i];
          x_NH = forward(params_of(variants_[i], block, plain, float8), x_NH.defined() ? x_NH : batch.reference_NH);
        }
      }
      batch.reference_NH = forward(plain, batch.reference_NH);
    }
  }

  std::vector<TokenMetrics> run_head() {
    const UnitLayout& layout = layouts_[models::head_unit(layouts_)];
    const at::Tensor flat = plain_unit(layout);
    const at::Tensor weight_VH = models::lm_head_weight(layout, flat);
    const at::Tensor norm_H = models::final_norm_weight(layout, flat);
    losses::LossOptions loss;
    loss.divergence = losses::Divergence::kForwardKl;
    loss.hard_weight = 1;
    std::vector<TokenMetrics> result(variants_.size());
    for (Batch& batch : batches_) {
      losses::LinearHeadInputs inputs;
      inputs.weight_VH = weight_VH;
      inputs.teacher_weight_VG = weight_VH;
      inputs.targets_N = batch.targets_N;
      inputs.valid_tokens = batch.valid_tokens;
      inputs.teacher_hidden_NG = models::final_norm_forward(model_.config, norm_H, batch.reference_NH, nullptr);
      for (size_t i = 0; i < variants_.size(); ++i) {
        const at::Tensor& x_NH = batch.variant_NH[i].defined() ? batch.variant_NH[i] : batch.reference_NH;
        inputs.hidden_NH = models::final_norm_forward(model_.config, norm_H, x_NH, nullptr);
        result[i].push_back(losses::linear_head(inputs, loss, options_.chunks, /*grads=*/nullptr).metrics_MN);
        batch.variant_NH[i].reset();
      }
      batch.reference_NH.reset();
      report_progress();
    }
    return result;
  }

  const models::ModelSource& model_;
  const trainer::Environment& environment_;
  const sharding::Mesh& mesh_;
  const absl::Span<const Variant> variants_;
  const WalkOptions& options_;
  const std::vector<UnitLayout> layouts_;
  models::TakeLargest take_largest_; // over the ranks of the shard axis
  std::vector<Batch> batches_;
  int64_t longest_ = 1; // tokens of a sequence
};

} // namespace

absl::StatusOr<std::vector<TokenMetrics>> walk(
    const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
    absl::Span<const data::Batch> batches, absl::Span<const Variant> variants, const WalkOptions& options) {
  return Walk(model, environment, mesh, batches, variants, options).run();
}

} // namespace distill::precision
