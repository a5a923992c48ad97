#include "trainer/models/ops/attention_math.h"

#include "losses/vector_math.h"
#include "trainer/device/simulation.h"
#include "trainer/models/ops/attention_scores.h"

namespace distill::models {
namespace {

// The scores that exist at a time: so many of all heads together, or those of kMinQueries queries.
constexpr int64_t kTileScores = int64_t{1} << 26;
constexpr int64_t kMaxQueries = 512;
constexpr int64_t kMinQueries = 16;

// Queries [first, first + count) of a segment, and its keys from `begin`, the first one that one of these queries sees,
// up to the last of them.
struct QueryBlock {
  int64_t begin = 0;
  int64_t first = 0;
  int64_t count = 0;

  int64_t keys() const {
    return first - begin + count;
  }
  ScoreTile tile() const {
    return {count, first - begin};
  }
};

// A segment's blocks depend on nothing but the segment, so that a packed document has the results that it has alone.
template <typename F>
void for_each_query_block(const SequenceInfo& seq, int64_t heads, const AttentionOptions& options, const F& visit) {
  for (size_t s = 0; s + 1 < seq.segments_host.size(); ++s) {
    const int64_t start = seq.segments_host[s], end = seq.segments_host[s + 1];
    const int64_t step = attention_math_queries(heads, std::min(end - start, options.window.value_or(end - start)));
    for (int64_t first = start; first < end; first += step) {
      const int64_t oldest = options.window ? first - *options.window + 1 : 0;
      visit(QueryBlock{std::max(start, oldest), first, std::min(step, end - first)});
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

at::ScalarType math_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// The dtype of the products' operands: on CUDA that of the inputs, whose products with fp32 results exist.
at::ScalarType operand_dtype(const at::Tensor& x) {
  return device::runs_on_cuda(x) ? x.scalar_type() : math_dtype(x);
}

// The product of each of K pairs of matrices, with results in fp32 (fp64 for fp64).
at::Tensor product(const at::Tensor& a_KRC, const at::Tensor& b_KCS) {
  const at::ScalarType dtype = math_dtype(a_KRC);
  if (a_KRC.scalar_type() == dtype) {
    return at::bmm(a_KRC, b_KCS);
  }
  return a_KRC.is_meta() ? at::empty({a_KRC.size(0), a_KRC.size(1), b_KCS.size(2)}, a_KRC.options().dtype(dtype))
                         : at::bmm(a_KRC, b_KCS, dtype);
}

// A block's keys or values, [K, S, D].
at::Tensor keys_of(const at::Tensor& x_NKD, const QueryBlock& block) {
  return x_NKD.narrow(0, block.begin, block.keys()).to(operand_dtype(x_NKD)).transpose(0, 1);
}

// A block's queries, or what else is by query, [K, A/K * count, D].
at::Tensor queries_of(const at::Tensor& x_NAD, const QueryBlock& block, int64_t kv_heads) {
  return group_queries(x_NAD.narrow(0, block.first, block.count).to(operand_dtype(x_NAD)), kv_heads);
}

} // namespace

int64_t attention_math_queries(int64_t heads, int64_t keys) {
  int64_t count = kMaxQueries;
  while (count > kMinQueries && heads * count * keys > kTileScores) {
    count /= 2;
  }
  return count;
}

AttentionResult attention_math_forward(
    const at::Tensor& q_NAD, const at::Tensor& k_NKD, const at::Tensor& v_NKD, const SequenceInfo& seq,
    const AttentionOptions& options) {
  losses::prepare_vector_math();
  const int64_t heads = q_NAD.size(1);
  const int64_t kv_heads = k_NKD.size(1);
  const at::ScalarType dtype = math_dtype(q_NAD);
  at::Tensor out_NAD = at::empty(q_NAD.sizes(), q_NAD.options());
  at::Tensor lse_NA = at::empty({q_NAD.size(0), heads}, q_NAD.options().dtype(dtype));
  for_each_query_block(seq, heads, options, [&](const QueryBlock& block) {
    at::Tensor scores = product(queries_of(q_NAD, block, kv_heads), keys_of(k_NKD, block).transpose(1, 2));
    const SoftmaxResult softmax = attention_softmax(std::move(scores), operand_dtype(q_NAD), block.tile(), options);
    const at::Tensor out = product(softmax.probs_KRS, keys_of(v_NKD, block));
    out_NAD.narrow(0, block.first, block.count).copy_(ungroup_queries(out, block.count, heads));
    lse_NA.narrow(0, block.first, block.count).copy_(softmax.lse_KR.view({heads, block.count}).t());
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
  for_each_query_block(seq, heads, options, [&](const QueryBlock& block) {
    const at::Tensor q = queries_of(q_NAD, block, kv_heads), k = keys_of(k_NKD, block);
    const at::Tensor dout = queries_of(dout_NAD, block, kv_heads);
    const at::Tensor row_dot = at::sum(
        (dout_NAD.narrow(0, block.first, block.count).to(dtype) * out_NAD.narrow(0, block.first, block.count).to(dtype))
            .transpose(0, 1),
        {-1});
    const auto by_row = [&](const at::Tensor& x_AR) { return x_AR.reshape({kv_heads, -1}).contiguous(); };
    const at::Tensor lse = by_row(saved.lse.narrow(0, block.first, block.count).t());
    at::Tensor scores = product(q, k.transpose(1, 2));
    at::Tensor dprobs = product(dout, keys_of(v_NKD, block).transpose(1, 2));
    const SoftmaxGradient gradient = attention_softmax_backward(
        std::move(scores), std::move(dprobs), lse, by_row(row_dot), operand_dtype(q_NAD), block.tile(), options);
    dq_NAD.narrow(0, block.first, block.count)
        .copy_(ungroup_queries(product(gradient.dscores_KRS, k), block.count, heads));
    dk_sum.narrow(0, block.begin, block.keys()).add_(product(gradient.dscores_KRS.transpose(1, 2), q).transpose(0, 1));
    dv_sum.narrow(0, block.begin, block.keys()).add_(product(gradient.probs_KRS.transpose(1, 2), dout).transpose(0, 1));
  });
  dk_NKD.copy_(dk_sum);
  dv_NKD.copy_(dv_sum);
}

} // namespace distill::models
