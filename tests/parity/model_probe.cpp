// Runs model folders on given tokens, for comparison with transformers (tests/parity/test_models.py):
//
//   model_probe JOB.json
//
// The job is a list of {"model": folder, "input": tokens.safetensors, "output": out.safetensors, "dtype": "float32",
// "device": "cpu", "save": folder, "save_dtype": "bfloat16"}; "save" is optional. tokens.safetensors holds tokens [B,
// S] and targets [B, S] (int64, -100: ignored) and optionally boundaries [segments + 1] of packed documents. The output
// holds `logits` [B * S, V], `loss` (mean cross-entropy, and the routers' loss that config.json asks for) and the
// loss's gradient by every Hugging Face name as `grad.<name>`.

#include <ATen/ATen.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "trainer/hf/config_json.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/hf/safetensors.h"
#include "trainer/hf/save_model.h"
#include "trainer/models/block.h"
#include "trainer/models/ops/embedding.h"
#include "trainer/models/ops/linear.h"
#include "trainer/models/units.h"
#include "trainer/models/weight_source.h"

namespace distill::models {
namespace {

template <typename T>
T value_or_throw(absl::StatusOr<T> result) {
  if (!result.ok()) {
    throw std::runtime_error(std::string(result.status().message()));
  }
  return std::move(*result);
}

class Probe {
 public:
  explicit Probe(const nlohmann::json& job)
      : folder_(job.at("model")),
        device_(job.value("device", "cpu")),
        config_(value_or_throw(hf::read_model_config(folder_))),
        layouts_(unit_layouts(config_)) {
    const std::map<std::string, at::ScalarType> dtypes{
        {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}};
    const at::ScalarType dtype = dtypes.at(job.value("dtype", "float32"));
    const auto sums = dtype == at::kDouble ? at::kDouble : at::kFloat;
    hf::Notes notes;
    const std::unique_ptr<WeightSource> source = value_or_throw(hf::open_weights(folder_, config_, &notes));
    for (const UnitLayout& layout : layouts_) {
      at::Tensor weights = at::empty({layout.numel}, dtype);
      source->copy_range(layout, 0, weights);
      weights_.push_back(weights.to(device_));
      grads_.push_back(at::zeros({layout.numel}, at::TensorOptions().dtype(sums).device(device_)));
    }
    for (const hf::Note& note : notes) {
      std::printf("%s: %s\n", folder_.c_str(), note.text.c_str());
    }
  }

  void run(const std::string& input, const std::string& output) {
    const auto tensors = value_or_throw(hf::read_safetensors(input)).tensors;
    const at::Tensor tokens = tensors.at("tokens").to(device_);
    seq_ = tensors.contains("boundaries") ? packed(tokens, tensors.at("boundaries"))
                                          : dense_sequences(tokens.size(0), tokens.size(1), device_);
    ropes_ = rope_angles(make_rope_tables(config_.ropes, seq_.seq_len, device_), seq_);
    auto results = forward_backward(tokens.reshape({-1}), tensors.at("targets").to(device_).reshape({-1}));
    for (auto& [name, tensor] : results) {
      tensor = tensor.cpu();
    }
    const absl::Status status = hf::write_safetensors(output, results);
    TORCH_CHECK(status.ok(), status.message());
  }

  void save(const std::string& target, const std::string& dtype) {
    hf::SaveOptions options;
    options.config_folder = folder_;
    options.dtype = dtype == "float32" ? at::kFloat : dtype == "float16" ? at::kHalf : at::kBFloat16;
    options.replace = true;
    options.max_shard_bytes = 100'000; // several shards even for tiny models
    const absl::Status status = hf::save_model(
        target, config_, [&](size_t i) -> absl::StatusOr<at::Tensor> { return weights_[i]; }, options);
    TORCH_CHECK(status.ok(), status.message());
  }

 private:
  SequenceInfo packed(const at::Tensor& tokens, const at::Tensor& boundaries) const {
    const auto* data = boundaries.const_data_ptr<int64_t>();
    return packed_sequences(
        tokens.size(0), tokens.size(1), absl::MakeConstSpan(data, static_cast<size_t>(boundaries.numel())), device_);
  }

  BlockContext context(size_t unit) {
    return {config_.layer(layouts_[unit].block), seq_, ropes_, balance_ ? &*balance_ : nullptr};
  }

  std::map<std::string, at::Tensor> forward_backward(const at::Tensor& tokens_N, const at::Tensor& targets_N) {
    const size_t first = embedding_unit(layouts_);
    const size_t last = head_unit(layouts_);
    std::vector<BlockSaved> saved(layouts_.size());
    const at::Tensor router_sums_R =
        at::zeros({router_sums(config_)}, at::TensorOptions().dtype(at::kDouble).device(device_));
    if (router_count(config_) > 0) {
      balance_.emplace(
          config_, router_sums_R, at::ones({tokens_N.numel()}, grads_[0].options()), tokens_N.numel(),
          config_.router_aux_loss);
    }
    at::Tensor x_NH =
        embedding_forward(tokens_N, embedding_weight(layouts_[first], weights_[first]), config_.embedding_scale);
    for (size_t i = 0; i < layouts_.size(); ++i) {
      if (layouts_[i].kind == UnitKind::kBlock) {
        x_NH = block_forward(context(i), block_params(layouts_[i], weights_[i]), x_NH, &saved[i]);
      }
    }
    if (balance_) {
      balance_->finish_forward();
    }
    FinalNormSaved norm_saved;
    const at::Tensor norm_H = final_norm_weight(layouts_[last], weights_[last]);
    const at::Tensor lm_head_VH = lm_head_weight(layouts_[last], weights_[last]);
    const at::Tensor hidden_NH = final_norm_forward(config_, norm_H, x_NH, &norm_saved);
    const at::ScalarType sums = grads_[last].scalar_type(); // logits and loss are not rounded to the compute dtype
    at::Tensor logits_NV = linear_forward(hidden_NH, lm_head_VH).to(sums);
    at::Tensor slope_NV = at::ones_like(logits_NV); // of the softcap
    if (const double cap = config_.final_softcap; cap > 0) {
      const at::Tensor tanh_NV = at::tanh(logits_NV / cap);
      logits_NV = cap * tanh_NV;
      slope_NV = 1 - tanh_NV.square();
    }

    const at::Tensor valid_N = targets_N.ge(0);
    const double count = valid_N.sum().item<double>();
    const at::Tensor log_probs_NV = at::log_softmax(logits_NV, 1);
    const at::Tensor rows = valid_N.nonzero().squeeze(1);
    const at::Tensor labels = targets_N.index_select(0, rows);
    at::Tensor loss = -log_probs_NV.index({rows, labels}).sum() / count;
    if (balance_) {
      loss.add_(router_sums_R[kBalanceLoss], config_.router_aux_loss);
    }
    at::Tensor dlogits_NV = log_probs_NV.exp();
    dlogits_NV.index_put_({rows, labels}, dlogits_NV.index({rows, labels}) - 1);
    dlogits_NV.mul_(valid_N.unsqueeze(1).to(dlogits_NV.scalar_type())).div_(count).mul_(slope_NV);

    dlogits_NV = dlogits_NV.to(hidden_NH.scalar_type());
    at::Tensor lm_head_grad = lm_head_weight(layouts_[last], grads_[last]);
    linear_backward_weight(dlogits_NV, hidden_NH, lm_head_grad);
    at::Tensor norm_grad = final_norm_weight(layouts_[last], grads_[last]);
    at::Tensor dx_NH =
        final_norm_backward(config_, norm_H, linear_backward_input(dlogits_NV, lm_head_VH), norm_saved, norm_grad);
    for (size_t i = layouts_.size(); i-- > 0;) {
      if (layouts_[i].kind == UnitKind::kBlock) {
        BlockParams grads = block_params(layouts_[i], grads_[i]);
        dx_NH = block_backward(context(i), block_params(layouts_[i], weights_[i]), dx_NH, std::move(saved[i]), grads);
      }
    }
    at::Tensor embedding_grad = embedding_weight(layouts_[first], grads_[first]);
    embedding_backward(tokens_N, dx_NH, embedding_grad, config_.embedding_scale);

    std::map<std::string, at::Tensor> results{{"logits", logits_NV}, {"loss", loss}};
    for (size_t i = 0; i < layouts_.size(); ++i) {
      for (const FlatPiece& piece : flat_pieces(layouts_[i], 0, layouts_[i].numel)) {
        if (!piece.param->trained) {
          continue;
        }
        results["grad." + piece.part->hf_name] =
            grads_[i].narrow(0, piece.flat_begin, piece.count).view(part_shape(*piece.param, *piece.part));
      }
    }
    return results;
  }

  std::string folder_;
  at::Device device_;
  ModelConfig config_;
  std::vector<UnitLayout> layouts_;
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> grads_;
  SequenceInfo seq_;
  std::vector<RopeAngles> ropes_;
  std::optional<RouterBalance> balance_;
};

} // namespace
} // namespace distill::models

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: model_probe JOB.json\n");
    return 2;
  }
  try {
    std::ifstream file(argv[1]);
    for (const nlohmann::json& job : nlohmann::json::parse(file)) {
      distill::models::Probe probe(job);
      probe.run(job.at("input"), job.at("output"));
      if (job.contains("save")) {
        probe.save(job.at("save"), job.value("save_dtype", "float32"));
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "model_probe: %s\n", error.what());
    return 1;
  }
  return 0;
}
