#pragma once

#include <functional>

namespace distill::sharding {

// An observer is called with true when the compute stream begins to wait for communication, and with false when it
// continues.
using WaitObserver = std::function<void(bool waiting)>;

// Reports to the observer that the compute stream waits for communication, from construction to destruction.
class Waiting {
 public:
  explicit Waiting(const WaitObserver& observer) : observer_(observer) {
    if (observer_) {
      observer_(true);
    }
  }
  ~Waiting() {
    if (observer_) {
      observer_(false);
    }
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const WaitObserver& observer_;
};

} // namespace distill::sharding
