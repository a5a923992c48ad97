#pragma once

#include <functional>

namespace distill::sharding {

// Called with true where the compute stream begins to wait for communication, with false where it goes on.
using WaitObserver = std::function<void(bool waiting)>;

// The time between construction and destruction is communication that the compute stream waits for.
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
