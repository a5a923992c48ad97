#include "trainer/sharding/mesh.h"

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <atomic>
#include <latch>
#include <thread>

#include "trainer/sharding/listening_socket.h"

namespace distill::sharding {
namespace {

// The options of two ranks that are threads and meet at a free port.
std::array<RendezvousOptions, 2> two_ranks(std::chrono::milliseconds timeout) {
  RendezvousOptions options;
  options.world_size = 2;
  options.timeout = timeout;
  const int fd = bind_to_one_address(options.master_addr, 0);
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  options.master_port = ntohs(address.sin_port);
  std::array<RendezvousOptions, 2> both{options, options};
  both[0].master_listen_fd = fd;
  both[1].rank = 1;
  return both;
}

TEST(Rendezvous, RanksThatWaitForPeerMemoryGiveUpBeforeTheRankThatHasFailed) {
  const auto options = two_ranks(std::chrono::seconds(6));
  std::array<std::vector<std::string>, 2> heard;
  std::array<std::unique_ptr<Rendezvous>, 2> ranks; // until both are done: rank 0 serves the store
  const auto rank = [&](size_t own) {
    try {
      ranks[own] = *Rendezvous::join(options[own]);
      std::string problem = "no peer memory";
      if (own == 1) { // rank 0 has failed at once
        EXPECT_ANY_THROW(ranks[own]->peer_memory("peers", {0, 1}, at::kCPU));
        problem = "another rank did not come";
      }
      heard[own] = ranks[own]->exchange("mapped", problem);
    } catch (const std::exception& error) {
      ADD_FAILURE() << "rank " << own << ": " << error.what();
    }
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
  const std::vector<std::string> both{"no peer memory", "another rank did not come"};
  EXPECT_EQ(heard[0], both);
  EXPECT_EQ(heard[1], both);
}

TEST(Rendezvous, RankZeroLeavesLast) {
  const auto options = two_ranks(std::chrono::seconds(20));
  std::atomic<bool> other_left{false};
  std::thread other([&] {
    const auto rendezvous = *Rendezvous::join(options[1]);
    EXPECT_TRUE(rendezvous->meet("closed", std::chrono::seconds(20)));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    other_left = true;
    EXPECT_TRUE(rendezvous->leave(std::chrono::seconds(20)));
  });
  const auto rendezvous = *Rendezvous::join(options[0]);
  EXPECT_TRUE(rendezvous->meet("closed", std::chrono::seconds(20)));
  EXPECT_TRUE(rendezvous->leave(std::chrono::seconds(20)));
  EXPECT_TRUE(other_left);
  other.join();
}

TEST(Rendezvous, DoesNotWaitForeverForARankThatDoesNotLeave) {
  const auto options = two_ranks(std::chrono::seconds(20));
  std::latch over(1);
  std::thread other([&] {
    const auto rendezvous = *Rendezvous::join(options[1]);
    over.wait();
  });
  const auto rendezvous = *Rendezvous::join(options[0]);
  EXPECT_FALSE(rendezvous->meet("closed", std::chrono::milliseconds(100)));
  EXPECT_FALSE(rendezvous->leave(std::chrono::milliseconds(100)));
  over.count_down();
  other.join();
}

TEST(Mesh, ARankThatEndsLateDoesNotTalkToTheStoreThatIsGone) {
  const auto options = two_ranks(std::chrono::seconds(20));
  testing::internal::CaptureStderr(); // where c10d complains
  const auto rank = [&](size_t own, std::chrono::milliseconds pause) {
    auto mesh = *make_mesh(options[own], /*shard=*/2, /*replicate=*/1, at::kCPU);
    EXPECT_TRUE(leave(*mesh, at::kCPU, std::chrono::seconds(20)));
    std::this_thread::sleep_for(pause);
  };
  constexpr std::chrono::milliseconds kSeveralHeartbeats{1300};
  std::thread other([&] { rank(1, kSeveralHeartbeats); });
  rank(0, std::chrono::milliseconds(0));
  other.join();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Mesh, ARankThatDoesNotChooseItsGathersIsAnErrorOfTheOthers) {
  const auto options = two_ranks(std::chrono::seconds(3));
  std::latch over(1);
  std::thread other([&] { // makes the groups and then stands still
    const auto rendezvous = *Rendezvous::join(options[1]);
    std::vector<std::unique_ptr<Communicator>> groups;
    for (const char* name : {"host", "world", "gather/0", "reduce/0"}) {
      groups.push_back(rendezvous->gloo_group(name, {0, 1}));
    }
    over.wait();
  });
  EXPECT_NO_THROW({
    const auto mesh = make_mesh(options[0], /*shard=*/2, /*replicate=*/1, at::kCPU);
    EXPECT_EQ(mesh.status().code(), absl::StatusCode::kUnavailable) << mesh.status();
    EXPECT_THAT(std::string(mesh.status().message()), testing::HasSubstr("rank 1"));
  });
  over.count_down();
  other.join();
}

TEST(Mesh, EveryRankReadsItsOwnSamples) {
  Mesh mesh;
  mesh.rank = 2;
  mesh.world_size = 6;
  EXPECT_EQ(mesh.samples_together(4), 24);
  EXPECT_EQ(mesh.own_first(/*first=*/100, 4), 108);
  const Mesh alone;
  EXPECT_EQ(alone.own_first(100, 4), 100);
  EXPECT_TRUE(at::equal(gather_parts(alone, at::arange(6).view({2, 3})), at::arange(6).view({1, 6})));
}

} // namespace
} // namespace distill::sharding
