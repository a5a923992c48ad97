#include "trainer/models/block.h"

#include <absl/strings/str_cat.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/rms_norm.h"
#include "trainer/models/tiles.h"

namespace distill::models {
namespace {

// The weight of the norm of a sublayer's output (BlockParams), or its gradient.
const at::Tensor& out_norm(const SublayerNorms& norms, const at::Tensor& norm_H, const at::Tensor& out_norm_H) {
  return norms.before ? out_norm_H : norm_H;
}
at::Tensor& out_norm(const SublayerNorms& norms, at::Tensor& norm_H, at::Tensor& out_norm_H) {
  return norms.before ? out_norm_H : norm_H;
}

SublayerInput input_of(
    const SublayerNorms& norms, const LayerKind& kind, const at::Tensor& x_NH, const at::Tensor& norm_H,
    const at::Tensor& rstd_N = {}) {
  return {
      .x_NH = x_NH,
      .norm_H = norms.before ? norm_H : at::Tensor(),
      .eps = kind.norm_eps,
      .offset = norms.before ? norms.before->offset : 0,
      .residual_NH = {},
      .rstd_N = rstd_N};
}

// The stream plus the norm of a sublayer's output.
at::Tensor add_norm(
    const LayerKind& kind, const SublayerNorms& norms, const at::Tensor& out_NH, const at::Tensor& norm_H,
    const at::Tensor& stream_NH, at::Tensor& rstd_N) {
  RmsNormResult norm = rms_norm_forward(out_NH, norm_H, kind.norm_eps, norms.after->offset);
  rstd_N = std::move(norm.rstd_N);
  return norm.y_NH.add_(stream_NH);
}

AttentionContext attention_context(const BlockContext& context) {
  const AttentionSpec& spec = context.kind.attention;
  return {
      spec, context.kind.norm_eps, context.seq,
      spec.rope ? context.ropes.at(static_cast<size_t>(*spec.rope)) : RopeAngles()};
}

at::Tensor mixer_forward(
    const BlockContext& context, const BlockParams& params, SublayerInput& input, const at::Tensor& residual_NH,
    BlockSaved& saved) {
  const LayerKind& kind = context.kind;
  return kind.delta
      ? delta_layer_forward({*kind.delta, kind.norm_eps, context.seq}, params.delta, input, residual_NH, saved.delta)
      : attention_layer_forward(attention_context(context), params.attention, input, residual_NH, saved.attention);
}

const Projection& mixer_output(const LayerKind& kind, const BlockParams& params) {
  return kind.delta ? params.delta.out : params.attention.o;
}

// The forward pass up to the residual stream after attention. Returns the input of the MLP's sublayer.
SublayerInput forward_attention(
    const BlockContext& context, const BlockParams& params, const at::Tensor& x_NH, BlockSaved& saved) {
  const LayerKind& kind = context.kind;
  const SublayerNorms& norms = kind.attention_norms;
  saved.x_NH = x_NH;
  SublayerInput input = input_of(norms, kind, x_NH, params.attn_norm_H);
  // On CUDA the kernel of the MLP's norm adds the residual, on the CPU the matrix product does.
  const bool norm_adds =
      kind.mlp_norms.before.has_value() && (device::runs_on_cuda(x_NH) || mixer_output(kind, params).is_float8());
  const bool product_adds = !norms.after && !norm_adds;
  at::Tensor out_NH = mixer_forward(context, params, input, product_adds ? x_NH : at::Tensor(), saved);
  saved.attn_rstd_N = std::move(input.rstd_N);
  if (norms.after) {
    saved.attn_out_NH = std::move(out_NH);
    saved.mid_NH = add_norm(
        kind, norms, saved.attn_out_NH, out_norm(norms, params.attn_norm_H, params.attn_out_norm_H), x_NH,
        saved.attn_out_rstd_N);
  } else {
    saved.mid_NH = std::move(out_NH);
  }
  SublayerInput mlp_input = input_of(kind.mlp_norms, kind, saved.mid_NH, params.mlp_norm_H);
  if (!norms.after && norm_adds) {
    mlp_input.residual_NH = x_NH;
  }
  return mlp_input;
}

at::Tensor rows_of(const Tile& tile, const at::Tensor& x_NH) {
  return x_NH.defined() ? x_NH.narrow(0, tile.first, tile.tokens) : x_NH;
}

// The parameters with which a tile of a block's tokens is computed: what is left out of an adapter's input depends on
// the token.
BlockParams params_of(const Tile& tile, BlockParams params) {
  for (const auto& [name, projection] : params.projections()) {
    projection->adapter.dropout.first_row += tile.first;
  }
  return params;
}

SublayerInput rows_of(const Tile& tile, SublayerInput input) {
  input.x_NH = rows_of(tile, input.x_NH);
  input.residual_NH = rows_of(tile, input.residual_NH);
  return input;
}

// The MLP's sublayer up to its last matrix product, of all tokens or of a tile: saved.mid_NH and `input` have its rows.
void rebuild_mlp(const BlockContext& context, const BlockParams& params, SublayerInput input, BlockSaved& saved) {
  mlp_layer_rebuild({context.kind.mlp}, params.mlp, input, saved.mlp);
  saved.mlp_rstd_N = std::move(input.rstd_N);
}

// The rest of the forward pass where the MLP's output has a norm.
at::Tensor norm_of_mlp(const LayerKind& kind, const BlockParams& params, BlockSaved& saved) {
  saved.mlp_out_NH = mlp_layer_output({kind.mlp}, params.mlp, saved.mlp);
  return add_norm(
      kind, kind.mlp_norms, saved.mlp_out_NH, out_norm(kind.mlp_norms, params.mlp_norm_H, params.mlp_out_norm_H),
      saved.mid_NH, saved.mlp_out_rstd_N);
}

// The forward pass of the MLP's sublayer.
at::Tensor forward_mlp(
    const BlockContext& context, const BlockParams& params, SublayerInput input, int64_t first_token,
    BlockSaved& saved) {
  const LayerKind& kind = context.kind;
  rebuild_mlp(context, params, std::move(input), saved);
  if (context.balance != nullptr && kind.mlp.experts) {
    context.balance->observe(saved.mlp.routing, first_token);
  }
  return kind.mlp_norms.after ? norm_of_mlp(kind, params, saved)
                              : mlp_layer_output({kind.mlp}, params.mlp, saved.mlp, saved.mid_NH);
}

// The same in tiles, of which nothing is saved. `in_place`: nothing else reads the stream before it, input.x_NH, which
// is overwritten.
at::Tensor forward_mlp_in_tiles(
    const BlockContext& context, const BlockParams& params, const SublayerInput& input, bool in_place) {
  const at::Tensor& mid_NH = input.x_NH;
  at::Tensor y_NH = in_place ? mid_NH : at::empty_like(mid_NH);
  for (const Tile& tile : tiles_of(mid_NH.size(0), context.tile_tokens)) {
    BlockSaved part;
    part.mid_NH = rows_of(tile, mid_NH);
    rows_of(tile, y_NH).copy_(forward_mlp(context, params_of(tile, params), rows_of(tile, input), tile.first, part));
  }
  return y_NH;
}

// The gradient of a sublayer's output, given that of the stream to which its norm is added; `out_NH` is released.
at::Tensor out_norm_backward(
    const SublayerNorms& norms, const at::Tensor& dstream_NH, at::Tensor& out_NH, const at::Tensor& rstd_N,
    const at::Tensor& norm_H, at::Tensor& dnorm_H) {
  at::Tensor dout_NH =
      rms_norm_backward(dstream_NH, out_NH, rstd_N, norm_H, dnorm_H, /*dresidual_NH=*/{}, norms.after->offset);
  out_NH.reset();
  return dout_NH;
}

// The gradient of the stream before the MLP's sublayer, given that of the stream after it.
at::Tensor mlp_backward(
    const BlockContext& context, const BlockParams& params, const at::Tensor& dy_NH, int64_t first_token,
    BlockSaved& saved, BlockParams& grads) {
  const LayerKind& kind = context.kind;
  at::Tensor dout_NH = dy_NH;
  if (kind.mlp_norms.after) {
    dout_NH = out_norm_backward(
        kind.mlp_norms, dy_NH, saved.mlp_out_NH, saved.mlp_out_rstd_N,
        out_norm(kind.mlp_norms, params.mlp_norm_H, params.mlp_out_norm_H),
        out_norm(kind.mlp_norms, grads.mlp_norm_H, grads.mlp_out_norm_H));
  }
  return mlp_layer_backward(
      {kind.mlp, context.balance, first_token}, params.mlp, std::move(dout_NH), dy_NH,
      input_of(kind.mlp_norms, kind, saved.mid_NH, params.mlp_norm_H, saved.mlp_rstd_N), saved.mlp, grads.mlp,
      grads.mlp_norm_H);
}

// The same in tiles, each of which is computed again first. The result is written into dy_NH.
at::Tensor mlp_backward_in_tiles(
    const BlockContext& context, const BlockParams& params, at::Tensor dy_NH, const SublayerInput& input,
    BlockParams& grads) {
  for (const Tile& tile : tiles_of(dy_NH.size(0), context.tile_tokens)) {
    BlockSaved part;
    part.mid_NH = rows_of(tile, input.x_NH);
    const BlockParams own = params_of(tile, params);
    rebuild_mlp(context, own, rows_of(tile, input), part);
    if (context.kind.mlp_norms.after) {
      norm_of_mlp(context.kind, own, part);
    }
    at::Tensor rows_NH = rows_of(tile, dy_NH);
    rows_NH.copy_(mlp_backward(context, own, rows_NH, tile.first, part, grads));
    for (const auto& [name, projection] : grads.mlp.projections()) {
      projection->is_new = false; // the next tile adds to the weight's gradient
    }
  }
  return dy_NH;
}

// The gradient of the stream between the sublayers. What `saved` lacks of the forward pass is computed again.
at::Tensor backward_to_mid(
    const BlockContext& context, const BlockParams& params, const at::Tensor& dy_NH, BlockSaved& saved,
    BlockParams& grads) {
  const LayerKind& kind = context.kind;
  const bool recomputes = saved.input_only();
  SublayerInput input = recomputes ? forward_attention(context, params, at::Tensor(saved.x_NH), saved)
                                   : input_of(kind.mlp_norms, kind, saved.mid_NH, params.mlp_norm_H);
  if (tile_count(dy_NH.size(0), context.tile_tokens) > 1) {
    return mlp_backward_in_tiles(context, params, dy_NH, input, grads);
  }
  if (recomputes) {
    rebuild_mlp(context, params, std::move(input), saved);
    if (kind.mlp_norms.after) {
      norm_of_mlp(kind, params, saved);
    }
  }
  return mlp_backward(context, params, dy_NH, /*first_token=*/0, saved, grads);
}

} // namespace

std::vector<std::pair<std::string, Projection*>> BlockParams::projections() {
  std::vector<std::pair<std::string, Projection*>> all{{"qkv", &attention.qkv}, {"o", &attention.o},
                                                       {"conv", &delta.conv},   {"ba", &delta.ba},
                                                       {"qkvz", &delta.qkvz},   {"delta_out", &delta.out}};
  for (auto& projection : mlp.projections()) {
    all.push_back(std::move(projection));
  }
  return all;
}

std::vector<std::pair<std::string, const Projection*>> BlockParams::projections() const {
  std::vector<std::pair<std::string, const Projection*>> all;
  for (const auto& [name, projection] : const_cast<BlockParams*>(this)->projections()) {
    all.emplace_back(name, projection);
  }
  return all;
}

BlockParams block_params(const std::function<at::Tensor(const std::string& name)>& find) {
  BlockParams params;
  params.attn_norm_H = find("attn_norm");
  params.attn_out_norm_H = find("attn_out_norm");
  params.attention.q_norm = find("q_norm");
  params.attention.k_norm = find("k_norm");
  params.delta.a_log_A = find("a_log");
  params.delta.dt_bias_A = find("dt_bias");
  params.delta.gate_norm_D = find("gate_norm");
  params.mlp_norm_H = find("mlp_norm");
  params.mlp_out_norm_H = find("mlp_out_norm");
  params.output_scale = find("output_scale");
  for (const auto& [name, projection] : params.projections()) {
    projection->weight_OI = find(name);
    projection->bias_O = find(absl::StrCat(name, "_bias"));
    projection->scale_O = find(absl::StrCat(name, kScaleSuffix));
  }
  return params;
}

BlockParams block_params(const UnitLayout& layout, const at::Tensor& flat) {
  TORCH_CHECK(layout.kind == UnitKind::kBlock, "block_params: '", layout.name, "' is not a decoder block");
  BlockParams params = block_params([&](const std::string& name) { return layout.view(flat, name); });
  for (const auto& [name, projection] : params.projections()) {
    Adapter& adapter = projection->adapter;
    adapter.a_RI = layout.view(flat, absl::StrCat(name, kLoraA));
    while (const ParamLayout* b = layout.find(absl::StrCat(name, kLoraB, adapter.modules.size()))) {
      adapter.modules.push_back({layout.view(flat, b->name), b->adapter->first_row, b->adapter->scale});
    }
  }
  return params;
}

void add_trained(BlockParams& frozen, const BlockParams& trained) {
  const auto replace = [](at::Tensor& tensor, const at::Tensor& by) { tensor = by.defined() ? by : tensor; };
  replace(frozen.attn_norm_H, trained.attn_norm_H);
  replace(frozen.attn_out_norm_H, trained.attn_out_norm_H);
  replace(frozen.attention.q_norm, trained.attention.q_norm);
  replace(frozen.attention.k_norm, trained.attention.k_norm);
  replace(frozen.mlp_norm_H, trained.mlp_norm_H);
  replace(frozen.mlp_out_norm_H, trained.mlp_out_norm_H);
  const auto own = trained.projections();
  for (const auto& [name, projection] : frozen.projections()) {
    const auto found =
        std::find_if(own.begin(), own.end(), [&name = name](const auto& entry) { return entry.first == name; });
    projection->adapter = found->second->adapter;
  }
}

void BlockParams::set_dropout(Dropout dropout) {
  for (const auto& [name, projection] : projections()) {
    projection->adapter.dropout = dropout;
    ++dropout.stream;
  }
}

std::vector<at::Tensor*> BlockSaved::all() {
  // A member that is missing in this list does not compile: a structured binding names every member.
  auto& [x, attn_rstd, attn_out_rstd, attention_saved, delta_saved, mid, mlp_rstd, mlp_out_rstd, mlp_saved, attn_out, mlp_out] =
      *this;
  std::vector<at::Tensor*> tensors{&x, &attn_rstd, &attn_out_rstd};
  const auto append = [&tensors](const std::vector<at::Tensor*>& more) {
    tensors.insert(tensors.end(), more.begin(), more.end());
  };
  append(attention_saved.all());
  append(delta_saved.all());
  append({&mid, &mlp_rstd, &mlp_out_rstd});
  append(mlp_saved.all());
  append({&attn_out, &mlp_out});
  return tensors;
}

std::vector<at::Tensor*> BlockSaved::tensors() {
  std::vector<at::Tensor*> defined;
  for (at::Tensor* tensor : all()) {
    if (tensor->defined()) {
      defined.push_back(tensor);
    }
  }
  return defined;
}

int64_t BlockSaved::bytes() const {
  int64_t total = 0;
  for (const at::Tensor* tensor : const_cast<BlockSaved*>(this)->tensors()) {
    total += static_cast<int64_t>(tensor->nbytes());
  }
  return total;
}

BlockSaved save_input_only(const at::Tensor& x_NH) {
  BlockSaved saved;
  saved.x_NH = x_NH;
  return saved;
}

BlockSaved save_input_and_attention(BlockSaved all) {
  BlockSaved saved = save_input_only(all.x_NH);
  saved.attention.out_NQ = std::move(all.attention.out_NQ);
  saved.attention.lse = std::move(all.attention.lse);
  saved.delta.out_NV = std::move(all.delta.out_NV);
  saved.delta.written_NV = std::move(all.delta.written_NV);
  return saved;
}

at::Tensor block_forward(
    const BlockContext& context, const BlockParams& params, const at::Tensor& x_NH, BlockSaved* saved) {
  BlockSaved all;
  SublayerInput input = forward_attention(context, params, x_NH, all);
  const bool tiled = tile_count(x_NH.size(0), context.tile_tokens) > 1;
  at::Tensor y_NH = tiled ? forward_mlp_in_tiles(context, params, input, /*in_place=*/saved == nullptr)
                          : forward_mlp(context, params, std::move(input), /*first_token=*/0, all);
  if (saved != nullptr) {
    *saved = std::move(all);
  } else if (!tiled && !context.kind.mlp_norms.after) {
    // Into the memory of the stream before it, which nothing else reads: the result itself lies behind the block's
    // widest tensors, and would leave holes in the device's memory, 0.7 GiB of them in 8B <- 8B.
    y_NH = all.mid_NH.copy_(y_NH);
  }
  return context.kind.scaled_output ? y_NH.mul_(params.output_scale) : y_NH;
}

at::Tensor block_backward(
    const BlockContext& context, const BlockParams& params, const at::Tensor& dscaled_NH, BlockSaved saved,
    BlockParams& grads) {
  const LayerKind& kind = context.kind;
  const at::Tensor dy_NH = kind.scaled_output ? dscaled_NH * params.output_scale : dscaled_NH;
  const at::Tensor dmid_NH = backward_to_mid(context, params, dy_NH, saved, grads);
  saved.mid_NH.reset();

  at::Tensor dout_NH = dmid_NH;
  if (kind.attention_norms.after) {
    dout_NH = out_norm_backward(
        kind.attention_norms, dmid_NH, saved.attn_out_NH, saved.attn_out_rstd_N,
        out_norm(kind.attention_norms, params.attn_norm_H, params.attn_out_norm_H),
        out_norm(kind.attention_norms, grads.attn_norm_H, grads.attn_out_norm_H));
  }
  const SublayerInput input = input_of(kind.attention_norms, kind, saved.x_NH, params.attn_norm_H, saved.attn_rstd_N);
  if (kind.delta) {
    return delta_layer_backward(
        {*kind.delta, kind.norm_eps, context.seq}, params.delta, std::move(dout_NH), dmid_NH, input, saved.delta,
        grads.delta, grads.attn_norm_H);
  }
  return attention_layer_backward(
      attention_context(context), params.attention, std::move(dout_NH), dmid_NH, input, saved.attention,
      grads.attention, grads.attn_norm_H);
}

} // namespace distill::models
