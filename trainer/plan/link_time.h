#pragma once

#include "trainer/plan/machine.h"
#include "trainer/plan/run_shape.h"

// The speed of what moves between ranks, and between a device and its host.
namespace distill::plan {

// Bandwidth of copies to the host from one device, bytes a second, while all ranks of the node copy, which share the
// host memory's bandwidth.
double to_host_bytes(const RunShape& shape, const Machine& machine, double streams = 1);

// Bandwidth in each direction when copies run in both directions at once: reads of host memory take from the same
// bandwidth.
double both_ways_bytes(const RunShape& shape, const Machine& machine);

// Seconds of the gather of a unit of `bytes` over the shard axis.
double gather_seconds(const RunShape& shape, const Machine& machine, double bytes);

// Seconds of the reduction over the shard axis, and of each rank's shard over replicas.
double unit_reduce(const RunShape& shape, const Machine& machine, double elements);

} // namespace distill::plan
