#include "trainer/device/host_slab.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <thread>

#include "trainer/device/device_hooks.h"
#include "trainer/device/memory_use.h"
#include "trainer/device/simulation.h"

namespace distill::device {
namespace {

constexpr int64_t kPage = 4096;

// The number in a file of one line; nullopt for "max", or where there is no such file.
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

int64_t system_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string key; file >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) {
      return kib * 1024;
    }
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::numeric_limits<int64_t>::max();
}

// The value of a line "key 123"; 0 where there is none.
int64_t read_statistic(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  int64_t value = 0;
  for (std::string name; file >> name >> value;) {
    if (name == key) {
      return value;
    }
  }
  return 0;
}

// Room under the control group's limit, version 2 or 1.
std::optional<int64_t> group_available() {
  constexpr std::array<const char*, 4> kFiles[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "inactive_file"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
       "/sys/fs/cgroup/memory/memory.stat", "total_inactive_file"}};
  for (const auto& [limit_file, usage_file, statistics_file, cache_key] : kFiles) {
    const int64_t reclaimable = read_statistic(statistics_file, cache_key); // pages of files read once
    const auto limit = read_number(limit_file);
    const auto usage = read_number(usage_file);
    if (limit && usage) {
      return *limit - *usage + reclaimable;
    }
  }
  return std::nullopt;
}

// Pages that are not touched yet come from this node where it has room (libnuma's mbind, without the library).
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

int64_t available_host_bytes() {
  return std::min(system_available(), group_available().value_or(std::numeric_limits<int64_t>::max()));
}

void copy_on_host(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) {
    return; // tensors without elements have no address, which memcpy wants
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
