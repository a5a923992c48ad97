#include "trainer/sharding/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "trainer/sharding/peer_memory.h"

namespace distill::sharding {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Beat beat(int64_t rank, int64_t count, int64_t passed) {
  return {rank, count, passed, /*step=*/passed / 5, "backward", absl::StrCat("node", rank)};
}

TEST(Beat, IsReadBackAsItWasWritten) {
  const Beat sent{3, 17, 42, 8, "waiting for data", "node-3.cluster"};
  const Beat read = Beat::parse(3, sent.text());
  EXPECT_EQ(read.text(), sent.text());
  EXPECT_EQ(read.place, "waiting for data");
  for (const char* text : {"", "x", "1\t2\t3", "1\t2\t3\thost"}) {
    EXPECT_EQ(Beat::parse(0, text).count, -1) << text;
  }
}

TEST(DescribeLaggards, NamesRanksThatStoppedPosting) {
  const std::string text = describe_laggards(
      {beat(0, 5, 40), beat(1, 5, 37), beat(2, -1, 0)}, {beat(0, 8, 40), beat(1, 5, 37), beat(2, -1, 0)});
  EXPECT_THAT(text, AllOf(HasSubstr("rank 1 on node1 (step 7, backward)"), HasSubstr("rank 2 (never heard of)")));
  EXPECT_THAT(text, Not(HasSubstr("rank 0")));
}

TEST(DescribeLaggards, NamesTheRanksFarthestBehindWhereAllPost) {
  const std::string text = describe_laggards(
      {beat(0, 5, 40), beat(1, 5, 36), beat(2, 5, 38)}, {beat(0, 8, 40), beat(1, 9, 37), beat(2, 8, 38)});
  EXPECT_THAT(text, HasSubstr("behind the others: rank 1 on node1 (step 7, backward)"));
  EXPECT_THAT(text, AllOf(Not(HasSubstr("rank 0")), Not(HasSubstr("rank 2"))));
}

TEST(DescribeLaggards, SaysNothingWhereAllAreAtOnePlace) {
  EXPECT_EQ(describe_laggards({beat(0, 5, 40), beat(1, 5, 40)}, {beat(0, 8, 40), beat(1, 8, 40)}), "");
}

// Ranks as threads, the store as a map.
struct Store {
  std::mutex mutex;
  std::map<std::string, std::string> texts;
  bool stuck = false; // rank 0 is stopped: nothing comes back
};

class FakeRendezvous : public Rendezvous {
 public:
  FakeRendezvous(Store& store, int64_t rank) : store_(store), rank_(rank) {}

  std::unique_ptr<Communicator> gloo_group(const std::string&, const std::vector<int64_t>&) override {
    return nullptr;
  }
  std::unique_ptr<Communicator> nccl_group(const std::string&, const std::vector<int64_t>&, at::Device) override {
    return nullptr;
  }
  std::unique_ptr<PeerMemory> peer_memory(const std::string&, const std::vector<int64_t>&, at::Device) override {
    return nullptr;
  }
  std::vector<std::string> exchange(const std::string&, const std::string& text) override {
    return {text};
  }
  std::unique_ptr<Board> board() const override {
    return std::make_unique<FakeBoard>(store_);
  }
  bool meet(const std::string&, std::chrono::milliseconds) override {
    return true;
  }
  bool leave(std::chrono::milliseconds) override {
    return true;
  }
  int64_t rank() const override {
    return rank_;
  }
  int64_t world_size() const override {
    return 2;
  }

 private:
  class FakeBoard : public Board {
   public:
    explicit FakeBoard(Store& store) : store_(store) {}
    void set(const std::string& key, const std::string& text) override {
      const std::lock_guard lock(store_.mutex);
      store_.texts[key] = text;
    }
    std::optional<std::string> get(const std::string& key) override {
      while (true) {
        const std::lock_guard lock(store_.mutex);
        if (!store_.stuck) {
          const auto it = store_.texts.find(key);
          return it == store_.texts.end() ? std::nullopt : std::optional(it->second);
        }
      }
    }

   private:
    Store& store_;
  };

  Store& store_;
  int64_t rank_;
};

TEST(Heartbeat, FindsTheRankThatIsGoneAndTheOneThatIsBehind) {
  Store store;
  const std::chrono::milliseconds interval(30);
  const Heartbeat zero(FakeRendezvous(store, 0), "a", interval);
  EXPECT_THAT(zero.laggards(), HasSubstr("rank 1 (never heard of)"));
  {
    Heartbeat one(FakeRendezvous(store, 1), "b", interval);
    one.report_progress(1, "teacher");
    std::this_thread::sleep_for(2 * interval);
    EXPECT_THAT(zero.laggards(), HasSubstr("behind the others: rank 0 on a (step 0, start)"));
  }
  EXPECT_THAT(zero.laggards(), HasSubstr("rank 1 on b (step 1, teacher)"));
}

TEST(Heartbeat, DoesNotWaitForAStoreThatDoesNotAnswer) {
  static Store store; // outlives the thread that is stuck in it
  const Heartbeat zero(FakeRendezvous(store, 0), "a", std::chrono::milliseconds(30));
  {
    const std::lock_guard lock(store.mutex);
    store.stuck = true;
  }
  EXPECT_THAT(zero.laggards(std::chrono::milliseconds(100)), HasSubstr("rank 0, which serves the store"));
  const std::lock_guard lock(store.mutex);
  store.stuck = false;
}

} // namespace
} // namespace distill::sharding
