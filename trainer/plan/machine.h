#pragma once

#include <absl/status/statusor.h>

#include <string>

namespace distill::plan {

// Speeds of a machine, per device, in bytes and operations per second.
struct Machine {
  std::string name;
  double memory_gib = 0; // of one device
  double host_gib = 0; // of one node's host
  double matmul_flops = 0; // large products in the compute dtype, sustained; operand traffic counts apart
  double float8_flops = 0; // the same in float8
  double attention_forward_flops = 0; // causal attention, halved operation count, heads of 128
  double attention_backward_flops = 0;
  double memory_bytes = 0; // a kernel that streams through device memory
  double host_bytes = 0; // pinned copies of one device, each way
  double host_store_bytes = 0; // pinned copies to the host of all devices of a node together
  double gather_bytes = 0; // all-gather within a node: bytes of the whole tensor that a rank receives
  double reduce_bytes = 0; // reduce-scatter within a node
  double node_bytes = 0; // collectives that leave the node, per rank
  double overlap_cost = 0; // seconds of compute lost for each second of overlapped collectives
  double copy_cost = 0; // the same for copies to and from the host
  double launch_seconds = 0; // host time to launch a kernel, exposed at small shapes
};

// A GPU of an H200 host with NVLink, as measured (docs/performance.md).
Machine h200();
// The CPU that this program runs on, by its instruction set and the number of threads. Nothing is measured, so that two
// plans can be compared; the speeds are right within a factor of two. `distill plan --calibrate` measures.
Machine generic_cpu();

// Reads a file that write_machine wrote: JSON with the members' names. NotFound or InvalidArgument names the file and
// the key.
absl::StatusOr<Machine> read_machine(const std::string& path);
absl::Status write_machine(const Machine& machine, const std::string& path);

} // namespace distill::plan
