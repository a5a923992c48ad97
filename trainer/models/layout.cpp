#include "trainer/models/layout.h"

#include <ATen/ATen.h>
#include <absl/strings/str_cat.h>

namespace distill::models {
namespace {

int64_t align(int64_t elements) {
  return (elements + kParamAlignment - 1) / kParamAlignment * kParamAlignment;
}

void add_param(UnitLayout& unit, std::string name, std::vector<int64_t> shape, std::vector<ParamPart> parts) {
  ParamLayout param;
  param.name = std::move(name);
  param.is_matrix = shape.size() > 1;
  param.shape = std::move(shape);
  param.offset = unit.numel;
  param.parts = std::move(parts);
  unit.numel = align(unit.numel + param.numel());
  unit.params.push_back(std::move(param));
}

// One parameter that is one Hugging Face tensor.
void add_param(UnitLayout& unit, std::string name, std::vector<int64_t> shape, std::string hf_name) {
  const int64_t rows = shape.front();
  add_param(unit, std::move(name), std::move(shape), {ParamPart{std::move(hf_name), 0, rows}});
}

} // namespace

UnitLayout block_layout(const ModelConfig& config, int64_t index) {
  const int64_t hidden = config.hidden_size;
  const int64_t ffn = config.intermediate_size;
  const int64_t q_rows = config.num_heads * config.head_dim;
  const int64_t kv_rows = config.num_kv_heads * config.head_dim;
  const int64_t qkv_rows = q_rows + 2 * kv_rows;
  const std::string layer = absl::StrCat("model.layers.", index, ".");
  const auto qkv_parts = [&](const char* suffix) -> std::vector<ParamPart> {
    const std::string attn = layer + "self_attn.";
    return {
        {absl::StrCat(attn, "q_proj.", suffix), 0, q_rows},
        {absl::StrCat(attn, "k_proj.", suffix), q_rows, kv_rows},
        {absl::StrCat(attn, "v_proj.", suffix), q_rows + kv_rows, kv_rows}};
  };
  UnitLayout unit;
  unit.name = absl::StrCat("block ", index);
  unit.kind = UnitKind::kBlock;
  unit.block = index;
  add_param(unit, "attn_norm", {hidden}, absl::StrCat(layer, config.attn_norm_tensor, ".weight"));
  if (config.qkv_bias) {
    add_param(unit, "qkv_bias", {qkv_rows}, qkv_parts("bias"));
  }
  if (config.qk_norm) {
    add_param(unit, "q_norm", {config.head_dim}, layer + "self_attn.q_norm.weight");
    add_param(unit, "k_norm", {config.head_dim}, layer + "self_attn.k_norm.weight");
  }
  add_param(unit, "mlp_norm", {hidden}, absl::StrCat(layer, config.mlp_norm_tensor, ".weight"));
  add_param(unit, "qkv", {qkv_rows, hidden}, qkv_parts("weight"));
  add_param(unit, "o", {hidden, q_rows}, layer + "self_attn.o_proj.weight");
  add_param(
      unit, "gate_up", {2 * ffn, hidden},
      {ParamPart{layer + "mlp.gate_proj.weight", 0, ffn}, ParamPart{layer + "mlp.up_proj.weight", ffn, ffn}});
  add_param(unit, "down", {hidden, ffn}, layer + "mlp.down_proj.weight");
  return unit;
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
    add_param(first, "final_norm", {config.hidden_size}, "model.norm.weight");
  }
  add_param(first, "embedding", table, "model.embed_tokens.weight");
  units.push_back(std::move(first));
  for (int64_t i = 0; i < config.num_layers; ++i) {
    units.push_back(block_layout(config, i));
  }
  if (!config.tie_word_embeddings) {
    UnitLayout head;
    head.kind = UnitKind::kHead;
    head.name = "head";
    add_param(head, "final_norm", {config.hidden_size}, "model.norm.weight");
    add_param(head, "lm_head", table, "lm_head.weight");
    units.push_back(std::move(head));
  }
  return units;
}

int64_t parameter_count(const std::vector<UnitLayout>& layouts) {
  int64_t total = 0;
  for (const UnitLayout& layout : layouts) {
    for (const ParamLayout& param : layout.params) {
      total += param.numel();
    }
  }
  return total;
}

std::vector<int64_t> part_shape(const ParamLayout& param, const ParamPart& part) {
  std::vector<int64_t> shape = param.shape;
  shape.front() = part.rows;
  return shape;
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
