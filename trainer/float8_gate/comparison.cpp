#include "trainer/float8_gate/comparison.h"

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/metrics/task_progress.h"
#include "trainer/models/packed_layout.h"
#include "trainer/models/units.h"
#include "trainer/sharding/unit_walk.h"
#include "trainer/teacher/token_batch.h"

namespace distill::float8_gate {
namespace {

using models::UnitLayout;

// The block in which a model with these float8 products begins to differ from the model in its compute dtype.
int64_t first_block(const models::Float8Products& products, int64_t blocks) {
  int64_t block = 0;
  while (block < blocks && !products.any_of(block)) {
    ++block;
  }
  return block;
}

// The weights of a block with these float8 products, from those in the compute dtype and those in float8.
models::BlockParams params_of(
    const models::Float8Products& products, int64_t block, const models::BlockParams& plain,
    const models::BlockParams& float8) {
  models::BlockParams params = plain;
  const auto from = float8.projections();
  const auto to = params.projections();
  for (size_t i = 0; i < to.size(); ++i) {
    if (products.contains(block, to[i].first)) {
      to[i].second->weight_OI = from[i].second->weight_OI;
      to[i].second->scale_O = from[i].second->scale_O;
    }
  }
  return params;
}

// Takes the hidden states of the model in its compute dtype through the units, together with those of the model
// with every choice of float8 products.
class ComparingWalk : public sharding::UnitWalk {
 public:
  ComparingWalk(
      const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
      absl::Span<const data::Batch> batches, absl::Span<const models::Float8Products> choices,
      const ComparisonOptions& options)
      : model_(model),
        environment_(environment),
        mesh_(mesh),
        choices_(choices),
        options_(options),
        layouts_(models::unit_layouts(model.config)),
        products_(*models::Float8Products::all_but({}, models::block_products(model.config))),
        progress_(
            "comparing precisions", num_blocks(), "blocks",
            mesh.is_main() ? options.progress : config::ProgressStyle::kNone) {
    if (mesh.gather != nullptr) {
      take_largest_ = [&mesh](at::Tensor values) { mesh.gather->all_reduce_max(values); };
    }
    int64_t longest = 1; // tokens of a sequence
    for (const data::Batch& batch : batches) {
      Batch& own = batches_.emplace_back();
      own.tokens = trainer::teacher_token_batch(batch, environment.device, model.config.vocab_size);
      own.targets_N = trainer::teacher_targets(batch).to(environment.device);
      own.valid_tokens = batch.valid_tokens;
      own.choice_NH.resize(choices.size());
      longest = std::max(longest, own.tokens.seq.seq_len);
    }
    const std::vector<models::RopeTable> ropes =
        models::make_rope_tables(model.config.ropes, longest, environment.device);
    for (Batch& batch : batches_) {
      batch.angles = models::rope_angles(ropes, batch.tokens.seq);
    }
  }

  absl::StatusOr<std::vector<TokenMetrics>> token_metrics() {
    std::vector<at::Tensor> tokens;
    for (const Batch& batch : batches_) {
      tokens.push_back(batch.tokens.tokens_N);
    }
    std::vector<TokenMetrics> metrics = run_head(run(tokens));
    RETURN_IF_ERROR(sharding::agree(mesh_, model_.weights->status())); // each rank has read other weights
    return metrics;
  }

 private:
  struct Batch {
    sharding::TokenBatch tokens;
    at::Tensor targets_N;
    int64_t valid_tokens = 0;
    std::vector<models::RopeAngles> angles;
    std::vector<at::Tensor> choice_NH; // undefined: still the same as the reference
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
  const UnitLayout& head_layout() const {
    return layouts_[models::head_unit(layouts_)];
  }

  const models::ModelConfig& config() const override {
    return model_.config;
  }

  at::Tensor begin_embedding() override {
    const UnitLayout& layout = layouts_[models::embedding_unit(layouts_)];
    return models::embedding_weight(layout, plain_unit(layout));
  }
  void end_embedding() override {
    report_progress();
  }

  void begin_block(int64_t block) override {
    const UnitLayout layout = models::block_layout(model_.config, block);
    plain_ = models::block_params(layout, plain_unit(layout));
    if (std::any_of(
            choices_.begin(), choices_.end(), [&](const models::Float8Products& v) { return v.any_of(block); })) {
      const UnitLayout packed = models::packed_layout(layout, products_, dtype());
      const at::Tensor bytes = whole(packed.numel, at::kByte, [&](int64_t begin, at::Tensor& part) {
        models::read_packed(*model_.weights, model_.config, packed, begin, part, take_largest_);
      });
      float8_ = models::block_params(packed, bytes);
    }
  }

  at::Tensor run_block(int64_t block, size_t index, const at::Tensor& x_NH) override {
    Batch& batch = batches_[index];
    const models::BlockContext context{
        model_.config.layer(block), batch.tokens.seq, batch.angles, /*balance=*/nullptr, options_.tile_tokens};
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (block >= first_block(choices_[i], num_blocks())) {
        at::Tensor& choice_NH = batch.choice_NH[i];
        choice_NH = models::block_forward(
            context, params_of(choices_[i], block, plain_, float8_), choice_NH.defined() ? choice_NH : x_NH,
            /*saved=*/nullptr);
      }
    }
    return models::block_forward(context, plain_, x_NH, /*saved=*/nullptr);
  }

  void end_block(int64_t /*block*/) override {
    plain_ = {};
    float8_ = {};
    report_progress();
    progress_.add(1);
  }

  at::Tensor begin_head() override {
    head_ = plain_unit(head_layout());
    return models::final_norm_weight(head_layout(), head_);
  }
  at::Tensor run_norm(const at::Tensor& norm_H, const at::Tensor& x_NH) override {
    return models::final_norm_forward(model_.config, norm_H, x_NH, /*saved=*/nullptr);
  }
  void end_head() override {}

  std::vector<TokenMetrics> run_head(std::vector<at::Tensor> reference) {
    const at::Tensor weight_VH = models::lm_head_weight(head_layout(), head_);
    const at::Tensor norm_H = models::final_norm_weight(head_layout(), head_);
    losses::LossOptions loss;
    loss.divergence = losses::Divergence::kForwardKl;
    loss.hard_weight = 1;
    loss.student_softcap = loss.teacher_softcap = model_.config.final_softcap;
    std::vector<TokenMetrics> result(choices_.size());
    for (size_t b = 0; b < batches_.size(); ++b) {
      Batch& batch = batches_[b];
      losses::LinearHeadInputs inputs;
      inputs.weight_VH = weight_VH;
      inputs.teacher_weight_VG = weight_VH;
      inputs.targets_N = batch.targets_N;
      inputs.valid_tokens = batch.valid_tokens;
      inputs.teacher_hidden_NG = reference[b];
      for (size_t i = 0; i < choices_.size(); ++i) {
        at::Tensor& x_NH = batch.choice_NH[i];
        inputs.hidden_NH = x_NH.defined() ? run_norm(norm_H, x_NH) : reference[b];
        result[i].push_back(losses::linear_head(inputs, loss, options_.chunks, /*grads=*/nullptr).metrics_MN);
        x_NH.reset();
      }
      reference[b].reset();
      report_progress();
    }
    return result;
  }

  const models::ModelSource& model_;
  const trainer::Environment& environment_;
  const sharding::Mesh& mesh_;
  absl::Span<const models::Float8Products> choices_;
  const ComparisonOptions& options_;
  std::vector<UnitLayout> layouts_;
  models::Float8Products products_; // all of the model's
  models::TakeLargest take_largest_; // over the ranks of the shard axis
  std::vector<Batch> batches_;
  metrics::TaskProgress progress_;
  models::BlockParams plain_, float8_; // of the block that runs
  at::Tensor head_; // the head's unit
};

} // namespace

absl::StatusOr<std::vector<TokenMetrics>> compare(
    const models::ModelSource& model, const trainer::Environment& environment, const sharding::Mesh& mesh,
    absl::Span<const data::Batch> batches, absl::Span<const models::Float8Products> choices,
    const ComparisonOptions& options) {
  return ComparingWalk(model, environment, mesh, batches, choices, options).token_metrics();
}

} // namespace distill::float8_gate
