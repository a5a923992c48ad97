#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "trainer/device/allocator_model.h"
#include "trainer/device/memory_use.h"

// Runs a training step without a device. Tensors on libtorch's meta device have shapes and no memory; while a
// Simulation lives, every meta tensor that its thread makes is handed to a model of the target device's allocator and
// counted by category and phase, as the tensors of a real run are. So the code that trains is also the code that
// predicts its memory: the passes run unchanged, and only kernels, streams and collectives do nothing on meta tensors.
namespace distill::device {

// Of the GPU in a simulation, for kernels whose scratch depends on it: an H100 SXM and an H200 have the most.
inline constexpr int64_t kSimulatedMultiprocessors = 132;

// Allocations and releases in order, without the tensors that they belong to. Slots number the allocations of a trace.
struct AllocationTrace {
  struct Event {
    int64_t slot = -1; // -1: the release of a block that was there before the trace began
    int64_t bytes = 0; // 0: a release
    const void* outer = nullptr; // the block of slot -1
    int64_t outer_input = -1; // index of that block among the recorded function's inputs; -1: none
  };
  std::vector<Event> events;
  std::vector<const void*> blocks; // one for each slot, while recording
};

// A thread has at most one simulation at a time. Tensors that outlive it are no longer counted.
class Simulation {
 public:
  // `target`: the device type whose allocations are predicted, CPU or CUDA. `kind`, `capacity`: of the allocator on
  // CUDA (allocator_model.h).
  explicit Simulation(c10::DeviceType target, AllocatorKind kind = AllocatorKind::kExpandable, int64_t capacity = 0);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // The thread's simulation; null: there is none.
  static Simulation* current();

  c10::DeviceType target() const {
    return target_;
  }
  const MemoryUse& use() const {
    return ledger_.use();
  }
  int64_t allocated() const { // bytes now
    return ledger_.now();
  }
  int64_t reserved_peak() const { // bytes taken from the device; beyond the capacity if a request could not be met
    return reserved_peak_;
  }
  int64_t give_backs() const { // so far, AllocatorModel::give_backs
    return allocator_->give_backs();
  }

  // Allocates a block in the current LabelScope's category; null for 0 bytes. `directly`: past the allocator.
  const void* allocate(int64_t bytes, bool directly = false);
  void release(const void* block);
  void label(const void* block, Category category);
  void enter_phase(MemoryPhase phase) {
    ledger_.enter(phase);
  }

  // Copies further allocations and releases to `trace`, until record(nullptr).
  void record(AllocationTrace* trace) {
    trace_ = trace;
  }

 private:
  struct Live {
    BlockId block = -1;
    Category category = Category::kWorkspace;
    int64_t slot = -1; // in the trace that recorded the allocation
    bool in_use = false;
  };
  Live* find(const void* block);
  void trace_release(const void* block, const Live& live);

  c10::DeviceType target_;
  uint64_t id_; // distinguishes its blocks from those of other simulations
  std::unique_ptr<AllocatorModel> allocator_;
  MemoryLedger ledger_;
  std::vector<Live> live_;
  std::vector<size_t> unused_; // entries of live_
  int64_t reserved_peak_ = 0;
  AllocationTrace* trace_ = nullptr;
};

// Meta tensors that are made while this lives are not counted: they stand for host memory.
class UncountedScope {
 public:
  UncountedScope();
  ~UncountedScope();
  UncountedScope(const UncountedScope&) = delete;
  UncountedScope& operator=(const UncountedScope&) = delete;

 private:
  bool before_;
};

// Meta tensors that are made while this lives are taken from the device past the allocator, as peer memory is.
class DirectMemoryScope {
 public:
  DirectMemoryScope();
  ~DirectMemoryScope();
  DirectMemoryScope(const DirectMemoryScope&) = delete;
  DirectMemoryScope& operator=(const DirectMemoryScope&) = delete;

 private:
  bool before_;
};

// The device type whose code an op runs: the tensor's own, or on the meta device the simulation's target.
c10::DeviceType kernel_device(at::Device device);
inline bool runs_on_cuda(const at::Tensor& tensor) {
  return kernel_device(tensor.device()) == c10::DeviceType::CUDA;
}
inline bool runs_on_cpu(const at::Tensor& tensor) {
  return kernel_device(tensor.device()) == c10::DeviceType::CPU;
}

// Tells whether work on the device is queued on streams, so that the host continues before it is complete. False on the
// CPU and in a simulation, where work is complete on return.
inline bool has_streams(at::Device device) {
  return device.is_cuda();
}

} // namespace distill::device
