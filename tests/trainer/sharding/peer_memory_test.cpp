#include "trainer/sharding/peer_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <barrier>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/trainer/sharding/rank_threads.h"
#include "trainer/device/memory_tracker.h"

namespace distill::sharding {
namespace {

constexpr int64_t kRanks = 3;
constexpr int64_t kBytes = 10000; // not a multiple of a page

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().string());
  }
  return names;
}

TEST(PeerMemory, EveryRankReadsWhatTheOthersWrite) {
  RankThreads ranks(kRanks);
  ranks.run([&](int64_t rank) {
    const auto memory = host_peer_memory(rank, ranks.exchange(rank));
    std::vector<at::Tensor> parts = memory->allocate(kBytes);
    ASSERT_EQ(parts.size(), kRanks);
    EXPECT_TRUE(parts[rank].eq(0).all().item<bool>());
    ranks.meet();
    for (int64_t round = 1; round <= 3; ++round) {
      parts[rank].fill_(10 * round + rank);
      ranks.meet();
      for (int64_t other = 0; other < kRanks; ++other) {
        EXPECT_TRUE(parts[other].eq(10 * round + other).all().item<bool>()) << rank << " reads " << other;
      }
      ranks.meet();
    }
  });
}

TEST(PeerMemory, OutlivesTheRankThatItBelongsTo) {
  RankThreads ranks(2);
  ranks.run([&](int64_t rank) {
    std::vector<at::Tensor> parts;
    {
      const auto memory = host_peer_memory(rank, ranks.exchange(rank));
      parts = memory->allocate(kBytes);
    }
    parts[rank].fill_(7 + rank);
    ranks.meet();
    if (rank == 0) {
      parts.clear();
    }
    ranks.meet();
    if (rank == 1) {
      EXPECT_TRUE(parts[0].eq(7).all().item<bool>());
    }
  });
}

TEST(PeerMemory, HasNoNameInTheFileSystem) {
  const std::set<std::string> before = files_in("/dev/shm");
  RankThreads ranks(2);
  ranks.run([&](int64_t rank) {
    const auto memory = host_peer_memory(rank, ranks.exchange(rank));
    const std::vector<at::Tensor> parts = memory->allocate(kBytes);
    ranks.meet();
    EXPECT_EQ(files_in("/dev/shm"), before);
    ranks.meet();
  });
}

TEST(PeerMemory, TheOwnPartIsCountedUntilItIsReleased) {
  const int64_t before = device::outside_bytes();
  RankThreads ranks(2);
  ranks.run([&](int64_t rank) {
    const auto memory = host_peer_memory(rank, ranks.exchange(rank));
    const std::vector<at::Tensor> parts = memory->allocate(kBytes);
    ranks.meet();
    EXPECT_EQ(device::outside_bytes(), before + 2 * kBytes); // of both threads
    ranks.meet();
  });
  EXPECT_EQ(device::outside_bytes(), before);
}

// This peer posts what it has read, and what the test told it to have read.
class WrongPeer : public PeerMemory {
 public:
  std::vector<at::Tensor> allocate(int64_t bytes) override {
    return {at::zeros({bytes}, at::kByte), at::zeros({bytes}, at::kByte)};
  }
};

TEST(PeerMemory, AProbeNoticesMemoryThatIsNotShared) {
  const Exchange alone = [](const std::string& own) { return std::vector<std::string>{own, own}; };
  WrongPeer memory;
  try {
    probe(memory, 0, at::kCPU, alone);
    FAIL() << "nothing was noticed";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 does not read what rank 1"), std::string::npos) << error.what();
  }
  RankThreads ranks(2);
  ranks.run([&](int64_t rank) {
    const auto shared = host_peer_memory(rank, ranks.exchange(rank));
    EXPECT_NO_THROW(probe(*shared, rank, at::kCPU, ranks.exchange(rank)));
  });
}

TEST(PeerMemory, MoreThanTheHostHasIsAnError) {
  const auto memory = host_peer_memory(0, [](const std::string& own) { return std::vector<std::string>{own}; });
  EXPECT_THROW(memory->allocate(int64_t{1} << 50), c10::Error);
}

} // namespace
} // namespace distill::sharding
