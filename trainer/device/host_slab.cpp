#include "trainer/device/host_slab.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <thread>

#include "trainer/device/device_hooks.h"
#include "trainer/device/host_memory.h"
#include "trainer/device/memory_use.h"
#include "trainer/device/simulation.h"

namespace distill::device {
namespace {

constexpr int64_t kPage = 4096;

// Pages that are not touched yet come from this node if it has room (libnuma's mbind, without the library).
void prefer_node(void* data, int64_t bytes, int node) {
  constexpr int kMpolPreferred = 1;
  if (node < 64) {
    const unsigned long mask = 1UL << node;
    ::syscall(SYS_mbind, data, bytes, kMpolPreferred, &mask, sizeof(mask) * 8, 0); // best effort
  }
}

// Calls work(begin, count) for shares of whole pages, each on a thread of its own; none for less than kMinShare.
template <typename Work>
void in_shares(int64_t bytes, const Work& work) {
  constexpr int64_t kMinShare = int64_t{16} << 20, kMaxThreads = 16;
  const int64_t threads = std::min<int64_t>({std::thread::hardware_concurrency(), bytes / kMinShare, kMaxThreads});
  const int64_t share = (bytes / std::max<int64_t>(threads, 1) + kPage) / kPage * kPage;
  std::vector<std::jthread> others;
  for (int64_t begin = share; begin < bytes; begin += share) {
    others.emplace_back([&work, begin, count = std::min(share, bytes - begin)] { work(begin, count); });
  }
  work(0, std::min(share, bytes));
}

void touch(char* data, int64_t bytes) {
  in_shares(bytes, [=](int64_t begin, int64_t count) { std::memset(data + begin, 0, static_cast<size_t>(count)); });
}

} // namespace

void copy_on_host(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) {
    return; // empty tensors have no address, which memcpy requires
  }
  in_shares(bytes, [=](int64_t begin, int64_t count) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, static_cast<size_t>(count));
  });
}

absl::StatusOr<std::shared_ptr<HostSlab>> HostSlab::allocate(
    int64_t bytes, at::Device device, int64_t processes_on_host, const std::string& what) {
  const int64_t available = available_host_bytes();
  if (bytes > available / std::max<int64_t>(1, processes_on_host)) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s: expected %s of host memory for each of %d process(es) on this host, found %s available in all; keep more on the device (memory.activation: recompute, memory.optimizer: device), use a smaller "
        "train.micro_batch_size, or run on a host with more memory",
        what, bytes_text(bytes), processes_on_host, bytes_text(available)));
  }
  const int64_t mapped = std::max<int64_t>(kPage, (bytes + kPage - 1) / kPage * kPage);
  void* data = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: cannot map %s of host memory: %s", what, bytes_text(bytes), std::strerror(errno)));
  }
  ::madvise(data, mapped, MADV_HUGEPAGE);
  // A process that is started, an engine say, does not inherit it: Linux copies pinned pages at a fork (mm/memory.c,
  // page_needs_cow_for_dma), which takes seconds for each 10 GiB, and as much memory again.
  ::madvise(data, mapped, MADV_DONTFORK);
  if (const auto node = numa_node(device)) {
    prefer_node(data, mapped, *node);
  }
  touch(static_cast<char*>(data), mapped);
  if (device.is_cuda()) {
    if (const char* problem = pin_host_memory(data, mapped)) {
      ::munmap(data, mapped);
      return absl::ResourceExhaustedError(absl::StrFormat(
          "%s: cannot pin %s of host memory: %s; raise the limit of locked memory (ulimit -l)", what, bytes_text(bytes),
          problem));
    }
  }
  return std::shared_ptr<HostSlab>(new HostSlab(static_cast<char*>(data), mapped, device.is_cuda()));
}

std::shared_ptr<HostSlab> HostSlab::simulated() {
  return std::shared_ptr<HostSlab>(
      new HostSlab(/*data=*/nullptr, std::numeric_limits<int64_t>::max() / 2, /*pinned=*/false));
}

HostSlab::~HostSlab() {
  if (data_ == nullptr) {
    return;
  }
  if (pinned_) {
    unpin_host_memory(data_);
  }
  ::munmap(data_, bytes_);
}

at::Tensor HostSlab::take(const std::shared_ptr<HostSlab>& slab, int64_t bytes) {
  TORCH_CHECK(
      slab != nullptr && slab->used_ + bytes <= slab->bytes_, "host slab of ", slab ? slab->bytes_ : 0,
      " bytes, of which ", slab ? slab->used_ : 0, " are used, has no ", bytes, " bytes left");
  const int64_t begin = std::exchange(slab->used_, slab->used_ + aligned(bytes));
  if (slab->data_ == nullptr) {
    const UncountedScope host_memory;
    return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(at::kMeta));
  }
  char* data = slab->data_ + begin;
  return at::from_blob(
      data, {bytes}, [slab](void*) {}, at::TensorOptions().dtype(at::kByte));
}

} // namespace distill::device
