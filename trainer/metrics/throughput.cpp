#include "trainer/metrics/throughput.h"

#include "trainer/device/device_hooks.h"
#include "trainer/device/device_info.h"

namespace distill::metrics {

Throughput::Throughput(
    at::Device device, const models::ModelConfig& student, const TokenFlops& teacher, int64_t seq_len,
    int64_t teacher_seq_len, int64_t tokens_per_step, int64_t world_size)
    : device_(device),
      tokens_per_step_(static_cast<double>(tokens_per_step)),
      peak_flops_(device::device_info(device).peak_bf16_flops * static_cast<double>(world_size)) {
  const TokenFlops student_flops = token_flops(student, seq_len);
  const TokenFlops teacher_flops = teacher * (static_cast<double>(teacher_seq_len) / static_cast<double>(seq_len));
  causal_flops_ = step_flops_per_token(student_flops, teacher_flops, /*causal=*/true);
  full_flops_ = step_flops_per_token(student_flops, teacher_flops, /*causal=*/false);
}

void Throughput::complete(StepMetrics& record) const {
  record.tokens_per_second = tokens_per_step_ / record.seconds;
  if (peak_flops_ > 0) {
    record.mfu_causal = causal_flops_ * record.tokens_per_second / peak_flops_;
    record.mfu_full = full_flops_ * record.tokens_per_second / peak_flops_;
  }
  record.peak_memory_bytes = device::peak_memory_bytes(device_);
  record.peak_reserved_bytes = device::allocator_bytes(device_).reserved_peak;
  record.outside_allocator_bytes = device::bytes_outside_allocator(device_);
}

} // namespace distill::metrics
