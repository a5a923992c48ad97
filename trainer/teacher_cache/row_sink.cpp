#include "trainer/teacher_cache/row_sink.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "losses/options.h"
#include "trainer/device/simulation.h"
#include "trainer/teacher_cache/contexts.h"

namespace distill::teacher_cache {

using losses::kIgnoreIndex;

StretchEntry entry_of(const data::Batch& batch, const data::Stretch& stretch, uint32_t shard, uint64_t context) {
  const int64_t* targets = batch.targets_BS.const_data_ptr<int64_t>() + stretch.at;
  StretchEntry entry{};
  entry.shard = shard;
  entry.document = static_cast<uint32_t>(stretch.document);
  entry.begin = static_cast<uint64_t>(stretch.begin);
  entry.tokens = static_cast<uint32_t>(stretch.tokens);
  entry.rows = static_cast<uint32_t>(stretch.tokens - std::count(targets, targets + stretch.tokens, kIgnoreIndex));
  entry.context = context;
  return entry;
}

void add_stretch(const data::Batch& batch, const data::Stretch& stretch, const StretchEntry& entry, RowsToWrite& out) {
  const int64_t* targets = batch.targets_BS.const_data_ptr<int64_t>() + stretch.at;
  out.stretches.push_back(entry);
  for (int64_t i = 0; i < stretch.tokens; ++i) {
    if (targets[i] != kIgnoreIndex) {
      out.tokens.push_back(stretch.begin + i);
    }
  }
}

at::Tensor copy_to_host(const at::Tensor& rows_RW, std::shared_ptr<c10::Event>& copied) {
  const at::Device device = rows_RW.device();
  at::Tensor host_RW = at::empty(rows_RW.sizes(), at::TensorOptions().dtype(at::kByte).pinned_memory(device.is_cuda()));
  host_RW.copy_(rows_RW, /*non_blocking=*/true);
  if (device::has_streams(device)) {
    copied = std::make_shared<c10::Event>(device.type());
    copied->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  return host_RW;
}

RowSink::RowSink(
    std::shared_ptr<const CachedRows> cached, const Manifest& manifest, std::string folder, int64_t first_part,
    int64_t stride, int64_t part_tokens)
    : cached_(std::move(cached)),
      row_bytes_(manifest.rows.row_bytes()),
      part_(first_part),
      stride_(stride),
      part_tokens_(part_tokens),
      thread_(std::move(folder), manifest) {}

void RowSink::add(const data::Batch& batch, const at::Tensor& rows_RW) {
  RowsToWrite out;
  std::vector<at::Tensor> kept;
  int64_t row = 0;
  const std::vector<uint64_t> contexts = contexts_of(batch);
  for (size_t i = 0; i < contexts.size(); ++i) {
    const data::Stretch& stretch = batch.stretches[i];
    const StretchEntry entry = entry_of(batch, stretch, cached_->shard_number(*stretch.shard), contexts[i]);
    const bool is_new = !cached_->has(stretch, entry.context) &&
        written_.emplace(entry.shard, entry.document, entry.begin, entry.context).second;
    if (is_new) {
      kept.push_back(rows_RW.narrow(0, row, entry.rows));
      add_stretch(batch, stretch, entry, out);
      tokens_ += stretch.tokens;
    }
    row += entry.rows;
  }
  if (out.stretches.empty()) {
    return;
  }
  out.part = part_;
  out.rows_RW = copy_to_host(kept.size() == batch.stretches.size() ? rows_RW : at::cat(kept), out.copied);
  out.last = tokens_ >= part_tokens_;
  if (out.last) {
    part_ += stride_;
    tokens_ = 0;
  }
  thread_.push(std::move(out));
}

void RowSink::end_part() {
  if (tokens_ > 0) {
    thread_.push({part_, {}, at::empty({0, row_bytes_}, at::kByte), nullptr, /*last=*/true});
    part_ += stride_;
    tokens_ = 0;
  }
}

absl::Status RowSink::finish() {
  end_part();
  return thread_.finish();
}

} // namespace distill::teacher_cache
