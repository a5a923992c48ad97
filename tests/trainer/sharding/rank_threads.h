#pragma once

#include <ATen/ATen.h>

#include <barrier>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "trainer/sharding/communicator.h"
#include "trainer/sharding/peer_memory.h"

namespace distill::sharding {

// Ranks as threads of one process. Memory and errors are those of real ranks, apart from their ends.
class RankThreads {
 public:
  explicit RankThreads(int64_t size) : size_(size), barrier_(size), texts_(size), tensors_(size) {}

  // Calls work(rank) on a thread for each rank, and returns when all have ended.
  void run(const std::function<void(int64_t rank)>& work) {
    std::vector<std::jthread> threads;
    for (int64_t rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&work, rank] { work(rank); });
    }
  }
  void meet() {
    barrier_.arrive_and_wait();
  }
  Exchange exchange(int64_t rank) {
    return [this, rank](const std::string& own) {
      texts_[rank] = own;
      meet();
      std::vector<std::string> all = texts_;
      meet();
      return all;
    };
  }
  // Calls use(every rank's tensor, as they are now).
  void with_all(int64_t rank, const at::Tensor& own, const std::function<void(const std::vector<at::Tensor>&)>& use) {
    tensors_[rank] = own.clone();
    meet();
    use(tensors_);
    meet();
  }
  int64_t size() const {
    return size_;
  }

 private:
  int64_t size_;
  std::barrier<> barrier_;
  std::vector<std::string> texts_;
  std::vector<at::Tensor> tensors_;
};

// A rank's communicator, for what gathers need.
class ThreadCommunicator : public Communicator {
 public:
  ThreadCommunicator(RankThreads& ranks, int64_t rank) : ranks_(ranks), rank_(rank) {}

  int64_t meetings = 0;

  int64_t rank() const override {
    return rank_;
  }
  int64_t size() const override {
    return ranks_.size();
  }
  void all_reduce(at::Tensor tensor) override {
    ++meetings;
    ranks_.with_all(rank_, tensor, [&](const std::vector<at::Tensor>& all) {
      tensor.zero_();
      for (const at::Tensor& other : all) {
        tensor.add_(other);
      }
    });
  }
  void all_reduce_max(at::Tensor tensor) override {
    ranks_.with_all(rank_, tensor, [&](const std::vector<at::Tensor>& all) {
      for (const at::Tensor& other : all) {
        tensor.copy_(at::maximum(tensor, other));
      }
    });
  }
  void all_gather(at::Tensor full, const at::Tensor& shard) override {
    ranks_.with_all(rank_, shard, [&](const std::vector<at::Tensor>& all) { full.copy_(at::cat(all)); });
  }
  void reduce_scatter(at::Tensor, const at::Tensor&) override {
    TORCH_CHECK(false, "not a reduce-scatter");
  }
  void broadcast(at::Tensor, int64_t) override {
    TORCH_CHECK(false, "not a broadcast");
  }
  void shutdown() override {}

 private:
  RankThreads& ranks_;
  int64_t rank_;
};

} // namespace distill::sharding
