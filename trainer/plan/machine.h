#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

#include "trainer/device/outside_memory.h"

namespace distill::plan {

// When and with what speeds were measured.
struct Measurement {
  std::string device; // the vendor's name
  std::string driver; // "580.95.05"; empty: unknown
  std::string libtorch;
  std::string date; // "2026-11-26"

  std::string text() const; // "measured on 2026-11-26, driver 580.95.05, libtorch 2.11.0"
};

// Speeds of a machine, per device, in bytes and operations per second, and the memory that a plan has to assume where
// it cannot measure it.
struct Machine {
  std::string name;
  std::string source; // where the speeds come from: "measured", "data sheet, not measured"
  std::string choice = {}; // why a plan is for this machine: "this host's GPU"; empty: the caller knows
  std::string warning = {}; // what is wrong with the choice; empty: nothing
  std::optional<Measurement> measurement = std::nullopt; // of a calibration
  double memory_gib = 0; // of one device
  double host_gib = 0; // of one node's host
  double context_gib = 0; // in use on a device outside the allocator: the driver, kernels' code, libraries' handles
  double communicator_gib = 0; // the same, of each communicator
  double matmul_flops = 0; // large products in the compute dtype, sustained; operand traffic counts apart
  double float8_flops = 0; // the same in float8; 0: the device has no float8 products
  double attention_forward_flops = 0; // causal attention, halved operation count, heads of 128
  double attention_backward_flops = 0;
  double memory_bytes = 0; // a kernel that streams through device memory
  double host_bytes = 0; // pinned copies of one device, each way
  double host_store_bytes = 0; // pinned copies to the host of all devices of a node together
  // What the cores of a node's host read and write of state, gradients and weights when they update parameters, while
  // the devices copy in both directions; 0: not known, and no plan chooses such updates by itself.
  double host_update_bytes = 0;
  double gather_bytes = 0; // all-gather within a node: bytes of the whole tensor that a rank receives
  double reduce_bytes = 0; // reduce-scatter within a node
  double node_bytes = 0; // collectives that leave the node, per rank
  double overlap_cost = 0; // seconds of compute lost for each second of overlapped collectives
  double copy_cost = 0; // the same for copies to and from the host
  double launch_seconds = 0; // host time to launch a kernel, exposed at small shapes

  // "NVIDIA H100 SXM (data sheet, not measured; this host's GPU)"
  std::string text() const;
};

// The CPU that this program runs on, by its instruction set and the number of threads. Nothing is measured, so that two
// plans can be compared; the speeds are right within a factor of two. `distill plan --calibrate` measures.
Machine generic_cpu();

// Reads a file that write_machine wrote: JSON with the members' names. NotFound or InvalidArgument names the file and
// the key.
absl::StatusOr<Machine> read_machine(const std::string& path);
absl::Status write_machine(const Machine& machine, const std::string& path);

// What a rank with this number of communicators has on its device outside the allocator.
device::OutsideMemory assumed_outside(const Machine& machine, int64_t communicators);

} // namespace distill::plan
