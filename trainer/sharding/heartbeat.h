#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "trainer/sharding/communicator.h"

namespace distill::sharding {

// Every rank tells the others its step and phase: a thread posts them to the rendezvous' store periodically, at no cost
// to the steps. After a timeout, the posts show which rank the others wait for.
class Heartbeat {
 public:
  // `host`: this rank's, for messages. Posts every `interval` until destroyed.
  Heartbeat(const Rendezvous& rendezvous, std::string host, std::chrono::milliseconds interval);
  // Does not wait for the store, which may be gone.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // All ranks report the same phases in the same order. `phase` is a string literal.
  void report_progress(int64_t step, const char* phase);

  // Ends the posts. Returns true when the thread has made its last use of the store; false: it has not within
  // `timeout`.
  bool stop(std::chrono::milliseconds timeout);

  // Watches the posts for a few intervals and describes the ranks that have stopped posting, or else the ranks
  // that are farthest behind; empty if all ranks are in the same phase. Takes a few intervals, or `timeout` if the
  // store, which rank 0 serves, does not answer.
  std::string laggards(std::chrono::milliseconds timeout = std::chrono::seconds(5)) const;

 private:
  struct State; // shared with threads that may be stuck in the store
  std::shared_ptr<State> state_;
};

// The post of a rank.
struct Beat {
  int64_t rank = 0;
  int64_t count = 0; // number of posts
  int64_t passed = 0; // number of phases reported
  int64_t step = 0;
  std::string place;
  std::string host;

  std::string text() const;
  static Beat parse(int64_t rank, const std::string& text); // count is -1 if the text is not a post
};

// The ranks that the others wait for, from two readings of all posts (count -1: never posted), between which every
// living rank has had time to post.
std::string describe_laggards(const std::vector<Beat>& before, const std::vector<Beat>& after);

} // namespace distill::sharding
