#include "trainer/models/ops/attention_math.h"

#include "losses/vector_math.h"

namespace distill::models {
namespace {

constexpr int64_t kQueryBlock = 512;

// Queries [first, first + count) of a segment, and its keys from `begin`, the first one that one of these queries sees,
// up to the last of them.
struct QueryBlock {
  int64_t begin = 0;
  int64_t first = 0;
  int64_t count = 0;

  int64_t keys() const {
    return first - begin + count;
  }
};

template <typename F>
void for_each_query_block(const SequenceInfo& seq, const AttentionOptions& options, const F& visit) {
  for (size_t s = 0; s + 1 < seq.segments_host.size(); ++s) {
    const int64_t end = seq.segments_host[s + 1];
    for (int64_t first = seq.segments_host[s]; first < end; first += kQueryBlock) {
      const int64_t oldest = options.window ? first - *options.window + 1 : 0;
      visit(QueryBlock{std::max(seq.segments_host[s], oldest), first, std::min(kQueryBlock, end - first)});
    }
  }
}

// [count, A, D] -> [K, A/K * count, D]: groups the query heads of each key head, so that keys need not be repeated.
at::Tensor group_queries(const at::Tensor& x_NAD, int64_t kv_heads) {
  const int64_t count = x_NAD.size(0);
  const int64_t group = x_NAD.size(1) / kv_heads;
  return x_NAD.reshape({count, kv_heads, group, x_NAD.size(2)})
      .permute({1, 2, 0, 3})
      .reshape({kv_heads, group * count, x_NAD.size(2)});
}

at::Tensor ungroup_queries(const at::Tensor& x_KGD, int64_t count, int64_t heads) {
  const int64_t kv_heads = x_KGD.size(0);
  return x_KGD.reshape({kv_heads, heads / kv_heads, count, -1}).permute({2, 0, 1, 3}).reshape({count, heads, -1});
}

// Scaled scores [K, A/K, count, keys] in fp32 (or fp64), -inf above the diagonal and before the window.
at::Tensor masked_scores(
    const at::Tensor& q_KGD, const at::Tensor& k_KSD, const QueryBlock& block, const AttentionOptions& options) {
  at::Tensor scores = at::bmm(q_KGD, k_KSD.transpose(1, 2)).mul_(options.scale);
  scores = scores.view({q_KGD.size(0), -1, block.count, block.keys()});
  const int64_t offset = block.first - block.begin;
  const at::Tensor all = at::ones({block.count, block.keys()}, scores.options().dtype(at::kBool));
  at::Tensor hidden = at::triu(all, /*diagonal=*/offset + 1);
  if (options.window) {
    hidden.bitwise_or_(at::tril(all, /*diagonal=*/offset - *options.window));
  }
  return scores.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
}

at::ScalarType math_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor keys_of(const at::Tensor& x_NKD, const QueryBlock& block, at::ScalarType dtype) {
  return x_NKD.narrow(0, block.begin, block.keys()).to(dtype).transpose(0, 1);
}

} // namespace

AttentionResult attention_math_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq,
    const AttentionOptions& options) {
  losses::prepare_vector_math();
  const int64_t heads = q_NAD.size(1);
  const int64_t kv_heads = k_NKD.size(1);
  const at::ScalarType dtype = math_dtype(q_NAD);
  at::Tensor out_NAD = at::empty(q_NAD.sizes(), q_NAD.options());
  at::Tensor lse_NA = at::empty({q_NAD.size(0), heads}, q_NAD.options().dtype(dtype));
  for_each_query_block(seq, options, [&](const QueryBlock& block) {
    const at::Tensor q = group_queries(q_NAD.narrow(0, block.first, block.count).to(dtype), kv_heads);
    const at::Tensor scores = masked_scores(q, keys_of(k_NKD, block, dtype), block, options);
    const at::Tensor lse = at::logsumexp(scores, {-1}, /*keepdim=*/true);
    const at::Tensor probs = at::exp(scores - lse).view({kv_heads, -1, block.keys()});
    const at::Tensor out = at::bmm(probs, keys_of(v_NKD, block, dtype));
    out_NAD.narrow(0, block.first, block.count).copy_(ungroup_queries(out, block.count, heads));
    lse_NA.narrow(0, block.first, block.count).copy_(lse.view({heads, block.count}).t());
  });
  return {out_NAD.view({q_NAD.size(0), -1}), lse_NA};
}

void attention_math_backward(
    const at::Tensor& dout_NQ, const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD,
    const AttentionResult& saved, const SequenceInfo& seq, const AttentionOptions& options, at::Tensor& dq_NAD,
    at::Tensor& dk_NKD, at::Tensor& dv_NKD) {
  losses::prepare_vector_math();
  const int64_t heads = q_NAD.size(1);
  const int64_t kv_heads = k_NKD.size(1);
  const at::ScalarType dtype = math_dtype(q_NAD);
  const at::Tensor dout_NAD = dout_NQ.reshape(q_NAD.sizes());
  const at::Tensor out_NAD = saved.out_NQ.reshape(q_NAD.sizes());
  at::Tensor dk_sum = at::zeros(k_NKD.sizes(), k_NKD.options().dtype(dtype));
  at::Tensor dv_sum = at::zeros(v_NKD.sizes(), v_NKD.options().dtype(dtype));
  for_each_query_block(seq, options, [&](const QueryBlock& block) {
    const at::Tensor q = group_queries(q_NAD.narrow(0, block.first, block.count).to(dtype), kv_heads);
    const at::Tensor k = keys_of(k_NKD, block, dtype);
    const at::Tensor v = keys_of(v_NKD, block, dtype);
    const at::Tensor dout = group_queries(dout_NAD.narrow(0, block.first, block.count).to(dtype), kv_heads);
    const at::Tensor out = group_queries(out_NAD.narrow(0, block.first, block.count).to(dtype), kv_heads);
    const at::Tensor lse = saved.lse.narrow(0, block.first, block.count).t().reshape({kv_heads, -1, block.count, 1});
    const at::Tensor probs = at::exp(masked_scores(q, k, block, options) - lse).view({kv_heads, -1, block.keys()});
    const at::Tensor row_dot = at::sum(dout * out, {-1}, /*keepdim=*/true);
    const at::Tensor dscores = at::bmm(dout, v.transpose(1, 2)).sub_(row_dot).mul_(probs).mul_(options.scale);
    dq_NAD.narrow(0, block.first, block.count).copy_(ungroup_queries(at::bmm(dscores, k), block.count, heads));
    dk_sum.narrow(0, block.begin, block.keys()).add_(at::bmm(dscores.transpose(1, 2), q).transpose(0, 1));
    dv_sum.narrow(0, block.begin, block.keys()).add_(at::bmm(probs.transpose(1, 2), dout).transpose(0, 1));
  });
  dk_NKD.copy_(dk_sum);
  dv_NKD.copy_(dv_sum);
}

} // namespace distill::models
