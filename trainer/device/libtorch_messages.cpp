#include "trainer/device/libtorch_messages.h"

#include <c10/util/Backtrace.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <cstdlib>
#include <mutex>
#include <utility>

namespace distill::device {
namespace {

struct NewestTrace {
  std::mutex mutex;
  c10::Backtrace trace; // guarded by mutex; null: none
};

NewestTrace& newest() {
  static auto* const instance = new NewestTrace; // threads may throw until the process ends
  return *instance;
}

class WarningsToUser : public c10::WarningHandler {
 public:
  explicit WarningsToUser(std::function<void(const std::string&)> warn) : warn_(std::move(warn)) {}
  void process(const c10::Warning& warning) override {
    warn_(warning.msg());
  }

 private:
  std::function<void(const std::string&)> warn_;
};

// Libtorch calls this where an exception is made, for the trace in its text.
c10::Backtrace keep_trace() {
  constexpr size_t kFramesOfLibtorch = 3; // this function, its caller and the exception's constructor
  NewestTrace& kept = newest();
  const std::lock_guard lock(kept.mutex);
  kept.trace = c10::get_lazy_backtrace(kFramesOfLibtorch);
  static const auto none = std::make_shared<c10::PrecomputedLazyValue<std::string>>("");
  return none;
}

} // namespace

void prepare_libtorch_messages(std::function<void(const std::string&)> warn) {
  c10::SetStackTraceFetcher(std::function<c10::Backtrace()>(keep_trace));
  if (std::getenv("TORCH_CPP_LOG_LEVEL") != nullptr) {
    c10::initLogging(); // reads the variable
  } else {
    FLAGS_caffe2_log_level = c10::GLOG_ERROR;
  }
  c10::WarningUtils::set_warning_handler(new WarningsToUser(std::move(warn))); // lives as long as libtorch's threads
}

std::string error_text(const std::exception& error) {
  const auto* of_libtorch = dynamic_cast<const c10::Error*>(&error);
  return of_libtorch != nullptr ? of_libtorch->what_without_backtrace() : error.what();
}

std::string newest_trace() {
  NewestTrace& kept = newest();
  const std::lock_guard lock(kept.mutex);
  return kept.trace ? kept.trace->get() : "";
}

} // namespace distill::device
