#pragma once

#include <array>
#include <cstdint>
#include <string>

// The use of a rank's device memory by category and by phase of a step: measured in a run (memory_tracker.h) and in a
// simulated one (simulation.h).
namespace distill::device {

enum class Category {
  kStudent, // the shards that are gathered, compute dtype
  kMaster, // fp32 master weights
  kMoments, // AdamW's two moments
  kGradients, // fp32 gradient shards
  kTeacher, // the frozen model's shards
  kSlots, // whole units: gathered weights, gradients before the reduce-scatter
  kActivations, // saved by the blocks for the backward pass
  kHidden, // final hidden states of both models, their gradient, tensors that the final norm saves
  kHead, // the loss head's scratch and rows
  kStaging, // pieces of optimizer state in host memory, during their update
  kWorkspace, // everything else: temporaries of ops, tokens, angles
  kCount
};
inline constexpr size_t kNumCategories = static_cast<size_t>(Category::kCount);
const char* category_name(Category category);

// The parts of a run that have peaks of their own.
enum class MemoryPhase {
  kStart, // building, loading
  kTeacher,
  kForward,
  kHead,
  kBackward,
  kOptimizer,
  kBetween, // between two steps: evaluation, checkpoints
  kCount
};
inline constexpr size_t kNumMemoryPhases = static_cast<size_t>(MemoryPhase::kCount);
const char* phase_name(MemoryPhase phase);

using CategoryBytes = std::array<int64_t, kNumCategories>;
int64_t total(const CategoryBytes& bytes);

struct PhasePeak {
  int64_t bytes = 0;
  CategoryBytes at_peak{}; // bytes of each category at the peak
  CategoryBytes highest{}; // each category's own maximum, which need not be at the same moment
};

struct MemoryUse {
  CategoryBytes now{};
  std::array<PhasePeak, kNumMemoryPhases> phases;

  int64_t peak() const; // over all phases
  MemoryPhase peak_phase() const;
};

// Adds up allocations: the bytes of each category now, and every phase's peaks.
class MemoryLedger {
 public:
  void allocated(Category category, int64_t bytes) {
    add(category, bytes);
    update_peaks();
  }
  void released(Category category, int64_t bytes) {
    add(category, -bytes);
  }
  void relabelled(Category from, Category to, int64_t bytes) {
    add(from, -bytes);
    add(to, bytes);
    update_peaks();
  }
  void enter(MemoryPhase phase) {
    phase_ = phase;
    update_peaks();
  }
  // Resets the peaks to the bytes allocated now.
  void reset_peaks() {
    use_.phases = {};
    update_peaks();
  }

  const MemoryUse& use() const {
    return use_;
  }
  int64_t now() const { // bytes of all categories
    return now_;
  }
  MemoryPhase phase() const {
    return phase_;
  }

 private:
  void add(Category category, int64_t bytes) {
    use_.now[static_cast<size_t>(category)] += bytes;
    now_ += bytes;
  }
  void update_peaks();

  MemoryUse use_;
  MemoryPhase phase_ = MemoryPhase::kStart;
  int64_t now_ = 0;
};

// "1.23 GiB", "45.6 MiB": four figures at most.
std::string bytes_text(int64_t bytes);

} // namespace distill::device
