#include "trainer/setup/join_ranks.h"

#include <unistd.h>

#include "trainer/config/dump.h"
#include "trainer/config/teachers.h"
#include "trainer/device/device_hooks.h"
#include "trainer/hf/fingerprint.h"
#include "trainer/metrics/log.h"

namespace distill::trainer {
namespace {

sharding::GatherWay gather_way(config::Gather gather) {
  switch (gather) {
    case config::Gather::kCopy:
      return sharding::GatherWay::kCopy;
    case config::Gather::kNccl:
      return sharding::GatherWay::kCollective;
    case config::Gather::kAuto:
      break;
  }
  return sharding::GatherWay::kAuto;
}

} // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

absl::StatusOr<std::unique_ptr<sharding::Mesh>> join_ranks(
    const config::Config& config, const launch::RankInfo& ranks, at::Device device) {
  const config::ParallelSection& parallel = config.parallel;
  if (ranks.world_size % parallel.replicate != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "parallel.replicate: expected a divisor of the %d ranks (%s), found %d", ranks.world_size,
        base::enum_name(ranks.launcher), parallel.replicate));
  }
  const int64_t shard = parallel.shard > 0 ? parallel.shard : ranks.world_size / parallel.replicate;
  const int64_t samples = ranks.world_size * config.train.micro_batch_size;
  if (config.train.global_batch_size % samples != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "train.global_batch_size: expected a multiple of %d (%d ranks x train.micro_batch_size %d), found %d", samples,
        ranks.world_size, config.train.micro_batch_size, config.train.global_batch_size));
  }
  sharding::RendezvousOptions options;
  options.master_addr = ranks.master_addr;
  options.master_port = ranks.master_port;
  options.master_listen_fd = ranks.master_listen_fd;
  options.launcher_serves = ranks.launcher_serves;
  options.attempt = ranks.attempt;
  options.rank = ranks.rank;
  options.world_size = ranks.world_size;
  options.timeout = std::chrono::seconds(parallel.timeout_s);
  options.host = host_name();
  options.nccl_max_ctas = parallel.nccl_max_ctas;
  const char* connections = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (device.is_cuda() && ranks.world_size > 1 && connections != nullptr && std::string_view(connections) == "1") {
    metrics::log_warning_rank0(
        "CUDA_DEVICE_MAX_CONNECTIONS is 1: communication then cannot overlap with computation; unset it");
  }
  // What lies in memory that other ranks have mapped cannot leave the device.
  const bool collective = config.onpolicy.may_offload() && parallel.gather == config::Gather::kAuto;
  const sharding::GatherWay way = collective ? sharding::GatherWay::kCollective : gather_way(parallel.gather);
  return sharding::make_mesh(options, shard, parallel.replicate, device, way);
}

absl::Status settle_teacher_sequences(int64_t together, config::Config& config) {
  if (!config.has_list()) {
    return absl::OkStatus();
  }
  int64_t& sequences = config.data.teacher_sequences;
  sequences = sequences > 0 ? sequences : together;
  const int64_t global = config.train.global_batch_size, own = config.onpolicy_sequences();
  if (sequences % together == 0 && global % sequences == 0 && own % sequences == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "data.teacher_sequences: expected a multiple of %d, the sequences that all ranks read at a time, that divides "
      "train.global_batch_size, %d%s, found %d",
      together, global, own > 0 ? absl::StrFormat(", and its on-policy sequences, %d", own) : "", sequences));
}

absl::Status check_same_inputs(
    const config::Config& config, const sharding::Mesh& mesh, const std::string& data, const std::string& run) {
  if (mesh.host == nullptr) {
    return absl::OkStatus();
  }
  absl::Status status =
      sharding::check_equal_on_all_ranks(mesh, "configuration", absl::StrCat(config::dump(config), run));
  const auto check = [&](const std::string& key, const std::string& folder) {
    if (!status.ok() || folder.empty()) {
      return;
    }
    const auto files = hf::folder_fingerprint(folder);
    status = sharding::agree(mesh, files.status());
    if (status.ok()) {
      status = sharding::check_equal_on_all_ranks(mesh, absl::StrCat(key, " (model files in ", folder, ")"), *files);
    }
  };
  for (const auto& [name, section] : config::models_of_run(config)) {
    check(absl::StrCat(name, section.reads_cache() ? ".cache" : ".path"), section.folder());
    check(absl::StrCat(name, ".adapter"), section.adapter);
  }
  return status.ok() ? sharding::check_equal_on_all_ranks(mesh, "data.train", data) : status;
}

int64_t ranks_to_start(const config::Config& config, const launch::RankInfo& ranks) {
  if (ranks.launched() > 0) {
    return 1;
  }
  if (config.parallel.processes > 0) {
    return config.parallel.processes;
  }
  return config.train.device == config::DeviceChoice::kCpu ? 1 : std::max<int64_t>(1, device::cuda_device_count());
}

} // namespace distill::trainer
