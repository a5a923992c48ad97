#include "trainer/device/host_slab.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "trainer/device/host_memory.h"

namespace distill::device {
namespace {

TEST(HostSlab, PiecesAreZeroAlignedAndApart) {
  auto slab = HostSlab::allocate(4096, at::kCPU, 1, "memory.activation");
  ASSERT_TRUE(slab.ok()) << slab.status();
  at::Tensor first = HostSlab::take(*slab, 100);
  at::Tensor second = HostSlab::take(*slab, 700);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(second.data_ptr()) % HostSlab::kAlignment, 0U);
  EXPECT_EQ(first.sum().item<int64_t>(), 0);
  first.fill_(7);
  second.fill_(9);
  EXPECT_EQ(first.sum().item<int64_t>(), 700);
  EXPECT_EQ(second.sum().item<int64_t>(), 6300);
}

TEST(HostSlab, PiecesKeepTheirMemory) {
  at::Tensor piece;
  {
    auto slab = HostSlab::allocate(1 << 20, at::kCPU, 1, "memory.activation");
    ASSERT_TRUE(slab.ok());
    piece = HostSlab::take(*slab, 1 << 20);
  }
  piece.fill_(1);
  EXPECT_EQ(piece.sum().item<int64_t>(), 1 << 20);
}

// Linux would copy its pinned pages for each process that is started.
TEST(HostSlab, AProcessThatIsStartedDoesNotInheritIt) {
  auto slab = HostSlab::allocate(1 << 20, at::kCPU, 1, "memory.activation");
  ASSERT_TRUE(slab.ok());
  const at::Tensor piece = HostSlab::take(*slab, 1 << 20);
  void* page = piece.data_ptr();
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(::msync(page, 4096, MS_ASYNC) == 0 ? 1 : errno); // of memory that is not mapped: ENOMEM
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), ENOMEM);
}

TEST(CopyOnHost, CopiesEveryByteAndNoMore) {
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{4097}, (int64_t{64} << 20) + 4095}) {
    const at::Tensor from = at::randint(0, 256, {bytes}, at::kByte);
    const at::Tensor to = at::zeros({bytes + 1}, at::kByte);
    copy_on_host(to.mutable_data_ptr(), from.const_data_ptr(), bytes);
    EXPECT_TRUE(to.narrow(0, 0, bytes).equal(from)) << bytes;
    EXPECT_EQ(to[bytes].item<int64_t>(), 0) << bytes;
  }
}

TEST(HostSlab, MoreThanItHasIsRefused) {
  auto slab = HostSlab::allocate(4096, at::kCPU, 1, "memory.activation");
  ASSERT_TRUE(slab.ok());
  HostSlab::take(*slab, 4000);
  EXPECT_THROW(HostSlab::take(*slab, 4000), c10::Error);
}

TEST(HostSlab, MoreThanTheHostHasNamesTheKeyAndBothNumbers) {
  const int64_t available = available_host_bytes();
  ASSERT_GT(available, 0);
  const auto slab = HostSlab::allocate(available / 2 + (int64_t{1} << 30), at::kCPU, 2, "memory.optimizer");
  ASSERT_EQ(slab.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(slab.status().message());
  EXPECT_NE(message.find("memory.optimizer: expected"), std::string::npos) << message;
  EXPECT_NE(message.find("available in all"), std::string::npos) << message;
  EXPECT_NE(message.find("train.micro_batch_size"), std::string::npos) << message;
}

} // namespace
} // namespace distill::device
