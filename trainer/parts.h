#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trainer/launch/watchdog.h"
#include "trainer/metrics/device.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/train_step.h"
#include "trainer/trainer.h"

namespace distill::trainer {

// What a run works with on one rank, in the order in which it is made; each part outlives those after it. join_run(),
// plan_parts() and load_parts() fill it, one after the other; the ranks agree in between.
struct Parts {
  config::Config config;
  Environment environment;
  launch::RankInfo ranks;
  OutsideAllocator outside;
  std::unique_ptr<sharding::Mesh> mesh;

  metrics::DeviceInfo device;
  std::optional<Inputs> inputs; // until the weights are read
  MemorySetup memory;
  std::vector<std::string> start_report;

  Slots slots;
  std::unique_ptr<sharding::ModelShards> student, teacher; // no teacher: hard labels
  std::shared_ptr<data::Dataset> train_data, eval_data;
  std::unique_ptr<MicroStep> micro;
  std::unique_ptr<optim::AdamW> optimizer;
  std::unique_ptr<StepQueue> steps;
  std::unique_ptr<launch::Watchdog> watchdog;
};

// Settles the device and joins the other ranks. From here on a rank that hangs is found.
absl::StatusOr<std::unique_ptr<Parts>> join_run(
    const config::Config& config, const launch::RankInfo& ranks, const launch::StopSignal& stop);
// Opens and checks what is only read, and plans the memory.
absl::Status plan_parts(Parts& parts);
// Takes host memory, reads the weights, makes what a step needs.
absl::Status load_parts(Parts& parts);
// Completes a step's record, whose seconds are known: speed, MFU in both conventions, memory.
void add_throughput(const Parts& parts, metrics::StepRecord& record);
// The last steps have been read: leaves the other ranks in good order. Waits for a communicator that does not
// close no longer than run.grace_s, or 30 s where that is 0.
void leave_run(Parts& parts);

// Bytes of the device that are taken beside the allocator; 0 on the CPU.
int64_t outside_allocator(at::Device device);

// A rank that hears no more from others, `error`: says what it knows. Where a device hangs in a collective, nothing
// that frees its memory would come back: the process ends here. Otherwise Unavailable.
absl::Status lost_ranks(const Parts& parts, int64_t step, const std::string& error);

} // namespace distill::trainer
