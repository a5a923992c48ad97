#include "trainer/plan/block_model.h"

namespace distill::plan {
namespace {

// ATen's flash attention for the CPU works on tiles of queries and keys, one set of buffers for each thread
// (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
int64_t cpu_query_tile(int64_t seq_len) {
  const int64_t tile = seq_len >= 768 ? 256 : seq_len >= 192 ? 64 : 32;
  return std::min(tile, seq_len);
}
int64_t cpu_key_tile(int64_t seq_len) {
  return std::min<int64_t>(512, seq_len);
}

// Rows of FlashAttention-2's and cuDNN's fp32 sum of dq.
int64_t padded_head_dim(int64_t head_dim) {
  return (head_dim + 31) / 32 * 32;
}

} // namespace

void KeptBuffers::label(Category category) {
  for (Buffer* buffer : {&x, &attn_rstd, &qkv, &q_rstd, &k_rstd, &attn, &lse, &mid, &mlp_rstd, &gate_up}) {
    buffer->label(category);
  }
}

Buffer BlockModel::norm_partials(int64_t width) {
  // Two blocks of threads for each of an H200's 132 multiprocessors.
  return shape_.cuda ? timeline_.allocate(Category::kWorkspace, 264 * width * 4) : Buffer();
}

void BlockModel::weight_gradient(int64_t outputs, int64_t inputs) {
  if (!shape_.cuda && shape_.element == 2) { // products in fp32
    const Buffer dy = floats(outputs);
    const Buffer x = floats(inputs);
  }
}

void BlockModel::attention_forward(KeptBuffers& kept) {
  const int64_t heads = shape_.config.num_heads;
  if (shape_.cuda) {
    kept.attn = make(q_width());
    kept.lse = statistics(heads);
    return;
  }
  kept.attn = make(q_width());
  kept.lse = statistics(heads);
  const Buffer out = make(q_width());
  const Buffer lse = statistics(heads);
  const int64_t queries = cpu_query_tile(shape_.seq_len), keys = cpu_key_tile(shape_.seq_len);
  const Buffer tiles =
      timeline_.allocate(Category::kWorkspace, 4 * shape_.threads * queries * (keys + 2 + shape_.config.head_dim));
}

void BlockModel::forward_to_gate_up(KeptBuffers& kept) {
  const models::ModelConfig& config = shape_.config;
  {
    const Buffer normed = hidden();
    kept.attn_rstd = statistics(1);
    kept.qkv = make(q_width() + 2 * kv_width());
  }
  Buffer q, k;
  if (config.qk_norm) {
    if (shape_.cuda) {
      q = make(q_width());
      k = make(kv_width());
      kept.q_rstd = statistics(config.num_heads);
      kept.k_rstd = statistics(config.num_kv_heads);
    } else { // heads are copied together first
      {
        const Buffer heads = make(q_width());
        q = make(q_width());
        kept.q_rstd = statistics(config.num_heads);
      }
      const Buffer heads = make(kv_width());
      k = make(kv_width());
      kept.k_rstd = statistics(config.num_kv_heads);
    }
  }
  attention_forward(kept);
  kept.mid = hidden();
  const Buffer normed = hidden();
  kept.mlp_rstd = statistics(1);
  kept.gate_up = make(2 * config.intermediate_size);
}

Buffer BlockModel::forward(KeptBuffers* kept) {
  KeptBuffers all;
  forward_to_gate_up(all);
  Buffer y;
  {
    const Buffer act = make(shape_.config.intermediate_size);
    y = kept != nullptr ? hidden() : std::move(all.mid); // added to where it lies
  }
  if (kept != nullptr) {
    *kept = std::move(all);
  }
  return y;
}

void BlockModel::attention_backward() {
  const int64_t heads = shape_.config.num_heads;
  const Buffer dq = make(q_width());
  const Buffer dk = make(kv_width());
  const Buffer dv = make(kv_width());
  if (!shape_.cuda) {
    const int64_t queries = cpu_query_tile(shape_.seq_len), keys = cpu_key_tile(shape_.seq_len);
    const Buffer tiles = timeline_.allocate(Category::kWorkspace, 4 * shape_.threads * 2 * queries * keys);
    return;
  }
  // fp32 sums of dq, and a row statistic.
  const Buffer sums =
      timeline_.allocate(Category::kWorkspace, 4 * shape_.tokens * heads * padded_head_dim(shape_.config.head_dim));
  const Buffer rows = statistics(heads);
  Buffer expanded_k, expanded_v;
  if (shape_.packed && shape_.config.num_kv_heads != heads) { // FlashAttention-2 sums over the heads of a group later
    expanded_k = make(q_width());
    expanded_v = make(q_width());
  }
}

Buffer BlockModel::backward(KeptBuffers kept, bool input_only) {
  const models::ModelConfig& config = shape_.config;
  const int64_t ffn = config.intermediate_size;
  if (input_only) {
    forward_to_gate_up(kept);
  }
  Buffer dmid;
  { // mlp_backward
    Buffer act = make(ffn); // dact, then act
    if (!shape_.cuda) {
      const Buffer gated = make(ffn);
      const Buffer dup = make(ffn);
      const Buffer dgated = make(ffn);
    }
    weight_gradient(config.hidden_size, ffn);
    act.reset();
    {
      const Buffer normed = hidden();
      weight_gradient(2 * ffn, config.hidden_size);
    }
    const Buffer dnormed = hidden();
    kept.gate_up.reset();
    dmid = hidden();
    const Buffer partials = norm_partials(config.hidden_size);
  }
  kept.mid.reset();
  weight_gradient(config.hidden_size, q_width());
  const Buffer dattn = make(q_width());
  Buffer dqkv;
  { // qkv_backward
    Buffer q, k, q_rstd, k_rstd;
    if (config.qk_norm) {
      q = make(q_width());
      k = make(kv_width());
      q_rstd = statistics(config.num_heads);
      k_rstd = statistics(config.num_kv_heads);
    }
    dqkv = make(q_width() + 2 * kv_width());
    attention_backward();
    if (config.qk_norm) {
      if (shape_.cuda) {
        const Buffer partials = norm_partials(config.head_dim);
      } else {
        const Buffer dy = make(q_width());
        const Buffer x = make(q_width());
        const Buffer dx = make(q_width());
      }
    }
  }
  kept.qkv.reset();
  kept.attn.reset();
  {
    const Buffer normed = hidden();
    weight_gradient(q_width() + 2 * kv_width(), config.hidden_size);
  }
  const Buffer dnormed = hidden();
  Buffer dx = hidden();
  const Buffer partials = norm_partials(config.hidden_size);
  return dx;
}

} // namespace distill::plan
