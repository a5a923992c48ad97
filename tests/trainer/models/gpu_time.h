#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <functional>

namespace distill::models {

// Milliseconds of a call on the first GPU's current stream: the mean of `runs` call after a few that are not counted.
inline double gpu_milliseconds(const std::function<void()>& call, int runs = 10) {
  const c10::Stream stream = c10::impl::VirtualGuardImpl(at::kCUDA).getStream({at::kCUDA, 0});
  for (int i = 0; i < 3; ++i) {
    call();
  }
  c10::Event start(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  start.record(stream);
  for (int i = 0; i < runs; ++i) {
    call();
  }
  end.record(stream);
  end.synchronize();
  return start.elapsedTime(end) / runs;
}

} // namespace distill::models
