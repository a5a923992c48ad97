#include "trainer/models/layout.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <iterator>

namespace distill::models {
namespace {

// log of 8, the mean of the numbers from 0 to 16 whose logarithms transformers draws.
constexpr double kInitialALog = 2.0794415416798357;

// Matrices whose products are few numbers with a large effect.
constexpr std::string_view kNeverFloat8[] = {"conv", "ba", "router", "shared_gate"};

int64_t align(int64_t elements) {
  return (elements + kParamAlignment - 1) / kParamAlignment * kParamAlignment;
}

// One parameter that is one Hugging Face tensor.
void add_param(
    UnitLayout& unit, std::string name, std::vector<int64_t> shape, std::string hf_name, double initial = 0) {
  const int64_t rows = shape.front();
  add_param(unit, std::move(name), std::move(shape), {ParamPart{std::move(hf_name), 0, rows}}, initial);
}

// The weight of an RMSNorm, which multiplies by weight + offset: at first by 1.
void add_norm(UnitLayout& unit, std::string name, int64_t size, std::string hf_name, double offset) {
  add_param(unit, std::move(name), {size}, std::move(hf_name), 1 - offset);
}

// The vectors of a gated delta rule.
void add_delta_vectors(UnitLayout& unit, const DeltaSpec& delta, const std::string& prefix) {
  add_param(unit, "a_log", {delta.value_heads}, prefix + "A_log", kInitialALog);
  add_param(unit, "dt_bias", {delta.value_heads}, prefix + "dt_bias", /*initial=*/1);
  add_norm(unit, "gate_norm", delta.value_dim, prefix + "norm.weight", /*offset=*/0);
}

// Its matrices; those that are never in float8 come first.
void add_delta_matrices(UnitLayout& unit, const DeltaSpec& delta, int64_t hidden, const std::string& prefix) {
  const int64_t heads = delta.value_heads, channels = delta.conv_channels(), width = delta.value_width();
  add_param(unit, "conv", {channels, 1, delta.conv_width}, prefix + "conv1d.weight");
  add_param(
      unit, "ba", {2 * heads, hidden},
      {{prefix + "in_proj_b.weight", 0, heads}, {prefix + "in_proj_a.weight", heads, heads}});
  add_param(
      unit, "qkvz", {channels + width, hidden},
      {{prefix + "in_proj_qkv.weight", 0, channels}, {prefix + "in_proj_z.weight", channels, width}});
  add_param(unit, "delta_out", {hidden, width}, prefix + "out_proj.weight");
}

int64_t sum_over_params(const std::vector<UnitLayout>& layouts, int64_t (ParamLayout::*count)() const) {
  int64_t total = 0;
  for (const UnitLayout& layout : layouts) {
    for (const ParamLayout& param : layout.params) {
      total += (param.*count)();
    }
  }
  return total;
}

// The MLP's matrices; those of experts are one below the other.
void add_mlp(UnitLayout& unit, const LayerKind& kind, int64_t hidden, const std::string& prefix) {
  const MlpSpec& mlp = kind.mlp;
  const int64_t groups = mlp.experts ? mlp.experts->count : 1, ffn = mlp.ffn;
  std::vector<ParamPart> gate_up, down;
  const bool stacked = mlp.experts && mlp.experts->stacked_tensors;
  if (stacked) {
    gate_up.push_back({prefix + "experts.gate_up_proj", 0, groups * 2 * ffn, groups});
    down.push_back({prefix + "experts.down_proj", 0, groups * hidden, groups});
  }
  for (int64_t group = 0; group < groups && !stacked; ++group) {
    const std::string name = mlp.experts ? absl::StrCat(prefix, "experts.", group, ".") : prefix;
    if (kind.fused_tensors) {
      gate_up.push_back({name + "gate_up_proj.weight", 2 * group * ffn, 2 * ffn});
    } else {
      gate_up.push_back({name + "gate_proj.weight", 2 * group * ffn, ffn});
      gate_up.push_back({name + "up_proj.weight", (2 * group + 1) * ffn, ffn});
    }
    down.push_back({name + "down_proj.weight", group * hidden, hidden});
  }
  const auto add = [&](std::string name, std::vector<int64_t> shape, std::vector<ParamPart> parts) {
    add_param(unit, std::move(name), std::move(shape), std::move(parts));
    unit.params.back().groups = groups;
    unit.params.back().groups_per_token = mlp.experts ? mlp.experts->per_token : 1;
  };
  add("gate_up", {groups * 2 * ffn, hidden}, std::move(gate_up));
  add("down", {groups * hidden, ffn}, std::move(down));
  if (mlp.experts && mlp.experts->shared_ffn > 0) {
    const int64_t shared = mlp.experts->shared_ffn;
    const std::string name = prefix + "shared_expert.";
    add_param(
        unit, "shared_gate_up", {2 * shared, hidden},
        {{name + "gate_proj.weight", 0, shared}, {name + "up_proj.weight", shared, shared}});
    add_param(unit, "shared_down", {hidden, shared}, name + "down_proj.weight");
  }
}

} // namespace

void add_param(
    UnitLayout& unit, std::string name, std::vector<int64_t> shape, std::vector<ParamPart> parts, double initial) {
  ParamLayout param;
  param.name = std::move(name);
  param.is_matrix = param.drawn = shape.size() > 1;
  param.shape = std::move(shape);
  param.offset = unit.numel;
  param.parts = std::move(parts);
  param.initial = initial;
  unit.numel = align(unit.numel + param.numel());
  unit.params.push_back(std::move(param));
}

UnitLayout block_layout(const ModelConfig& config, int64_t index) {
  const LayerKind& kind = config.layer(index);
  const AttentionSpec& attention = kind.attention;
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = attention.query_rows(), kv_rows = attention.key_value_width();
  const std::string layer = absl::StrCat("model.layers.", index, "."), delta = layer + "linear_attn.";
  const auto qkv_parts = [&](const char* suffix) -> std::vector<ParamPart> {
    const std::string attn = layer + "self_attn.";
    if (kind.fused_tensors) {
      return {{absl::StrCat(attn, "qkv_proj.", suffix), 0, attention.qkv_width()}};
    }
    std::vector<ParamPart> parts{
        {absl::StrCat(attn, "q_proj.", suffix), 0, q_rows}, {absl::StrCat(attn, "k_proj.", suffix), q_rows, kv_rows}};
    if (!attention.keys_are_values) {
      parts.push_back({absl::StrCat(attn, "v_proj.", suffix), q_rows + kv_rows, kv_rows});
    }
    return parts;
  };
  UnitLayout unit;
  unit.name = absl::StrCat("block ", index);
  unit.kind = UnitKind::kBlock;
  unit.block = index;
  const auto add_norms = [&](const SublayerNorms& norms, const std::string& name) {
    if (norms.before) {
      add_norm(
          unit, name + "_norm", hidden, absl::StrCat(layer, norms.before->tensor, ".weight"), norms.before->offset);
    }
    if (norms.after) { // a sublayer's only norm has one name wherever it stands; checkpoints hold it
      add_norm(
          unit, name + (norms.before ? "_out_norm" : "_norm"), hidden,
          absl::StrCat(layer, norms.after->tensor, ".weight"), norms.after->offset);
    }
  };
  add_norms(kind.attention_norms, "attn");
  if (kind.delta) {
    add_delta_vectors(unit, *kind.delta, delta);
  }
  if (attention.qkv_bias) {
    add_param(unit, "qkv_bias", {attention.qkv_width()}, qkv_parts("bias"));
  }
  if (const auto& norm = attention.qk_norm) {
    const auto size = [&](int64_t width) { return norm->whole ? width : attention.head_dim; };
    add_norm(unit, "q_norm", size(attention.query_width()), layer + "self_attn.q_norm.weight", norm->offset);
    add_norm(unit, "k_norm", size(attention.key_value_width()), layer + "self_attn.k_norm.weight", norm->offset);
  }
  add_norms(kind.mlp_norms, "mlp");
  if (kind.scaled_output) {
    add_param(unit, "output_scale", {1}, layer + "layer_scalar", /*initial=*/1);
    unit.params.back().trained = false;
  }
  if (kind.delta) {
    add_delta_matrices(unit, *kind.delta, hidden, delta);
  } else {
    add_param(unit, "qkv", {attention.qkv_width(), hidden}, qkv_parts("weight"));
    add_param(unit, "o", {hidden, attention.query_width()}, layer + "self_attn.o_proj.weight");
  }
  if (kind.mlp.experts) {
    add_param(unit, "router", {kind.mlp.experts->count, hidden}, layer + "mlp.gate.weight");
    if (kind.mlp.experts->shared_ffn > 0) {
      add_param(unit, "shared_gate", {1, hidden}, layer + "mlp.shared_expert_gate.weight");
    }
  }
  add_mlp(unit, kind, hidden, layer + "mlp.");
  for (ParamLayout& param : unit.params) {
    param.may_be_float8 = param.is_matrix &&
        std::find(std::begin(kNeverFloat8), std::end(kNeverFloat8), param.name) == std::end(kNeverFloat8);
  }
  return unit;
}

BlockProducts block_products(const ModelConfig& config) {
  BlockProducts products;
  for (int64_t block = 0; block < config.num_layers(); ++block) {
    std::vector<std::string>& names = products.emplace_back();
    for (const ParamLayout& param : block_layout(config, block).params) {
      if (param.may_be_float8) {
        names.push_back(param.name);
      }
    }
  }
  return products;
}

int64_t ParamLayout::numel() const {
  int64_t product = 1;
  for (int64_t size : shape) {
    product *= size;
  }
  return product;
}

const ParamLayout* UnitLayout::find(std::string_view param) const {
  for (const ParamLayout& candidate : params) {
    if (candidate.name == param) {
      return &candidate;
    }
  }
  return nullptr;
}

at::Tensor UnitLayout::view(const at::Tensor& flat, std::string_view param) const {
  const ParamLayout* found = find(param);
  if (found == nullptr || !flat.defined()) {
    return {};
  }
  TORCH_CHECK(
      flat.dim() == 1 && flat.numel() >= numel, "unit '", name, "': a flat buffer of at least ", numel,
      " elements is expected, found ", flat.sizes());
  if (!found->stored) {
    return flat.narrow(0, found->offset, found->numel()).view(found->shape);
  }
  const int64_t bytes = found->numel() * static_cast<int64_t>(c10::elementSize(*found->stored));
  return flat.narrow(0, found->offset, bytes).view(*found->stored).view(found->shape);
}

std::vector<UnitLayout> unit_layouts(const ModelConfig& config) {
  const std::vector<int64_t> table{config.vocab_size, config.hidden_size};
  std::vector<UnitLayout> units;
  UnitLayout first;
  first.kind = config.tie_word_embeddings ? UnitKind::kTiedEmbeddingHead : UnitKind::kEmbedding;
  first.name = config.tie_word_embeddings ? "tied embedding and head" : "embedding";
  if (config.tie_word_embeddings) {
    add_norm(first, "final_norm", config.hidden_size, "model.norm.weight", config.final_norm_offset);
  }
  add_param(first, "embedding", table, "model.embed_tokens.weight");
  units.push_back(std::move(first));
  for (int64_t i = 0; i < config.num_layers(); ++i) {
    units.push_back(block_layout(config, i));
  }
  if (!config.tie_word_embeddings) {
    UnitLayout head;
    head.kind = UnitKind::kHead;
    head.name = "head";
    add_norm(head, "final_norm", config.hidden_size, "model.norm.weight", config.final_norm_offset);
    add_param(head, "lm_head", table, "lm_head.weight");
    units.push_back(std::move(head));
  }
  return units;
}

int64_t parameter_count(const std::vector<UnitLayout>& layouts) {
  return sum_over_params(layouts, &ParamLayout::numel);
}

int64_t active_parameter_count(const std::vector<UnitLayout>& layouts) {
  return sum_over_params(layouts, &ParamLayout::active_numel);
}

std::vector<int64_t> part_shape(const ParamLayout& param, const ParamPart& part) {
  std::vector<int64_t> shape = param.shape;
  shape.front() = part.rows / part.stacked;
  if (part.stacked > 1) {
    shape.insert(shape.begin(), part.stacked);
  } else if (part.groups_last) {
    shape = {part.rows / param.groups, shape.back() * param.groups};
  }
  return shape;
}

at::Tensor rows_of_groups(const ParamLayout& param, const at::Tensor& tensor) {
  return tensor.reshape({param.group_rows(), param.shape.back(), param.groups}).permute({2, 0, 1}).contiguous();
}

at::Tensor groups_last(const ParamLayout& param, const at::Tensor& rows) {
  return rows.reshape({param.groups, param.group_rows(), param.shape.back()}).permute({1, 2, 0}).contiguous();
}

std::vector<FlatPiece> flat_pieces(const UnitLayout& layout, int64_t begin, int64_t end) {
  std::vector<FlatPiece> pieces;
  for (const ParamLayout& param : layout.params) {
    const int64_t row = param.numel() / param.shape.front();
    for (const ParamPart& part : param.parts) {
      const int64_t part_begin = param.offset + part.first_row * row;
      const int64_t first = std::max(begin, part_begin);
      const int64_t last = std::min(end, part_begin + part.rows * row);
      if (first < last) {
        pieces.push_back({&param, &part, first - part_begin, first, last - first});
      }
    }
  }
  return pieces;
}

} // namespace distill::models
