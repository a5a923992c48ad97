#include "trainer/device/memory_park.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <c10/core/Storage.h>

#include <set>

#include "data/base/status_macros.h"
#include "trainer/device/device_hooks.h"
#include "trainer/device/memory_tracker.h"

namespace distill::device {
namespace {

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// The bytes of a tensor's whole storage, as a tensor.
at::Tensor storage_bytes(const at::Tensor& tensor, int64_t bytes) {
  at::Tensor all = at::empty({0}, tensor.options().dtype(at::kByte));
  all.set_(tensor.storage(), /*storage_offset=*/0, {bytes}, {1});
  return all;
}

void move_bytes(at::Tensor to, const at::Tensor& from) {
  if (to.is_cpu() && from.is_cpu()) {
    copy_on_host(to.mutable_data_ptr(), from.const_data_ptr(), to.numel());
  } else {
    to.copy_(from, /*non_blocking=*/true);
  }
}

} // namespace

absl::Status MemoryPark::park(const std::vector<Item>& items) {
  TORCH_CHECK(!parked_, "the memory is parked already");
  std::vector<Part> parts;
  std::set<const c10::StorageImpl*> seen;
  int64_t needed = 0;
  for (const Item& item : items) {
    if (!item.tensor.defined() || item.tensor.device() != device_) {
      continue;
    }
    const c10::StorageImpl* storage = storage_of(item.tensor);
    const auto bytes = static_cast<int64_t>(storage->nbytes());
    if (storage->allocator() == nullptr || !storage->resizable() || bytes == 0 || !seen.insert(storage).second) {
      continue;
    }
    parts.push_back({item.tensor, item.category, bytes});
    needed += HostSlab::aligned(bytes);
  }
  const auto same = [](const Part& a, const Part& b) { return a.bytes == b.bytes; };
  if (slab_ == nullptr || !std::equal(parts.begin(), parts.end(), parts_.begin(), parts_.end(), same)) {
    parts_.clear();
    slab_.reset();
    ASSIGN_OR_RETURN(slab_, HostSlab::allocate(needed, device_, processes_on_host_, "onpolicy.offload"));
    for (Part& part : parts) {
      part.host = HostSlab::take(slab_, part.bytes);
    }
  } else {
    for (size_t i = 0; i < parts.size(); ++i) {
      parts[i].host = parts_[i].host;
    }
  }
  parts_ = std::move(parts);
  synchronize(device_); // side streams may use the tensors
  for (Part& part : parts_) {
    move_bytes(part.host, storage_bytes(part.tensor, part.bytes));
  }
  synchronize(device_);
  bytes_ = 0;
  for (Part& part : parts_) {
    c10::StorageImpl* storage = storage_of(part.tensor);
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, device_));
    storage->set_nbytes(0);
    bytes_ += part.bytes;
  }
  parked_ = true;
  empty_allocator_cache(device_);
  return absl::OkStatus();
}

absl::Status MemoryPark::restore() {
  if (!parked_) {
    return absl::OkStatus();
  }
  std::vector<at::DataPtr> memory; // all of it, before anything is moved
  try {
    for (const Part& part : parts_) {
      memory.push_back(storage_of(part.tensor)->allocator()->allocate(static_cast<size_t>(part.bytes)));
    }
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "onpolicy.offload: the device has no room for the ", bytes_text(bytes_),
        " of the trainer's state that were in host memory in the engine's turn: the engine has not given its memory "
        "back (scripts/rollout_http.py --sleep); ",
        error.what_without_backtrace()));
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    c10::StorageImpl* storage = storage_of(part.tensor);
    storage->set_data_ptr_noswap(std::move(memory[i]));
    storage->set_nbytes(static_cast<size_t>(part.bytes));
    label(part.tensor, part.category);
    move_bytes(storage_bytes(part.tensor, part.bytes), part.host);
    part.tensor.reset(); // it may be freed as before
  }
  synchronize(device_);
  parked_ = false;
  return absl::OkStatus();
}

} // namespace distill::device
