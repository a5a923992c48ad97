// These operators make top-k and samples out of a teacher's hidden states. docs/loss_head.md documents them.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "losses/head/capture.h"
#include "losses/torch_ops/operator_arguments.h"

namespace distill::losses {

namespace {

CaptureInputs inputs_of(
    const at::Tensor& hidden, const at::Tensor& weight, const OptionalTensor& bias, int64_t vocab_size, double softcap,
    double temperature) {
  CaptureInputs in;
  in.hidden_NG = hidden;
  in.weight_VG = weight;
  in.bias_V = or_undefined(bias);
  in.vocab_size = vocab_size;
  in.softcap = softcap;
  in.temperature = temperature;
  return in;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> topk(
    const at::Tensor& hidden, const at::Tensor& weight, int64_t k, const OptionalTensor& bias, int64_t vocab_size,
    double softcap, double temperature, int64_t chunk_size, int64_t memory_cap_mb, int64_t min_chunk_size) {
  // Autocast would round the fp32 logits, of which it knows nothing, to its own type.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const TopK out = capture_topk(
      inputs_of(hidden, weight, bias, vocab_size, softcap, temperature), k,
      {chunk_size, memory_cap_mb, min_chunk_size});
  return {out.ids_NK, out.log_probs_NK, out.tail_N};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> topk_meta(
    const at::Tensor& hidden, const at::Tensor&, int64_t k, const OptionalTensor&, int64_t, double, double, int64_t,
    int64_t, int64_t) {
  return {
      at::empty_symint({hidden.sym_size(0), c10::SymInt(k)}, hidden.options().dtype(at::kInt)),
      at::empty_symint({hidden.sym_size(0), c10::SymInt(k)}, sum_options(hidden)),
      at::empty_symint({hidden.sym_size(0)}, sum_options(hidden))};
}

std::tuple<at::Tensor, at::Tensor> samples(
    const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& keys, int64_t samples, int64_t seed,
    double exponent, const OptionalTensor& bias, int64_t vocab_size, double softcap, double temperature,
    int64_t chunk_size, int64_t memory_cap_mb, int64_t min_chunk_size) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Samples out = capture_samples(
      inputs_of(hidden, weight, bias, vocab_size, softcap, temperature), keys,
      {.samples = samples, .seed = static_cast<uint64_t>(seed), .exponent = exponent},
      {chunk_size, memory_cap_mb, min_chunk_size});
  return {out.ids_NS, out.weights_NS};
}

std::tuple<at::Tensor, at::Tensor> samples_meta(
    const at::Tensor& hidden, const at::Tensor&, const at::Tensor&, int64_t samples, int64_t, double,
    const OptionalTensor&, int64_t, double, double, int64_t, int64_t, int64_t) {
  return {
      at::empty_symint({hidden.sym_size(0), c10::SymInt(samples)}, hidden.options().dtype(at::kInt)),
      at::empty_symint({hidden.sym_size(0), c10::SymInt(samples)}, hidden.options().dtype(at::kFloat))};
}

} // namespace

TORCH_LIBRARY_FRAGMENT(distill, m)
{
  const std::string options =
      "Tensor? bias=None, int vocab_size=0, float softcap=0.0, float temperature=1.0, " + declared_chunks();
  m.def(("capture_topk(Tensor hidden, Tensor weight, int k, *, " + options + ") -> (Tensor, Tensor, Tensor)").c_str());
  m.def(("capture_samples(Tensor hidden, Tensor weight, Tensor keys, int samples, *, int seed=0, float exponent=1.0, " +
         options + ") -> (Tensor, Tensor)")
            .c_str());
}

TORCH_LIBRARY_IMPL(distill, CPU, m)
{
  m.impl("capture_topk", topk);
  m.impl("capture_samples", samples);
}

TORCH_LIBRARY_IMPL(distill, CUDA, m)
{
  m.impl("capture_topk", topk);
  m.impl("capture_samples", samples);
}

TORCH_LIBRARY_IMPL(distill, Meta, m)
{
  m.impl("capture_topk", topk_meta);
  m.impl("capture_samples", samples_meta);
}

} // namespace distill::losses
