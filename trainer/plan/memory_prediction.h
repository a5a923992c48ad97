#pragma once

#include <array>

#include "trainer/device/memory_use.h"
#include "trainer/metrics/phase_timer.h"
#include "trainer/plan/block_recorder.h"
#include "trainer/plan/run_shape.h"

namespace distill::plan {

// Gathers of whole units that a rank begins in a step.
struct GatherPrediction {
  double units = 0;
  std::array<double, static_cast<size_t>(metrics::Phase::kCount)> bytes{}; // of the units, by the phase they begin in

  double total_bytes() const;
  void add(const GatherPrediction& other, double share); // as many of the steps gather so
};

// Memory of a run of this shape, on one rank's device and in its host's memory, in bytes.
struct MemoryPrediction {
  device::MemoryUse use; // by category, phase by phase
  GatherPrediction gathers;
  int64_t static_bytes = 0; // allocated for the whole run: shards, optimizer state, slots
  device::CategoryBytes static_use{}; // these by category
  int64_t reserved_peak = 0; // taken from the device by the allocator, slack included
  int64_t peer_bytes = 0; // of reserved_peak, in memory that other ranks map; a run's allocator does not have them
  int64_t give_backs = 0; // in a step: times that the device was full, and all free memory went back to it
  device::OutsideMemory outside; // as the shape has it
  int64_t host_activations = 0; // pinned
  int64_t host_optimizer = 0; // pinned
  int64_t host_checkpoint = 0; // pinned, made with the first periodic checkpoint
  int64_t host_teacher = 0; // pinned: rows of a teacher's cache, read ahead
  int64_t host_engine = 0; // pinned: the state that leaves the device while an on-policy run's engine writes

  int64_t host_bytes() const {
    return host_activations + host_optimizer + host_checkpoint + host_teacher + host_engine;
  }

  // A GPU's page tables for pinned host memory: 8 bytes for each page of 4 KiB. They come after outside.context was
  // measured. 8B <- 8B with its state on the host, 90 GiB, had 0.91 GiB outside the allocator on one H100.
  int64_t page_tables() const {
    return outside.context > 0 ? host_bytes() / 512 : 0;
  }
  int64_t peak() const { // of the bytes that tensors have allocated
    return use.peak();
  }
  int64_t slack() const {
    return reserved_peak - peak();
  }
  int64_t device_bytes() const { // all memory that is taken from the device
    return reserved_peak + outside.total() + page_tables();
  }
};

// Runs the trainer's own code in a simulation (device/simulation.h): loading, and two steps of one micro-batch, or two
// where a step has several; the second step begins with the units that the first one has prefetched. With
// float8.shadow_every, two steps with a shadow run first and one without after them: the memory is that of a step with
// a shadow, the gathers are those of a step without. shape.policies names every block. `blocks`: recorded allocations
// of decoder blocks, reused by runs with the same models and micro-batches.
MemoryPrediction predict_memory(const RunShape& shape, BlockRecorder& blocks);

} // namespace distill::plan
