#include "trainer/plan/attention_time.h"

#include <absl/strings/str_format.h>

#include "trainer/models/ops/attention_backends.h"

namespace distill::plan {
namespace {

// Bytes that pass through memory for each score, where matrix products compute attention. Forward: fp32 scores are
// written, read for their maxima and sums, and read again, bf16 probabilities are written and read. Backward: fp32
// scores and gradients of probabilities are written and read; bf16 probabilities are written and read once, bf16
// gradients of scores twice.
constexpr double kForwardBytes = 4 + 4 + 4 + 2 + 2;
constexpr double kBackwardBytes = 2 * (4 + 4) + (2 + 2) + (2 + 2 * 2);

// The speed of a delta rule in chunks, with its convolution and its norm, as a share of that of matrix products: from
// their times on an H100 (docs/models.md), less the bytes that delta_time() counts.
constexpr double kDeltaForwardSpeed = 0.033;
constexpr double kDeltaBackwardSpeed = 0.031;

bool is_fused(const models::AttentionSpec& spec) {
  return models::has_fused_attention(spec.head_dim, spec.options());
}

AttentionTime fused_time(const Machine& machine, double head_dim, double flops) {
  const double efficiency = head_dim >= 128 ? 1.0 : 0.72; // heads of 64 are slower than heads of 128
  return {
      flops / (machine.attention_forward_flops * efficiency),
      2.5 * flops / (machine.attention_backward_flops * efficiency)};
}

double flops_of(const models::AttentionSpec& spec, double tokens, int64_t seq_len) {
  return 4 * tokens * static_cast<double>(spec.query_width()) * spec.attended_tokens(seq_len);
}

} // namespace

AttentionTime attention_time(
    const models::AttentionSpec& spec, const Machine& machine, double tokens, int64_t seq_len) {
  const double flops = flops_of(spec, tokens, seq_len);
  if (is_fused(spec)) {
    return fused_time(machine, static_cast<double>(spec.head_dim), flops);
  }
  const double scores = tokens * static_cast<double>(spec.heads) * spec.attended_tokens(seq_len);
  return {
      flops / machine.matmul_flops + kForwardBytes * scores / machine.memory_bytes,
      2.5 * flops / machine.matmul_flops + kBackwardBytes * scores / machine.memory_bytes};
}

AttentionTime delta_time(const models::DeltaSpec& spec, const Machine& machine, double tokens, double element) {
  const double flops = tokens * spec.rule_flops();
  const auto channels = static_cast<double>(spec.conv_channels()), values = static_cast<double>(spec.value_width());
  // Forward: the convolution reads and writes its channels, the rule reads them and writes its output and what it
  // wrote into the states, the norm reads output and gate and writes. Backward: about twice that.
  const double forward = tokens * (3 * channels + 5 * values) * element, backward = 2 * forward;
  return {
      flops / (kDeltaForwardSpeed * machine.matmul_flops) + forward / machine.memory_bytes,
      2 * flops / (kDeltaBackwardSpeed * machine.matmul_flops) + backward / machine.memory_bytes};
}

std::string slow_attention_text(const models::ModelConfig& config, const Machine& machine, int64_t seq_len) {
  std::string kinds;
  double seconds = 0, fused = 0;
  for (size_t kind = 0; kind < config.kinds.size(); ++kind) {
    const models::AttentionSpec& spec = config.kinds[kind].attention;
    const auto layers = static_cast<double>(config.count_of(static_cast<int64_t>(kind)));
    if (layers == 0 || config.kinds[kind].delta || is_fused(spec)) {
      continue;
    }
    absl::StrAppendFormat(
        &kinds, "%s%d of %d layers (%s)", kinds.empty() ? "" : ", ", config.count_of(static_cast<int64_t>(kind)),
        config.num_layers(),
        spec.softcap > 0 ? absl::StrFormat("scores capped at %g", spec.softcap)
                         : absl::StrFormat("heads of %d", spec.head_dim));
    seconds += layers * attention_time(spec, machine, 1, seq_len).forward;
    fused += layers * fused_time(machine, static_cast<double>(spec.head_dim), flops_of(spec, 1, seq_len)).forward;
  }
  return kinds.empty() ? ""
                       : absl::StrFormat(
                             "no fused kernel computes attention in %s: it runs through matrix products, which by the "
                             "plan's estimate take %.1f times as long",
                             kinds, seconds / fused);
}

} // namespace distill::plan
