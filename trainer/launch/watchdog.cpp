#include "trainer/launch/watchdog.h"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <future>
#include <mutex>
#include <thread>

#include "trainer/launch/exit_code.h"
#include "trainer/launch/rank_places.h"
#include "trainer/launch/thread_stacks.h"
#include "trainer/metrics/log.h"

namespace distill::launch {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kWriteMoreTimeout{5};

double seconds(std::chrono::milliseconds duration) {
  return 1e-3 * static_cast<double>(duration.count());
}

} // namespace

struct Watchdog::State {
  State(WatchdogOptions options_in, const StopSignal& stop_in) : options(std::move(options_in)), stop(stop_in) {}

  const WatchdogOptions options;
  const StopSignal& stop;
  std::atomic<Clock::rep> last_progress{Clock::now().time_since_epoch().count()};
  std::atomic<int64_t> step{0};
  std::atomic<const char*> phase{"start"};
  std::mutex mutex;
  std::condition_variable ended_changed;
  bool ended = false; // guarded by mutex
  std::thread thread;

  Clock::duration idle() const {
    return Clock::now().time_since_epoch() - Clock::duration(last_progress.load());
  }
  // A tenth of the shortest limit: the process ends at most a tenth too late.
  std::chrono::milliseconds interval() const {
    std::chrono::milliseconds shortest{10000};
    for (const auto limit : {options.step_timeout, options.grace}) {
      shortest = limit.count() > 0 ? std::min(shortest, limit) : shortest;
    }
    return std::max(shortest / 10, std::chrono::milliseconds(10));
  }

  void watch() {
    std::optional<Clock::time_point> signalled;
    std::unique_lock lock(mutex);
    while (!ended_changed.wait_for(lock, interval(), [this] { return ended; })) {
      if (options.step_timeout.count() > 0 && idle() > options.step_timeout) {
        end_process(absl::StrFormat(
            "no progress for %.1f s (run.step_timeout_s: %g)", std::chrono::duration<double>(idle()).count(),
            seconds(options.step_timeout)));
      }
      if (options.grace.count() > 0 && stop.received() != 0) {
        signalled = signalled.value_or(Clock::now());
        if (Clock::now() - *signalled > options.grace) {
          end_process(absl::StrFormat(
              "did not stop within run.grace_s, %g s, after signal %d", seconds(options.grace), stop.received()));
        }
      }
    }
  }

  void write_stacks(const std::string& message) const {
    const std::string stacks = thread_stacks();
    std::ofstream file(options.stacks_file);
    file << message << "\n" << stacks;
    file.close();
    metrics::log_error(
        file ? absl::StrCat("the stacks of all threads are in ", options.stacks_file)
             : absl::StrCat(options.stacks_file, ": cannot write; the stacks of all threads:\n", stacks));
  }

  [[noreturn]] void end_process(const std::string& why) {
    const std::string message = absl::StrFormat(
        "%s: %s; it is in step %d, phase %s; its checkpoints were not touched", options.process, why, step.load(),
        phase.load());
    metrics::log_error(message);
    if (!options.stacks_file.empty()) {
      write_stacks(message);
    }
    if (options.write_more) {
      // Leaked, since the destructor of this future would wait without a limit.
      auto* more = new std::future<void>(std::async(std::launch::async, options.write_more));
      more->wait_for(kWriteMoreTimeout);
    }
    std::_Exit(kRuntimeFailure);
  }
};

Watchdog::Watchdog(WatchdogOptions options, const StopSignal& stop)
    : state_(std::make_unique<State>(std::move(options), stop)) {
  prepare_thread_stacks();
  state_->thread = std::thread([this] { state_->watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
  }
  state_->ended_changed.notify_all();
  state_->thread.join();
}

void Watchdog::report_progress(int64_t step, const char* phase) {
  state_->step.store(step, std::memory_order_relaxed);
  state_->phase.store(phase, std::memory_order_relaxed);
  state_->last_progress.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
  report_place(step, phase);
}

} // namespace distill::launch
