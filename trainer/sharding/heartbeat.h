#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "trainer/sharding/communicator.h"

namespace distill::sharding {

// Every rank tells the others where it is: a thread posts it to the rendezvous' store again and again, at no cost to
// the steps. When something did not come in time, the posts say which rank holds the others up.
class Heartbeat {
 public:
  // `host`: this rank's, for messages. Posts every `interval` until destroyed.
  Heartbeat(const Rendezvous& rendezvous, std::string host, std::chrono::milliseconds interval);
  // Never waits for the store, which may be gone.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // All ranks come by the same places in the same order. `place` lives as long as the program.
  void at(int64_t step, const char* place);

  // Watches the posts for a few intervals and describes the ranks that do not post any more, or else those farthest
  // behind; empty where all are at the same place. Takes a few intervals, or `patience` where the store, which rank 0
  // serves, does not answer.
  std::string laggards(std::chrono::milliseconds patience = std::chrono::seconds(5)) const;

 private:
  struct State; // shared with threads that may be stuck in the store
  std::shared_ptr<State> state_;
};

// One rank's post.
struct Beat {
  int64_t rank = 0;
  int64_t count = 0; // of posts
  int64_t passed = 0; // places it has come by
  int64_t step = 0;
  std::string place;
  std::string host;

  std::string text() const;
  static Beat parse(int64_t rank, const std::string& text); // count -1: not a post
};

// The ranks that hold the others up, from two looks at all posts (count -1: never posted), long enough apart for every
// living rank to post in between.
std::string describe_laggards(const std::vector<Beat>& before, const std::vector<Beat>& after);

} // namespace distill::sharding
