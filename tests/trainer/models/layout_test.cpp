#include "trainer/models/layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/trainer/models/llama_like.h"

namespace distill::models {
namespace {

ModelConfig make_config(bool tied) {
  LayerKind kind;
  kind.attention.qkv_bias = true;
  kind.attention.qk_norm.emplace();
  ModelConfig config =
      llama_like({.vocab = 51, .hidden = 24, .ffn = 40, .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 10}, kind);
  config.tie_word_embeddings = tied;
  return config;
}

TEST(LayoutTest, UnitsAreInForwardOrder) {
  const auto untied = unit_layouts(make_config(false));
  ASSERT_EQ(untied.size(), 5U);
  EXPECT_EQ(untied[0].kind, UnitKind::kEmbedding);
  EXPECT_EQ(untied[2].name, "block 1");
  EXPECT_EQ(untied[2].block, 1);
  EXPECT_EQ(untied[4].kind, UnitKind::kHead);
  const auto tied = unit_layouts(make_config(true));
  ASSERT_EQ(tied.size(), 4U);
  EXPECT_EQ(tied[0].kind, UnitKind::kTiedEmbeddingHead);
}

TEST(LayoutTest, ParametersAreAlignedAndDoNotOverlap) {
  for (const bool tied : {false, true}) {
    for (const UnitLayout& unit : unit_layouts(make_config(tied))) {
      int64_t end = 0;
      bool seen_matrix = false;
      for (const ParamLayout& param : unit.params) {
        EXPECT_EQ(param.offset % kParamAlignment, 0) << param.name;
        EXPECT_GE(param.offset, end) << param.name;
        EXPECT_LT(param.offset - end, kParamAlignment) << param.name;
        EXPECT_FALSE(seen_matrix && !param.is_matrix) << "vectors first: " << param.name;
        seen_matrix |= param.is_matrix;
        end = param.offset + param.numel();
      }
      EXPECT_EQ(unit.numel, (end + kParamAlignment - 1) / kParamAlignment * kParamAlignment);
    }
  }
}

TEST(LayoutTest, PartsCoverEachParameterOnce) {
  std::set<std::string> names;
  for (const UnitLayout& unit : unit_layouts(make_config(false))) {
    for (const ParamLayout& param : unit.params) {
      int64_t row = 0;
      for (const ParamPart& part : param.parts) {
        EXPECT_EQ(part.first_row, row);
        row += part.rows;
        EXPECT_TRUE(names.insert(part.hf_name).second) << part.hf_name;
      }
      EXPECT_EQ(row, param.shape.front());
    }
  }
  EXPECT_TRUE(names.contains("model.layers.2.self_attn.k_proj.bias"));
  EXPECT_TRUE(names.contains("model.layers.0.self_attn.q_norm.weight"));
  EXPECT_TRUE(names.contains("lm_head.weight"));
  EXPECT_EQ(names.size(), 3U + 3U * 14U);
}

TEST(LayoutTest, ParameterCountIsThatOfTheShapes) {
  const int64_t attention = 24 * 10 * (4 + 2 + 2) + 10 * (4 + 2 + 2) + 4 * 10 * 24 + 2 * 10;
  const int64_t block = attention + 3 * 24 * 40 + 2 * 24;
  EXPECT_EQ(parameter_count(unit_layouts(make_config(false))), 3 * block + 2 * 51 * 24 + 24);
  EXPECT_EQ(parameter_count(unit_layouts(make_config(true))), 3 * block + 51 * 24 + 24);
}

TEST(LayoutTest, ViewsShareTheFlatBuffer) {
  const UnitLayout block = unit_layouts(make_config(false))[1];
  at::Tensor flat = at::zeros({block.numel + 5}, at::kBFloat16);
  at::Tensor qkv = block.view(flat, "qkv");
  EXPECT_EQ(qkv.sizes(), at::IntArrayRef({80, 24}));
  qkv.fill_(1);
  EXPECT_EQ(flat.sum().item<float>(), 80 * 24);
  EXPECT_FALSE(block.view(flat, "lm_head").defined());
  EXPECT_THROW(block.view(at::zeros({block.numel - 1}), "qkv"), c10::Error);
}

TEST(LayoutTest, PiecesOfRangesAddUpToTheWhole) {
  const UnitLayout block = unit_layouts(make_config(false))[1];
  for (const int64_t shard : {1, 7, 64, 999, 100000}) {
    std::map<std::string, int64_t> next; // element of each tensor that must come next
    int64_t covered = 0;
    for (int64_t begin = 0; begin < block.numel; begin += shard) {
      for (const FlatPiece& piece : flat_pieces(block, begin, std::min(begin + shard, block.numel))) {
        EXPECT_EQ(piece.tensor_begin, next[piece.part->hf_name]);
        EXPECT_GE(piece.flat_begin, begin);
        next[piece.part->hf_name] += piece.count;
        covered += piece.count;
      }
    }
    EXPECT_EQ(covered, parameter_count({block})) << shard;
  }
}

TEST(LayoutTest, ASublayersOnlyNormHasOneNameWhereverItStands) {
  const auto norms = [](const LayerKind& kind) {
    std::vector<std::string> names;
    for (const ParamLayout& param : block_layout(llama_like({}, kind), 1).params) {
      if (!param.is_matrix) {
        names.push_back(param.name + " " + param.parts.front().hf_name);
      }
    }
    return names;
  };
  using Names = std::vector<std::string>;
  const std::string layer = "model.layers.1.";
  EXPECT_EQ(
      norms({}),
      (Names{
          "attn_norm " + layer + "input_layernorm.weight", "mlp_norm " + layer + "post_attention_layernorm.weight"}));
  EXPECT_EQ(
      norms(with_norms_after()),
      (Names{
          "attn_norm " + layer + "post_attention_layernorm.weight",
          "mlp_norm " + layer + "post_feedforward_layernorm.weight"}));
  LayerKind both;
  both.attention_norms = {.before = NormSpec{"a"}, .after = NormSpec{"b"}};
  both.mlp_norms = {.before = NormSpec{"c"}, .after = NormSpec{"d"}};
  EXPECT_EQ(
      norms(both),
      (Names{
          "attn_norm " + layer + "a.weight", "attn_out_norm " + layer + "b.weight", "mlp_norm " + layer + "c.weight",
          "mlp_out_norm " + layer + "d.weight"}));
}

TEST(LayoutTest, EachLayerHasTheShapesOfItsKind) {
  ModelConfig config = llama_like({.ffn = 24, .layers = 3});
  config.kinds.push_back(config.kinds[0]);
  config.kinds[1].mlp.ffn = 40;
  config.kinds[1].attention.kv_heads = 2;
  config.layers = {0, 1, 0};
  EXPECT_EQ(block_layout(config, 0).find("down")->shape, (std::vector<int64_t>{16, 24}));
  EXPECT_EQ(block_layout(config, 1).find("down")->shape, (std::vector<int64_t>{16, 40}));
  EXPECT_EQ(block_layout(config, 1).find("qkv")->shape, (std::vector<int64_t>{48, 16}));
  EXPECT_EQ(block_layout(config, 2).numel, block_layout(config, 0).numel);
  EXPECT_EQ(config.count_of(0), 2);
}

TEST(LayoutTest, ExpertsLieOneBelowTheOther) {
  LayerKind dense, sparse;
  sparse.mlp.experts = ExpertsSpec{.count = 3, .per_token = 2};
  ModelConfig config = llama_like({.hidden = 16, .ffn = 24});
  dense.mlp.ffn = 40;
  sparse.mlp.ffn = 24;
  dense.attention = sparse.attention = config.kinds[0].attention;
  config.set_layers({dense, sparse, sparse});
  EXPECT_EQ(config.kinds.size(), 2U);
  EXPECT_EQ(block_layout(config, 0).find("router"), nullptr);
  const UnitLayout block = block_layout(config, 1);
  EXPECT_EQ(block.find("router")->shape, (std::vector<int64_t>{3, 16}));
  EXPECT_EQ(block.find("router")->parts[0].hf_name, "model.layers.1.mlp.gate.weight");
  const ParamLayout& gate_up = *block.find("gate_up");
  EXPECT_EQ(gate_up.shape, (std::vector<int64_t>{3 * 48, 16}));
  EXPECT_EQ(gate_up.parts[3].hf_name, "model.layers.1.mlp.experts.1.up_proj.weight");
  EXPECT_EQ(gate_up.parts[3].first_row, 48 + 24);
  EXPECT_EQ(block.find("down")->parts[2].first_row, 2 * 16);
  EXPECT_EQ(gate_up.group_rows(), 48);
  EXPECT_EQ(gate_up.active_numel(), 2 * 48 * 16);
  const int64_t one = 3 * 24 * 16; // an expert's
  const auto units = unit_layouts(config);
  EXPECT_EQ(parameter_count(units) - active_parameter_count(units), 2 * one);
  // The router is trained and decays, but is never rounded to float8.
  EXPECT_TRUE(block.find("router")->is_matrix);
  EXPECT_EQ(block_products(config)[1], (std::vector<std::string>{"qkv", "o", "gate_up", "down"}));
}

} // namespace
} // namespace distill::models
