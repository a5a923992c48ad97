#include "trainer/device/memory_use.h"

namespace distill::device {

const char* category_name(Category category) {
  constexpr const char* kNames[] = {"student",     "master", "moments", "gradients", "teacher",  "slots",
                                    "activations", "hidden", "head",    "staging",   "workspace"};
  static_assert(std::size(kNames) == kNumCategories);
  return kNames[static_cast<size_t>(category)];
}

const char* phase_name(MemoryPhase phase) {
  constexpr const char* kNames[] = {"start", "teacher", "forward", "head", "backward", "optimizer", "between"};
  static_assert(std::size(kNames) == kNumMemoryPhases);
  return kNames[static_cast<size_t>(phase)];
}

int64_t total(const CategoryBytes& bytes) {
  int64_t sum = 0;
  for (const int64_t value : bytes) {
    sum += value;
  }
  return sum;
}

MemoryPhase MemoryUse::peak_phase() const {
  size_t best = 0;
  for (size_t i = 1; i < kNumMemoryPhases; ++i) {
    if (phases[i].bytes > phases[best].bytes) {
      best = i;
    }
  }
  return static_cast<MemoryPhase>(best);
}

int64_t MemoryUse::peak() const {
  return phases[static_cast<size_t>(peak_phase())].bytes;
}

void MemoryLedger::update_peaks() {
  PhasePeak& peak = use_.phases[static_cast<size_t>(phase_)];
  if (now_ > peak.bytes) {
    peak.bytes = now_;
    peak.at_peak = use_.now;
  }
  for (size_t i = 0; i < kNumCategories; ++i) {
    peak.highest[i] = std::max(peak.highest[i], use_.now[i]);
  }
}

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrCat(bytes, " B")
                   : absl::StrFormat("%.*f %s", std::abs(value) < 10 ? 2 : 1, value, kUnits[unit]);
}

} // namespace distill::device
