#include "trainer/sharding/mesh.h"

#include <c10/core/DeviceGuard.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <thread>

#include "trainer/device/libtorch_messages.h"
#include "trainer/sharding/choose_gather.h"

namespace distill::sharding {
namespace {

constexpr std::chrono::milliseconds kHeartbeat{500};

std::vector<std::unique_ptr<Communicator>> take_device_groups(Mesh& mesh) {
  std::vector<std::unique_ptr<Communicator>> groups;
  for (std::unique_ptr<Communicator>* group : {&mesh.gather, &mesh.reduce, &mesh.replicate, &mesh.world}) {
    if (*group != nullptr) {
      groups.push_back(std::move(*group));
    }
  }
  return groups;
}

// A rank that has used up its time at the end still posts that it leaves.
constexpr std::chrono::milliseconds kShortestWait{100};

// A thread may be stuck in the driver, and destructors that run at exit could wait for it.
void exit_without_destructors() {
  ::on_exit([](int status, void*) { ::_exit(status); }, nullptr);
}

// Closes the groups between devices, and with them the threads with which NCCL's groups read the store. False: that
// failed or took longer than `timeout`. The groups are then owned by a thread that may hang.
bool close_device_groups(Mesh& mesh, at::Device device, std::chrono::milliseconds timeout) {
  const auto groups = std::make_shared<std::vector<std::unique_ptr<Communicator>>>(take_device_groups(mesh));
  const auto closed = std::make_shared<std::promise<bool>>();
  std::future<bool> done = closed->get_future();
  std::thread([groups, closed, device] {
    try {
      const c10::DeviceGuard guard(device);
      for (const std::unique_ptr<Communicator>& group : *groups) {
        group->shutdown();
      }
      groups->clear(); // waits for their threads
      closed->set_value(true);
    } catch (const std::exception&) {
      closed->set_value(false);
    }
  }).detach();
  const bool well = done.wait_for(timeout) == std::future_status::ready && done.get();
  if (!well) {
    exit_without_destructors();
  }
  return well;
}

} // namespace

Mesh::~Mesh() {
  if (!groups_on_gpus) {
    return;
  }
  std::vector<std::unique_ptr<Communicator>> groups = take_device_groups(*this);
  if (groups.empty()) {
    return;
  }
  for (std::unique_ptr<Communicator>& group : groups) {
    [[maybe_unused]] const Communicator* never_destroyed = group.release();
  }
  exit_without_destructors();
}

absl::StatusOr<std::unique_ptr<Mesh>> make_mesh(
    const RendezvousOptions& options, int64_t shard, int64_t replicate, at::Device device, GatherWay gather) {
  auto mesh = std::make_unique<Mesh>();
  mesh->rank = options.rank;
  mesh->world_size = options.world_size;
  mesh->shard_size = shard;
  mesh->replicate_size = replicate;
  mesh->shard_rank = options.rank % shard;
  mesh->replicate_rank = options.rank / shard;
  mesh->groups_on_gpus = device.is_cuda();
  if (shard * replicate != options.world_size) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.shard %d x parallel.replicate %d is %d ranks, but %d are running", shard, replicate,
        shard * replicate, options.world_size));
  }
  if (options.world_size == 1) {
    return mesh;
  }
  auto rendezvous = Rendezvous::join(options);
  if (!rendezvous.ok()) {
    return rendezvous.status();
  }
  mesh->rendezvous = *std::move(rendezvous);
  mesh->heartbeat = std::make_unique<Heartbeat>(*mesh->rendezvous, options.host, kHeartbeat);
  const auto group = [&](const std::string& name, const std::vector<int64_t>& members) {
    return device.is_cuda() ? mesh->rendezvous->nccl_group(name, members, device)
                            : mesh->rendezvous->gloo_group(name, members);
  };
  std::vector<int64_t> all, shard_axis, replicate_axis;
  for (int64_t rank = 0; rank < options.world_size; ++rank) {
    all.push_back(rank);
    if (rank / shard == mesh->replicate_rank) {
      shard_axis.push_back(rank);
    }
    if (rank % shard == mesh->shard_rank) {
      replicate_axis.push_back(rank);
    }
  }
  absl::Status gathers;
  try {
    mesh->host = mesh->rendezvous->gloo_group("host", all);
    mesh->world = group("world", all);
    mesh->gather = group(absl::StrCat("gather/", mesh->replicate_rank), shard_axis);
    mesh->reduce = group(absl::StrCat("reduce/", mesh->replicate_rank), shard_axis);
    if (replicate > 1) {
      mesh->replicate = group(absl::StrCat("replicate/", mesh->shard_rank), replicate_axis);
    }
    gathers = choose_gather(*mesh, gather, shard_axis, device);
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat(
        "rank ", options.rank, ": a group of ranks could not be connected: ", distill::device::error_text(error), "; ",
        mesh->heartbeat->laggards()));
  }
  if (!gathers.ok()) {
    return gathers;
  }
  return mesh;
}

bool leave(Mesh& mesh, at::Device device, std::chrono::milliseconds timeout) {
  if (mesh.rendezvous == nullptr) {
    return true;
  }
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + timeout;
  const auto left = [end] {
    return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()), kShortestWait);
  };
  // A rank whose own groups do not close takes part all the same, so that the others need not wait for it.
  const bool closed = close_device_groups(mesh, device, timeout);
  const bool silent = mesh.heartbeat->stop(left());
  const bool met = mesh.rendezvous->meet("closed", left()); // no rank reads what another one sends any more
  mesh.host.reset();
  const bool last = mesh.rendezvous->leave(left());
  return closed && silent && met && last;
}

int64_t sum_over_ranks(const Mesh& mesh, int64_t value) {
  if (mesh.host == nullptr) {
    return value;
  }
  at::Tensor total = at::full({1}, value, at::kLong);
  mesh.host->all_reduce(total);
  return total.item<int64_t>();
}

at::Tensor gather_parts(const Mesh& mesh, const at::Tensor& own) {
  const at::Tensor flat = own.contiguous().flatten();
  at::Tensor all = at::empty({mesh.data_size() * flat.numel()}, flat.options());
  if (mesh.host == nullptr) {
    all.copy_(flat);
  } else {
    mesh.host->all_gather(all, flat);
  }
  return all.view({mesh.data_size(), flat.numel()});
}

absl::Status agree(const Mesh& mesh, const absl::Status& status) {
  // The ranks make one sum: the number of ranks that failed, and above it the sum of their codes.
  constexpr int64_t kCodeUnit = int64_t{1} << 32;
  const int64_t sum = sum_over_ranks(mesh, status.ok() ? 0 : 1 + kCodeUnit * static_cast<int64_t>(status.raw_code()));
  if (sum == 0 || !status.ok()) {
    return status;
  }
  const int64_t failed = sum % kCodeUnit, codes = sum / kCodeUnit;
  const auto code = failed == 1 ? static_cast<absl::StatusCode>(codes) : absl::StatusCode::kAborted;
  return absl::Status(code, absl::StrFormat("%d other rank(s) failed; their messages say why", failed));
}

absl::Status check_equal_on_all_ranks(const Mesh& mesh, const std::string& what, const std::string& content) {
  if (mesh.host == nullptr) {
    return absl::OkStatus();
  }
  // FNV-1a: tells configurations apart; not cryptographic.
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : content) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  at::Tensor main_hash = at::full({1}, static_cast<int64_t>(hash), at::kLong);
  mesh.host->broadcast(main_hash, /*root=*/0);
  const auto expected = static_cast<uint64_t>(main_hash.item<int64_t>());
  const absl::Status status = hash == expected
      ? absl::OkStatus()
      : absl::FailedPreconditionError(absl::StrFormat(
            "rank %d has another %s than rank 0: hash %016x, rank 0 has %016x", mesh.rank, what, hash, expected));
  return agree(mesh, status);
}

} // namespace distill::sharding
