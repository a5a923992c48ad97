#include "trainer/plan/link_time.h"

#include <algorithm>

namespace distill::plan {
namespace {

// Seconds of one collective of a unit of `bytes` over the shard axis.
double collective(const RunShape& shape, double bytes, double bandwidth, double node_bandwidth) {
  if (shape.shard == 1) {
    return 0;
  }
  const double share = static_cast<double>(shape.shard - 1) / static_cast<double>(shape.shard);
  return bytes * share / (shape.shard > shape.ranks_per_node ? node_bandwidth : bandwidth);
}

} // namespace

double to_host_bytes(const RunShape& shape, const Machine& machine, double streams) {
  const auto sharing = streams * static_cast<double>(std::min(shape.ranks(), shape.ranks_per_node));
  return std::min(machine.host_bytes, machine.host_store_bytes / sharing);
}

double both_ways_bytes(const RunShape& shape, const Machine& machine) {
  return to_host_bytes(shape, machine, /*streams=*/2);
}

double gather_seconds(const RunShape& shape, const Machine& machine, double bytes) {
  return collective(shape, bytes, machine.gather_bytes, machine.node_bytes);
}

double unit_reduce(const RunShape& shape, const Machine& machine, double elements) {
  const double bytes = elements * (shape.config.parallel.reduce_dtype == config::ReduceDtype::kBFloat16 ? 2 : 4);
  double seconds = collective(shape, bytes, machine.reduce_bytes, machine.node_bytes);
  if (shape.replicate > 1) {
    const double share = static_cast<double>(shape.replicate - 1) / static_cast<double>(shape.replicate);
    const double bandwidth = shape.ranks() > shape.ranks_per_node ? machine.node_bytes : machine.reduce_bytes;
    seconds += 2 * share * elements * 4 / static_cast<double>(shape.shard) / bandwidth;
  }
  return seconds;
}

} // namespace distill::plan
