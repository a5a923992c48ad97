#pragma once

#include <c10/util/Exception.h>

#include "trainer/sharding/side_stream.h"

namespace distill::sharding {

// The events of one slot; the proof that no stream overtakes another rests on this class alone. A slot is written, then
// read any number of times, then written again, and each side waits for the other's newest event. Gathered weights: the
// gather's stream writes, the compute stream reads. Gradients: the compute stream writes, the reduction's stream reads.
// Each call is made with its side's stream current. A call out of order throws c10::Error.
class SlotEvents {
 public:
  explicit SlotEvents(at::Device device) : written_(device), read_(device) {}

  void write_begins() {
    expect(state_ != State::kWriting && state_ != State::kReading, "is written");
    read_.wait();
    state_ = State::kWriting;
  }
  void write_ends() {
    expect(state_ == State::kWriting, "ends being written");
    written_.record();
    state_ = State::kWritten;
  }
  void read_begins() {
    expect(state_ == State::kWritten || state_ == State::kRead, "is read");
    written_.wait();
    state_ = State::kReading;
  }
  void read_ends() {
    expect(state_ == State::kReading, "ends being read");
    read_.record();
    state_ = State::kRead;
  }
  // Makes the current stream wait for the work queued on both sides; called before the memory returns to its allocator.
  void wait() const {
    written_.wait();
    read_.wait();
  }
  // Tells whether the slot has been written and not read since.
  bool unread() const {
    return state_ == State::kWritten;
  }

 private:
  enum class State {
    kEmpty,
    kWriting,
    kWritten,
    kReading,
    kRead
  };
  void expect(bool in_order, const char* step) const {
    constexpr const char* kNames[] = {"empty", "being written", "written", "being read", "read"};
    TORCH_CHECK(in_order, "slot events out of order: a slot ", step, " while it is ", kNames[static_cast<int>(state_)]);
  }

  State state_ = State::kEmpty;
  Fence written_; // weights: gathered; gradients: ready to be reduced
  Fence read_; // weights: free; gradients: reduced
};

} // namespace distill::sharding
