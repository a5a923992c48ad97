#include "trainer/teacher_cache/rows_to_write.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "trainer/device/simulation.h"
#include "trainer/teacher_cache/contexts.h"
#include "trainer/teacher_cache/row_places.h"

namespace distill::teacher_cache {
namespace {

// Makes an entry but for its checksum. Adds the tokens that have a row to `tokens`.
StretchEntry entry_of(
    const data::Batch& batch, const data::Stretch& stretch, uint32_t shard, uint64_t context,
    std::vector<int64_t>& tokens) {
  const std::vector<RowPlace> places = row_places(batch, stretch);
  for (const RowPlace& place : places) {
    tokens.push_back(place.token);
  }
  StretchEntry entry{};
  entry.shard = shard;
  entry.document = static_cast<uint32_t>(stretch.document);
  entry.begin = static_cast<uint64_t>(stretch.begin);
  entry.tokens = static_cast<uint32_t>(stretch.tokens);
  entry.rows = static_cast<uint32_t>(places.size());
  entry.context = context;
  return entry;
}

// Starts a copy to host memory, page-locked if it comes from a GPU. `copied`: the event after which it is complete;
// null: it is complete at once.
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

} // namespace

RowsToWrite rows_to_write(
    const data::Batch& batch, const at::Tensor& rows_RW,
    const std::function<uint32_t(const data::Shard& shard)>& shard_number) {
  RowsToWrite out;
  const std::vector<uint64_t> contexts = contexts_of(batch);
  for (size_t i = 0; i < contexts.size(); ++i) {
    const data::Stretch& stretch = batch.stretches[i];
    out.stretches.push_back(entry_of(batch, stretch, shard_number(*stretch.shard), contexts[i], out.tokens));
  }
  out.rows_RW = copy_to_host(rows_RW, out.copied);
  return out;
}

} // namespace distill::teacher_cache
