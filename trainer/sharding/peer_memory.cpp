#include "trainer/sharding/peer_memory.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "trainer/device/host_memory.h"
#include "trainer/device/memory_tracker.h"

namespace distill::sharding {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const {
    return fd_;
  }

 private:
  int fd_;
};

// A mapping that the processes share which map the same file; the file needs no other trace.
class Mapping {
 public:
  Mapping(int fd, int64_t bytes, int protection)
      : bytes_(static_cast<size_t>(bytes)), data_(::mmap(nullptr, bytes_, protection, MAP_SHARED, fd, 0)) {
    TORCH_CHECK(data_ != MAP_FAILED, "cannot map ", bytes, " bytes of shared host memory: ", std::strerror(errno));
  }
  ~Mapping() {
    ::munmap(data_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void* data() const {
    return data_;
  }

 private:
  size_t bytes_;
  void* data_;
};

at::Tensor tensor_of(const std::shared_ptr<Mapping>& mapping, int64_t bytes, bool counted) {
  if (counted) {
    device::count_outside(mapping->data(), bytes);
  }
  const auto release = [mapping, counted](void* data) {
    if (counted) {
      device::release_outside(data);
    }
  };
  return at::from_blob(mapping->data(), {bytes}, release, at::TensorOptions().dtype(at::kByte));
}

// The memory is an anonymous file: the others open it through this process's descriptor while this process waits for
// them, and it is gone with the last mapping.
class HostPeerMemory : public PeerMemory {
 public:
  HostPeerMemory(int64_t rank, Exchange exchange) : rank_(rank), exchange_(std::move(exchange)) {}

  std::vector<at::Tensor> allocate(int64_t bytes) override {
    const int64_t available = device::available_host_bytes();
    TORCH_CHECK(
        bytes <= available, "cannot take ", bytes, " bytes of shared host memory, ", available, " are available");
    const FileDescriptor own(::memfd_create("distill-shards", MFD_CLOEXEC));
    // The pages are reserved: if there are none left, this is an error, and not a signal at the first write.
    const int error = own.get() < 0 ? errno : ::posix_fallocate(own.get(), 0, bytes);
    TORCH_CHECK(error == 0, "cannot take ", bytes, " bytes of shared host memory: ", std::strerror(error));
    const auto mapping = std::make_shared<Mapping>(own.get(), bytes, PROT_READ | PROT_WRITE);
    const std::vector<std::string> files = exchange_(absl::StrCat("/proc/", ::getpid(), "/fd/", own.get()));
    std::vector<at::Tensor> parts;
    for (size_t rank = 0; rank < files.size(); ++rank) {
      const bool is_own = static_cast<int64_t>(rank) == rank_;
      parts.push_back(tensor_of(is_own ? mapping : map_other(files[rank], bytes), bytes, /*counted=*/is_own));
    }
    exchange_(""); // all ranks have opened this one's file
    return parts;
  }

 private:
  static std::shared_ptr<Mapping> map_other(const std::string& path, int64_t bytes) {
    const FileDescriptor other(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    TORCH_CHECK(other.get() >= 0, "cannot open another rank's shared host memory, ", path, ": ", std::strerror(errno));
    return std::make_shared<Mapping>(other.get(), bytes, PROT_READ);
  }

  int64_t rank_;
  Exchange exchange_;
};

} // namespace

std::unique_ptr<PeerMemory> host_peer_memory(int64_t rank, Exchange exchange) {
  return std::make_unique<HostPeerMemory>(rank, std::move(exchange));
}

std::string host_identity() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return absl::StrCat(name.data(), " ", boot);
}

void probe(PeerMemory& memory, int64_t rank, at::Device device, const Exchange& exchange) {
  constexpr int64_t kBytes = 4096;
  const std::vector<at::Tensor> parts = memory.allocate(kBytes);
  const at::Tensor& own = parts[static_cast<size_t>(rank)];
  own.fill_(rank + 1);
  (void)own.cpu(); // waits for the device
  exchange("");
  for (size_t other = 0; other < parts.size(); ++other) {
    TORCH_CHECK(
        parts[other].to(device).cpu().eq(static_cast<int64_t>(other) + 1).all().item<bool>(), "rank ", rank,
        " does not read what rank ", other, " of its group has written to its memory");
  }
  exchange("");
}

} // namespace distill::sharding
