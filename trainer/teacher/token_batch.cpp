#include "trainer/teacher/token_batch.h"

#include "losses/options.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/device/simulation.h"
#include "trainer/device/small_copy.h"

namespace distill::trainer {
namespace {

// Copies tokens [B, S] to the device, with their positions and segments.
sharding::TokenBatch on_device(
    const at::Tensor& tokens_BS, const at::Tensor& positions_BS, const at::Tensor& cu_seqlens, int64_t max_seqlen,
    at::Device device) {
  sharding::TokenBatch tokens;
  tokens.tokens_N = copy_to_device(tokens_BS.flatten(), device);
  tokens.seq.batch = tokens_BS.size(0);
  tokens.seq.seq_len = tokens_BS.size(1);
  tokens.seq.positions_N = copy_to_device(positions_BS.flatten(), device);
  tokens.seq.cu_seqlens = copy_to_device(cu_seqlens, device);
  const int32_t* boundaries = cu_seqlens.const_data_ptr<int32_t>();
  tokens.seq.segments_host.assign(boundaries, boundaries + cu_seqlens.numel());
  tokens.seq.max_seqlen = max_seqlen;
  // If every row is one segment, no document mask is needed.
  tokens.seq.packed = cu_seqlens.numel() != tokens.seq.batch + 1;
  return tokens;
}

} // namespace

at::Tensor copy_to_device(const at::Tensor& tensor, at::Device device) {
  std::optional<device::UncountedScope> stays; // on the CPU a batch is not copied
  if (device.is_meta() && device::kernel_device(device) == c10::DeviceType::CPU) {
    stays.emplace();
  }
  if (!device.is_cuda() || !tensor.is_contiguous()) {
    return tensor.to(device, /*non_blocking=*/true);
  }
  const at::Tensor copy = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()).device(device));
  device::copy_small(copy, tensor);
  return copy;
}

sharding::TokenBatch token_batch(const data::Batch& batch, at::Device device) {
  return on_device(batch.tokens_BS, batch.positions_BS, batch.cu_seqlens, batch.max_seqlen, device);
}

int64_t rows_if_beyond(const config::Config& config, const models::ModelConfig& teacher) {
  return config.teacher.missing_tokens == config::MissingTokens::kMask ? teacher.vocab_size : 0;
}

sharding::TokenBatch teacher_token_batch(const data::Batch& batch, at::Device device, int64_t rows) {
  if (!batch.teacher) {
    sharding::TokenBatch tokens = token_batch(batch, device);
    tokens.tokens_N = rows > 0 ? tokens.tokens_N.clamp_max(rows - 1) : tokens.tokens_N;
    return tokens;
  }
  const data::TeacherBatch& own = *batch.teacher;
  return on_device(own.tokens_BT, own.positions_BT, own.cu_seqlens, own.max_seqlen, device);
}

RealTokens real_tokens(const data::Batch& batch, at::Device device) {
  const int64_t tokens = batch.tokens_BS.numel();
  const auto host = at::TensorOptions().dtype(at::kFloat).pinned_memory(batch.tokens_BS.is_pinned());
  if (batch.stretches.empty()) {
    return {copy_to_device(at::ones({tokens}, host), device), tokens};
  }
  at::Tensor real_N = at::zeros({tokens}, host);
  int64_t count = 0;
  for (const data::Stretch& stretch : batch.stretches) {
    real_N.narrow(0, stretch.at, stretch.tokens).fill_(1);
    count += stretch.tokens;
  }
  return {copy_to_device(real_N, device), count};
}

at::Tensor cached_rows_on_device(const data::Batch& batch, at::Device device) {
  TORCH_CHECK(
      batch.teacher_rows_NW.defined(), "the teacher is read from a cache: expected rows in the batch, found none");
  return copy_to_device(batch.teacher_rows_NW, device);
}

at::Tensor teacher_targets(const data::Batch& batch) {
  const at::Tensor targets_N = batch.targets_BS.flatten();
  if (!batch.teacher) {
    return targets_N;
  }
  at::Tensor own_T = at::full({batch.teacher->tokens_BT.numel()}, losses::kIgnoreIndex, at::kLong);
  if (const auto& pieces = batch.teacher->aligned) {
    return own_T.index_copy_(0, pieces->teacher_rows_Q, pieces->teacher_targets_Q);
  }
  const at::Tensor counts = targets_N.ne(losses::kIgnoreIndex);
  own_T.index_put_({batch.teacher->rows_BS.flatten().masked_select(counts)}, targets_N.masked_select(counts));
  return own_T;
}

} // namespace distill::trainer
