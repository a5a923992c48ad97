#include "trainer/models/ops/delta_rule.h"

#include <ATen/ATen.h>

#include "trainer/device/simulation.h"
#include "trainer/models/ops/delta_chunk_kernel.h"
#include "trainer/models/ops/delta_rule_cpu.h"
#include "trainer/models/ops/delta_rule_kernel.h"
#include "trainer/models/ops/kernel_launch.h"

namespace distill::models {
namespace {

at::ScalarType arithmetic(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check(const DeltaSpec& spec, const at::Tensor& qkv_NC, const DeltaGates& gates, const SequenceInfo& seq) {
  const int64_t tokens = qkv_NC.size(0);
  TORCH_CHECK(
      qkv_NC.dim() == 2 && qkv_NC.size(1) == spec.conv_channels() && qkv_NC.is_contiguous(),
      "delta_rule: contiguous q, k, v [N, ", spec.conv_channels(), "] are expected, found ", qkv_NC.sizes());
  for (const at::Tensor* gate : {&gates.decay_NA, &gates.beta_NA}) {
    TORCH_CHECK(
        gate->dim() == 2 && gate->size(0) == tokens && gate->size(1) == spec.value_heads && gate->is_contiguous() &&
            gate->scalar_type() == arithmetic(qkv_NC),
        "delta_rule: contiguous gates [", tokens, ", ", spec.value_heads, "] of dtype ", arithmetic(qkv_NC),
        " are expected, found ", gate->sizes(), " of dtype ", gate->scalar_type());
  }
  TORCH_CHECK(
      seq.segments_host.size() >= 2 && seq.segments_host.front() == 0 && seq.segments_host.back() == tokens,
      "delta_rule: segments from 0 to ", tokens, " are expected");
  TORCH_CHECK(
      !device::runs_on_cuda(qkv_NC) || (spec.key_dim <= kMaxDeltaDim && spec.value_dim <= kMaxDeltaDim),
      "delta_rule: heads of at most ", kMaxDeltaDim, " elements are computed on CUDA, found linear_key_head_dim ",
      spec.key_dim, " and linear_value_head_dim ", spec.value_dim);
}

// Sets what both passes need.
void set_args(
    DeltaRuleArgs& args, const DeltaSpec& spec, const at::Tensor& qkv_NC, const DeltaGates& gates,
    const SequenceInfo& seq, const at::Tensor& written_NV, const at::Tensor& norms) {
  args.qkv = qkv_NC.const_data_ptr();
  args.decay = gates.decay_NA.const_data_ptr();
  args.beta = gates.beta_NA.const_data_ptr();
  args.norms = norms.mutable_data_ptr();
  args.written = written_NV.mutable_data_ptr();
  args.tokens = qkv_NC.size(0);
  args.segments = static_cast<int64_t>(seq.segments_host.size()) - 1;
  args.key_heads = spec.key_heads;
  args.value_heads = spec.value_heads;
  args.key_dim = spec.key_dim;
  args.value_dim = spec.value_dim;
  args.type = element_type(qkv_NC.scalar_type());
  if (!qkv_NC.is_meta()) {
    args.cu_seqlens = seq.cu_seqlens.const_data_ptr<int32_t>();
  }
}

void set_gradients(DeltaRuleArgs& args, const at::Tensor& dout_NV, const DeltaGradients& gradients) {
  args.dout = dout_NV.const_data_ptr();
  args.dqkv = gradients.dqkv_NC.mutable_data_ptr();
  args.ddecay = gradients.dgates.decay_NA.mutable_data_ptr();
  args.dbeta = gradients.dgates.beta_NA.mutable_data_ptr();
}

at::Tensor norms_scratch(const DeltaSpec& spec, const at::Tensor& qkv_NC) {
  return at::empty({qkv_NC.size(0), spec.key_heads, 3}, qkv_NC.options().dtype(arithmetic(qkv_NC)));
}

// Whether the rule is computed in chunks, on tensor cores.
bool runs_in_chunks(const DeltaSpec& spec, const at::Tensor& qkv_NC) {
  if (qkv_NC.scalar_type() != at::kBFloat16 || spec.key_dim % 8 != 0 || spec.value_dim % 8 != 0) {
    return false;
  }
  if (qkv_NC.is_meta()) {
    return true;
  }
  const at::DeviceGuard guard(qkv_NC.device());
  return has_delta_chunks();
}

// The scratch of both passes in chunks.
struct ChunkScratch {
  at::Tensor chunks, gates, reads;

  ChunkScratch(const DeltaSpec& spec, const at::Tensor& qkv_NC, const SequenceInfo& seq) {
    const int64_t tokens = qkv_NC.size(0), segments = static_cast<int64_t>(seq.segments_host.size()) - 1;
    chunks = at::empty({delta_chunk_count(tokens, segments), 4}, qkv_NC.options().dtype(at::kInt));
    gates = at::empty({kGates, spec.value_heads, tokens}, qkv_NC.options().dtype(at::kFloat));
    reads = at::empty({tokens, spec.value_heads, spec.key_dim}, qkv_NC.options());
  }
  void set(DeltaChunkArgs& args) const {
    args.chunks = static_cast<DeltaChunk*>(chunks.mutable_data_ptr());
    args.chunk_count = chunks.size(0);
    args.gates = static_cast<float*>(gates.mutable_data_ptr());
    args.reads = reads.mutable_data_ptr();
  }
};

void forward_in_chunks(
    const DeltaSpec& spec, const at::Tensor& qkv_NC, const DeltaGates& gates, const SequenceInfo& seq,
    const DeltaResult& result) {
  const at::Tensor norms = norms_scratch(spec, qkv_NC);
  const at::Tensor scores = at::empty({qkv_NC.size(0), spec.value_heads, kDeltaChunk}, qkv_NC.options());
  const ChunkScratch scratch(spec, qkv_NC, seq);
  DeltaChunkArgs args{};
  set_args(args, spec, qkv_NC, gates, seq, result.written_NV, norms);
  scratch.set(args);
  args.out = result.out_NV.mutable_data_ptr();
  args.scores = scores.mutable_data_ptr();
  run_kernel("delta_rule", launch_delta_chunk_forward, args, qkv_NC.device());
}

void backward_in_chunks(
    const DeltaSpec& spec, const at::Tensor& dout_NV, const at::Tensor& qkv_NC, const DeltaGates& gates,
    const at::Tensor& written_NV, const SequenceInfo& seq, const DeltaGradients& gradients) {
  const at::Tensor norms = norms_scratch(spec, qkv_NC);
  const ChunkScratch scratch(spec, qkv_NC, seq);
  const at::Tensor states =
      at::empty({qkv_NC.size(0) / kDeltaChunk + 1, spec.value_heads, spec.key_dim, spec.value_dim}, qkv_NC.options());
  const at::Tensor dstates = at::empty_like(states), dwritten = at::empty_like(written_NV);
  DeltaChunkArgs args{};
  set_args(args, spec, qkv_NC, gates, seq, written_NV, norms);
  set_gradients(args, dout_NV, gradients);
  scratch.set(args);
  args.states = states.mutable_data_ptr();
  args.dstates = dstates.mutable_data_ptr();
  args.dwritten = dwritten.mutable_data_ptr();
  run_kernel("delta_rule_backward", launch_delta_chunk_backward, args, qkv_NC.device());
}

} // namespace

DeltaResult delta_rule_forward(
    const DeltaSpec& spec, const at::Tensor& qkv_NC, const DeltaGates& gates, const SequenceInfo& seq) {
  check(spec, qkv_NC, gates, seq);
  DeltaResult result{
      at::empty({qkv_NC.size(0), spec.value_width()}, qkv_NC.options()),
      at::empty({qkv_NC.size(0), spec.value_width()}, qkv_NC.options())};
  if (device::runs_on_cuda(qkv_NC) && runs_in_chunks(spec, qkv_NC)) {
    forward_in_chunks(spec, qkv_NC, gates, seq, result);
  } else if (device::runs_on_cuda(qkv_NC)) {
    const at::Tensor norms = norms_scratch(spec, qkv_NC);
    DeltaRuleArgs args{};
    set_args(args, spec, qkv_NC, gates, seq, result.written_NV, norms);
    args.out = result.out_NV.mutable_data_ptr();
    run_kernel("delta_rule", launch_delta_rule_forward, args, qkv_NC.device());
  } else if (!qkv_NC.is_meta()) {
    delta_rule_forward_cpu(spec, qkv_NC, gates, seq, result);
  }
  return result;
}

DeltaGradients delta_rule_backward(
    const DeltaSpec& spec, const at::Tensor& dout_NV, const at::Tensor& qkv_NC, const DeltaGates& gates,
    const at::Tensor& written_NV, const SequenceInfo& seq) {
  check(spec, qkv_NC, gates, seq);
  for (const at::Tensor* rows : {&dout_NV, &written_NV}) {
    TORCH_CHECK(
        rows->dim() == 2 && rows->size(0) == qkv_NC.size(0) && rows->size(1) == spec.value_width() &&
            rows->is_contiguous() && rows->scalar_type() == qkv_NC.scalar_type(),
        "delta_rule: contiguous rows [", qkv_NC.size(0), ", ", spec.value_width(), "] are expected, found ",
        rows->sizes());
  }
  DeltaGradients gradients{at::empty_like(qkv_NC), {at::empty_like(gates.decay_NA), at::empty_like(gates.beta_NA)}};
  if (device::runs_on_cuda(qkv_NC) && runs_in_chunks(spec, qkv_NC)) {
    backward_in_chunks(spec, dout_NV, qkv_NC, gates, written_NV, seq, gradients);
  } else if (device::runs_on_cuda(qkv_NC)) {
    const auto options = gates.decay_NA.options();
    const at::Tensor norms = norms_scratch(spec, qkv_NC);
    const at::Tensor carried = at::empty(written_NV.sizes(), options);
    const at::Tensor dq = at::empty({qkv_NC.size(0), spec.value_heads, spec.key_dim}, options);
    const at::Tensor dk = at::empty_like(dq);
    DeltaRuleArgs args{};
    set_args(args, spec, qkv_NC, gates, seq, written_NV, norms);
    set_gradients(args, dout_NV, gradients);
    args.carried = carried.mutable_data_ptr();
    args.dq = dq.mutable_data_ptr();
    args.dk = dk.mutable_data_ptr();
    run_kernel("delta_rule_backward", launch_delta_rule_backward, args, qkv_NC.device());
  } else if (!qkv_NC.is_meta()) {
    delta_rule_backward_cpu(spec, dout_NV, qkv_NC, gates, written_NV, seq, gradients);
  }
  return gradients;
}

} // namespace distill::models
