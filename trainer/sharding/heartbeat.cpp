#include "trainer/sharding/heartbeat.h"

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <sstream>
#include <thread>

namespace distill::sharding {
namespace {

std::string beat_key(int64_t rank) {
  return absl::StrCat("beat/", rank);
}

std::string described(const Beat& beat) {
  return absl::StrFormat("rank %d on %s (step %d, %s)", beat.rank, beat.host, beat.step, beat.place);
}

std::vector<Beat> read_beats(Board& board, int64_t world_size) {
  std::vector<Beat> beats;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    beats.push_back(Beat::parse(rank, board.get(beat_key(rank)).value_or("")));
  }
  return beats;
}

} // namespace

std::string Beat::text() const {
  return absl::StrJoin({std::to_string(count), std::to_string(passed), std::to_string(step), host, place}, "\t");
}

Beat Beat::parse(int64_t rank, const std::string& text) {
  Beat beat;
  beat.rank = rank;
  std::istringstream stream(text);
  const bool read = static_cast<bool>(stream >> beat.count >> beat.passed >> beat.step >> beat.host >> std::ws) &&
      static_cast<bool>(std::getline(stream, beat.place));
  if (!read) {
    beat.count = -1;
  }
  return beat;
}

std::string describe_laggards(const std::vector<Beat>& before, const std::vector<Beat>& after) {
  std::vector<std::string> silent, behind;
  int64_t least = INT64_MAX, most = 0;
  for (size_t i = 0; i < after.size(); ++i) {
    if (after[i].count < 0) {
      silent.push_back(absl::StrFormat("rank %d (never heard of)", after[i].rank));
    } else if (after[i].count == before[i].count) {
      silent.push_back(described(after[i]));
    }
    least = std::min(least, after[i].passed);
    most = std::max(most, after[i].passed);
  }
  if (!silent.empty()) {
    return absl::StrCat(
        "not running any more, stopped or cut off: ", absl::StrJoin(silent, ", "),
        "; the places are where they were last seen");
  }
  for (const Beat& beat : after) {
    if (beat.passed == least && least < most) {
      behind.push_back(described(beat));
    }
  }
  return behind.empty() ? "" : absl::StrCat("behind the others: ", absl::StrJoin(behind, ", "));
}

struct Heartbeat::State {
  std::unique_ptr<Board> posts, looks; // separate connections, each for one thread at a time
  std::mutex looking; // for `looks`: the watchdog and a failed collective may read posts at the same time
  std::chrono::milliseconds interval;
  int64_t world_size;
  std::mutex mutex;
  std::condition_variable changed;
  Beat beat; // guarded by mutex, as is `stop`
  bool stop = false;
  bool ended = false;
};

Heartbeat::Heartbeat(const Rendezvous& rendezvous, std::string host, std::chrono::milliseconds interval)
    : state_(std::make_shared<State>()) {
  state_->posts = rendezvous.board();
  state_->looks = rendezvous.board();
  state_->interval = interval;
  state_->world_size = rendezvous.world_size();
  state_->beat.rank = rendezvous.rank();
  state_->beat.host = host.empty() ? "unknown" : std::move(host);
  state_->beat.place = "start";
  std::thread([state = state_] {
    std::unique_lock lock(state->mutex);
    while (!state->stop) {
      state->beat.count += 1;
      const Beat beat = state->beat;
      lock.unlock();
      try {
        state->posts->set(beat_key(beat.rank), beat.text());
      } catch (const std::exception&) { // rank 0, which serves the store, is gone
        lock.lock();
        break;
      }
      lock.lock();
      state->changed.wait_for(lock, state->interval, [&] { return state->stop; });
    }
    state->ended = true;
    state->changed.notify_all();
  }).detach(); // not joined: it may be stuck in the store for ever
}

Heartbeat::~Heartbeat() {
  stop(state_->interval);
}

bool Heartbeat::stop(std::chrono::milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->stop = true;
  state_->changed.notify_all();
  return state_->changed.wait_for(lock, timeout, [this] { return state_->ended; });
}

void Heartbeat::report_progress(int64_t step, const char* phase) {
  const std::lock_guard lock(state_->mutex);
  state_->beat.passed += 1;
  state_->beat.step = step;
  state_->beat.place = phase;
}

std::string Heartbeat::laggards(std::chrono::milliseconds timeout) const {
  const auto answer = std::make_shared<std::promise<std::string>>();
  std::future<std::string> future = answer->get_future();
  std::thread([state = state_, answer] {
    std::string text;
    const std::lock_guard looking(state->looking);
    try {
      const std::vector<Beat> before = read_beats(*state->looks, state->world_size);
      std::this_thread::sleep_for(3 * state->interval);
      text = describe_laggards(before, read_beats(*state->looks, state->world_size));
    } catch (const std::exception&) {
      text = "rank 0, which serves the store, is gone";
    }
    answer->set_value(text);
  }).detach();
  if (future.wait_for(timeout) != std::future_status::ready) {
    return "rank 0, which serves the store, does not answer";
  }
  return future.get();
}

} // namespace distill::sharding
