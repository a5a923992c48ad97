#pragma once

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

#include "trainer/device/simulation.h"

// Streams and events of a device. They do nothing on the CPU and in a simulation, where all work is complete when a
// call returns.
namespace distill::sharding {

// A place in a stream that other streams can wait for.
class Fence {
 public:
  explicit Fence(at::Device device) : device_(device) {
    if (device::has_streams(device)) {
      event_.emplace(device.type());
    }
  }
  // Records all work queued on the current stream so far.
  void record() {
    if (event_) {
      event_->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
      recorded_ = true;
    }
  }
  // Work queued on the current stream from now on waits for the recorded place; no effect if none was recorded.
  void wait() const {
    if (event_ && recorded_) {
      event_->block(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
    }
  }
  // The host waits for the recorded place.
  void synchronize() const {
    if (event_ && recorded_) {
      event_->synchronize();
    }
  }

 private:
  at::Device device_;
  std::optional<c10::Event> event_;
  bool recorded_ = false;
};

// Of a stream of large copies that many others may wait behind: as the compute stream's.
enum class StreamPriority {
  kHigh,
  kAsCompute
};

// A stream for collectives and copies that overlap with the compute stream.
class SideStream {
 public:
  explicit SideStream(at::Device device, StreamPriority priority = StreamPriority::kHigh) {
    if (device::has_streams(device)) {
      stream_ = c10::impl::VirtualGuardImpl(device.type())
                    .getStreamFromGlobalPool(device, /*isHighPriority=*/priority == StreamPriority::kHigh);
    }
  }
  // Runs `work` with this stream current.
  template <typename Work>
  void run(Work&& work) const {
    if (stream_) {
      const c10::StreamGuard guard(*stream_);
      work();
    } else {
      work();
    }
  }

 private:
  std::optional<c10::Stream> stream_;
};

} // namespace distill::sharding
