#include "trainer/sharding/choose_gather.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include "trainer/device/libtorch_messages.h"
#include "trainer/sharding/cuda_peer_memory.h"

namespace distill::sharding {
namespace {

// The place of a rank: its host, and the number of its GPU there.
struct Place {
  std::string host;
  int64_t gpu = -1;

  std::string text() const {
    return absl::StrCat(host, "\n", gpu);
  }
  static Place parse(const std::string& text) {
    const std::vector<std::string> parts = absl::StrSplit(text, '\n');
    Place place;
    TORCH_CHECK(
        parts.size() == 2 && absl::SimpleAtoi(parts[1], &place.gpu), "expected a rank's host and GPU, found ", text);
    place.host = parts[0];
    return place;
  }
};

// Explains why this rank cannot map the memory of the others of its shard axis, as far as it knows by itself; empty: it
// can.
std::string own_problem(const std::vector<Place>& places, const std::vector<int64_t>& shard_axis, at::Device device) {
  if (!device.is_cuda()) {
    return "";
  }
  std::vector<int64_t> gpus;
  gpus.reserve(shard_axis.size());
  for (const int64_t rank : shard_axis) {
    gpus.push_back(places[static_cast<size_t>(rank)].gpu);
  }
  return peer_access_problem(device, gpus);
}

// Returns the first text that is not empty, with its rank.
std::string first_problem(const std::vector<std::string>& problems) {
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (!problems[rank].empty()) {
      return absl::StrCat("rank ", rank, ": ", problems[rank]);
    }
  }
  return "";
}

// Names ranks of one shard axis that are on different hosts; empty: there are none.
std::string different_hosts(const Mesh& mesh, const std::vector<Place>& places) {
  for (int64_t rank = 0; rank < mesh.world_size; ++rank) {
    const int64_t first = rank - rank % mesh.shard_size;
    if (places[static_cast<size_t>(rank)].host != places[static_cast<size_t>(first)].host) {
      return absl::StrCat("ranks ", first, " and ", rank, " share a copy of the models and are on different hosts");
    }
  }
  return "";
}

// Explains why the ranks of some shard axis cannot map each other's memory, with the same text on all ranks; empty:
// they have.
std::string map_peers(Mesh& mesh, const std::vector<int64_t>& shard_axis, at::Device device) {
  const Place own{host_identity(), device.is_cuda() ? device.index() : -1};
  std::vector<Place> places;
  for (const std::string& text : mesh.rendezvous->exchange("gather/places", own.text())) {
    places.push_back(Place::parse(text));
  }
  if (std::string problem = different_hosts(mesh, places); !problem.empty()) {
    return problem;
  }
  // Each rank first finds the problems that it can find by itself; then the ranks try the rest together.
  std::string problem =
      first_problem(mesh.rendezvous->exchange("gather/access", own_problem(places, shard_axis, device)));
  if (!problem.empty()) {
    return problem;
  }
  try {
    mesh.peers = mesh.rendezvous->peer_memory(absl::StrCat("gather-memory/", mesh.replicate_rank), shard_axis, device);
  } catch (const std::exception& error) {
    problem = distill::device::error_text(error);
  }
  problem = problem.substr(0, problem.find('\n'));
  problem = first_problem(mesh.rendezvous->exchange("gather/mapped", problem));
  if (!problem.empty()) {
    mesh.peers.reset();
  }
  return problem;
}

} // namespace

absl::Status choose_gather(Mesh& mesh, GatherWay gather, const std::vector<int64_t>& shard_axis, at::Device device) {
  const std::string collective = device.is_cuda() ? "NCCL's all-gathers" : "Gloo's all-gathers";
  if (mesh.shard_size == 1) {
    mesh.gather_note = "each rank has the whole student; no rank reads another one's weights";
    return absl::OkStatus();
  }
  if (gather == GatherWay::kCollective) {
    mesh.gather_note = absl::StrCat("by ", collective, " (parallel.gather: nccl)");
    return absl::OkStatus();
  }
  const std::string problem = map_peers(mesh, shard_axis, device);
  if (problem.empty()) {
    mesh.gather_note = "by copies from the other ranks' memory";
    return absl::OkStatus();
  }
  if (gather == GatherWay::kCopy) {
    return absl::FailedPreconditionError(absl::StrCat(
        "parallel.gather: copy: the ranks cannot read each other's memory: ", problem, "; parallel.gather: auto uses ",
        collective, " then"));
  }
  mesh.gather_note = absl::StrCat("by ", collective, ": the ranks cannot read each other's memory: ", problem);
  return absl::OkStatus();
}

} // namespace distill::sharding
