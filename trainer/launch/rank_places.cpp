#include "trainer/launch/rank_places.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace distill::launch {
namespace {

// "DESCRIPTOR:RANK" of the shared memory.
constexpr const char* kVariable = "DISTILL_PLACES";

struct Place {
  int64_t step = 0;
  std::array<char, 56> phase{}; // null-terminated
};

// Zeros stand for a rank that has not reported yet. The place that is not current is written, so that a rank that is
// killed meanwhile leaves a whole one.
struct Slot {
  std::atomic<uint32_t> reports{0}; // number of reports; the newest one has the current place
  std::array<Place, 2> places;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

size_t bytes_of(int64_t ranks) {
  return static_cast<size_t>(ranks) * sizeof(Slot);
}

void* map(int fd, int64_t ranks) {
  return ::mmap(nullptr, bytes_of(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

// This rank's slot; null: there is none.
Slot* own_slot() {
  const char* value = std::getenv(kVariable);
  const std::pair<std::string, std::string> parts = absl::StrSplit(value != nullptr ? value : "", ':');
  int fd = -1;
  int64_t rank = -1;
  if (!absl::SimpleAtoi(parts.first, &fd) || !absl::SimpleAtoi(parts.second, &rank) || fd < 0 || rank < 0 ||
      ::lseek(fd, 0, SEEK_END) < static_cast<off_t>(bytes_of(rank + 1))) {
    return nullptr;
  }
  void* memory = map(fd, rank + 1);
  ::close(fd); // a program that this rank starts is no rank
  return memory != MAP_FAILED ? static_cast<Slot*>(memory) + rank : nullptr;
}

} // namespace

absl::StatusOr<std::unique_ptr<RankPlaces>> RankPlaces::create(int64_t ranks) {
  const int fd = ::memfd_create("distill-places", MFD_CLOEXEC);
  void* memory = fd >= 0 && ::ftruncate(fd, static_cast<off_t>(bytes_of(ranks))) == 0 ? map(fd, ranks) : MAP_FAILED;
  if (memory == MAP_FAILED) {
    const std::string reason = std::strerror(errno);
    if (fd >= 0) {
      ::close(fd);
    }
    return absl::InternalError(absl::StrCat("cannot share memory with the ranks: ", reason));
  }
  return std::unique_ptr<RankPlaces>(new RankPlaces(fd, memory, ranks));
}

RankPlaces::~RankPlaces() {
  ::munmap(memory_, bytes_of(ranks_));
  ::close(fd_);
}

void RankPlaces::hand_to(int64_t rank) const {
  ::fcntl(fd_, F_SETFD, 0); // stays open in the new program
  ::setenv(kVariable, absl::StrCat(fd_, ":", rank).c_str(), 1);
}

std::string RankPlaces::place(int64_t rank) const {
  const Slot& slot = static_cast<const Slot*>(memory_)[rank];
  const uint32_t reports = slot.reports.load(std::memory_order_acquire);
  if (reports == 0) {
    return "while starting";
  }
  const Place& place = slot.places[reports % 2];
  return place.step > 0 ? absl::StrCat("in step ", place.step, ", phase ", place.phase.data())
                        : absl::StrCat("while ", place.phase.data());
}

void report_place(int64_t step, const char* phase) {
  static Slot* const slot = own_slot();
  if (slot == nullptr) {
    return;
  }
  const uint32_t reports = slot->reports.load(std::memory_order_relaxed) + 1;
  Place& place = slot->places[reports % 2];
  place.step = step;
  std::string_view(phase).substr(0, place.phase.size() - 1).copy(place.phase.data(), place.phase.size() - 1);
  place.phase[std::min(std::strlen(phase), place.phase.size() - 1)] = '\0';
  slot->reports.store(reports, std::memory_order_release);
}

} // namespace distill::launch
