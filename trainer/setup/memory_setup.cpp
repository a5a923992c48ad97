#include "trainer/setup/memory_setup.h"

#include "data/base/status_macros.h"
#include "data/shard.h"
#include "trainer/config/teachers.h"
#include "trainer/device/device_hooks.h"
#include "trainer/device/device_info.h"
#include "trainer/device/host_memory.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/hf/config_json.h"
#include "trainer/metrics/log.h"
#include "trainer/plan/solver.h"
#include "trainer/setup/read_model.h"
#include "trainer/setup/resolve_environment.h"

namespace distill::trainer {
namespace {

constexpr double kGiB = 1 << 30;

// The share of a host's memory that may be pinned if nothing is known about other programs that use it.
constexpr double kHostShare = 0.8;

// What one core reads and writes of state in a second when it updates parameters, at least: this host may have fewer
// cores than the one that was measured.
constexpr double kCoreUpdateBytes = 8e9;

double gib(int64_t bytes) {
  return static_cast<double>(bytes) / kGiB;
}

// Whether the plan counts a teacher stream: the training data have one, or, if they do not exist yet, the configuration
// asks for one.
bool teacher_stream(const config::Config& config) {
  const std::vector<config::DataSet>& train = config.train_sets();
  const auto is_there = [](const config::DataSet& set) { return data::is_token_data(set.path); };
  if (std::any_of(train.begin(), train.end(), is_there)) {
    return std::any_of(
        train.begin(), train.end(), [](const config::DataSet& set) { return data::has_teacher_stream(set.path); });
  }
  return config.data.teacher_seq_len > 0;
}

std::string changes_text(const plan::Plan& plan) {
  std::string text;
  for (const plan::Change& change : plan.changes) {
    absl::StrAppendFormat(
        &text, "\n  %s  (predicted peak %s, %.0f tok/s)", change.text(), device::bytes_text(change.peak_bytes),
        change.tokens_per_second);
  }
  return text;
}

} // namespace

absl::StatusOr<plan::Plan> plan_run(
    const config::Config& config, const Environment& environment, const models::ModelConfig& student,
    const Teachers& teachers, int64_t world_size, int64_t ranks_on_host, std::optional<bool> peer_memory) {
  const std::string device_name = device::device_info(environment.device).name;
  ASSIGN_OR_RETURN(plan::Machine machine, plan::choose_machine(config, environment.device.is_cuda(), device_name));
  ranks_on_host = std::max<int64_t>(1, ranks_on_host);
  const sharding::StateMemory sharing{.processes = ranks_on_host};
  machine.host_update_bytes = std::min(
      machine.host_update_bytes, kCoreUpdateBytes * static_cast<double>(ranks_on_host * sharing.update_threads()));
  return plan::make_plan(
      {config,
       student,
       teachers,
       {environment, world_size, ranks_on_host, peer_memory},
       machine,
       device_bytes_of_rank(environment, ranks_on_host),
       /*host_bytes=*/device::available_host_bytes() / ranks_on_host,
       teacher_stream(config)});
}

int64_t device_bytes_of_rank(const Environment& environment, int64_t ranks_on_host) {
  const int64_t memory = device::device_info(environment.device).memory_bytes;
  return environment.device.is_cuda() ? memory : memory / std::max<int64_t>(1, ranks_on_host);
}

absl::StatusOr<PaperDevice> device_on_paper(const config::Config& config) {
  const bool cuda = config.train.device != config::DeviceChoice::kCpu;
  PaperDevice paper;
  paper.environment = environment_on(config, cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU));
  const device::DeviceInfo here =
      cuda && device::cuda_device_count() > 0 ? device::device_info(paper.environment.device) : device::DeviceInfo();
  ASSIGN_OR_RETURN(paper.machine, plan::choose_machine(config, cuda, here.name));
  // A machine that was asked for by name or by file is planned for with its own memory.
  paper.here = here.memory_bytes > 0 && config.memory.machine.empty();
  paper.memory_bytes = paper.here ? static_cast<double>(here.memory_bytes) : paper.machine.memory_gib * kGiB;
  return paper;
}

absl::StatusOr<plan::Plan> plan_on_paper(
    const config::Config& config, int64_t world_size, int64_t ranks_per_node, double device_share) {
  ASSIGN_OR_RETURN(const models::ModelConfig student, read_student(config));
  ASSIGN_OR_RETURN(const Teachers teachers, read_teachers(config));
  const auto check_length = [](const char* key, const models::ModelConfig& model, int64_t length) {
    const absl::Status status = models::check_sequence_length(model, length);
    return status.ok() ? status
                       : absl::InvalidArgumentError(
                             absl::StrCat(key, " against a model's config.json: ", std::string(status.message())));
  };
  RETURN_IF_ERROR(check_length("data.seq_len", student, config.data.seq_len));
  for (const TeacherSpec& teacher : teachers) {
    if (teacher.exists()) {
      RETURN_IF_ERROR(check_length("data.seq_len", teacher.model().config, config.data.seq_len));
      RETURN_IF_ERROR(check_length("data.teacher_seq_len", teacher.model().config, config.data.teacher_length()));
    }
  }
  ASSIGN_OR_RETURN(const PaperDevice paper, device_on_paper(config));
  const int64_t sharing = std::max<int64_t>(1, std::min(world_size, ranks_per_node));
  const auto host_bytes = static_cast<int64_t>(paper.machine.host_gib * kGiB * kHostShare);
  return plan::make_plan(
      {config,
       student,
       teachers,
       {paper.environment, world_size, ranks_per_node},
       paper.machine,
       /*device_bytes=*/static_cast<int64_t>(device_share * paper.memory_bytes),
       /*host_bytes=*/(paper.here ? device::available_host_bytes() : host_bytes) / sharing,
       teacher_stream(config)});
}

absl::StatusOr<int64_t> longest_sequence(config::Config config, int64_t world_size, int64_t ranks_per_node) {
  constexpr int64_t kStep = 1024;
  constexpr int64_t kSearched = int64_t{1} << 26;
  constexpr double kSpare = 0.98;
  int64_t longest = 0, beyond = kSearched;
  for (const auto& [name, section] : config::models_of_run(config)) {
    if (!section.folder().empty()) {
      ASSIGN_OR_RETURN(
          const models::ModelConfig model,
          hf::read_model_config(section.folder(), {section.ignore_config_keys, /*with_weights=*/false}));
      const int64_t limit = model.max_position_embeddings;
      if (limit < kStep) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "--longest: expected models of at least %d positions, the length of the search's steps, found %d in "
            "%s/config.json",
            kStep, limit, section.folder()));
      }
      beyond = std::min(beyond, limit / kStep * kStep + kStep);
    }
  }
  while (beyond - longest > kStep) {
    const int64_t middle = (longest + beyond) / (2 * kStep) * kStep;
    config.data.seq_len = middle;
    ASSIGN_OR_RETURN(const plan::Plan plan, plan_on_paper(config, world_size, ranks_per_node, kSpare));
    (plan.fits() ? longest : beyond) = middle;
  }
  return longest;
}

absl::Status check_fits(const config::Config& config, const plan::Plan& plan) {
  if (plan.fits() || config.memory.on_overflow == config::OnOverflow::kWarn) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(
      "the memory plan does not fit: ", absl::StrJoin(plan.overflows, "; "),
      plan.changes.empty() ? "" : "\nwhat would fit, the fastest first:", changes_text(plan),
      "\n`distill plan` shows the whole plan; memory.on_overflow=warn tries anyway"));
}

namespace {

absl::StatusOr<plan::Plan> plan_of_ranks(
    const config::Config& config, const Environment& environment, const Inputs& inputs, const launch::RankInfo& ranks,
    const sharding::Mesh& mesh) {
  return plan_run(
      config, environment, inputs.student.config, inputs.teachers, ranks.world_size, ranks.local_world_size,
      /*peer_memory=*/mesh.peers != nullptr);
}

} // namespace

absl::Status agree_on_gathers(
    const config::Config& config, const Environment& environment, const Inputs& inputs, const launch::RankInfo& ranks,
    const sharding::Mesh& mesh, plan::Plan& plan) {
  if (mesh.host == nullptr) {
    return absl::OkStatus();
  }
  // The rank with the most blocks' state on the host decides where those of all ranks are: each unit's gathers wait for
  // its own update there, on all ranks alike.
  const std::vector<models::StatePlace>& places = plan.shape.places;
  const int64_t on_host = std::count_if(places.begin(), places.end(), models::is_on_host);
  const int64_t by_cpu = std::count(places.begin(), places.end(), models::StatePlace::kCpu);
  constexpr int64_t kNoTiles = std::numeric_limits<int64_t>::max(); // the smallest tiles are for the least memory
  const int64_t tile = plan.shape.config.memory.tile_tokens > 0 ? plan.shape.config.memory.tile_tokens : kNoTiles;
  const auto recompute = static_cast<int64_t>(plan.shape.config.memory.recompute);
  const at::Tensor own = at::tensor(
      {static_cast<int64_t>(plan.shape.copies()), plan.shape.config.parallel.slots, -on_host, -by_cpu, tile, recompute},
      at::kLong);
  at::Tensor all = at::empty({mesh.world_size * own.numel()}, at::kLong);
  mesh.host->all_gather(all, own);
  const at::Tensor least = all.view({mesh.world_size, own.numel()}).amin(0);
  if (least.equal(own)) {
    return absl::OkStatus();
  }
  config::Config agreed = config;
  agreed.parallel.gather = least[0].item<int64_t>() != 0 ? config::Gather::kCopy : config::Gather::kNccl;
  agreed.parallel.slots = least[1].item<int64_t>();
  agreed.memory.recompute = static_cast<config::Recompute>(least[5].item<int64_t>());
  agreed.memory.tile_tokens = least[4].item<int64_t>() == kNoTiles ? 0 : least[4].item<int64_t>();
  if (plan.automatic_state) {
    agreed.memory.optimizer =
        plan::state_placement(plan.shape.student.num_layers(), -least[2].item<int64_t>(), -least[3].item<int64_t>());
  }
  ASSIGN_OR_RETURN(plan, plan_of_ranks(agreed, environment, inputs, ranks, mesh));
  return check_fits(config, plan);
}

absl::StatusOr<plan::Plan> plan_memory(
    const config::Config& config, const Environment& environment, const Inputs& inputs, const launch::RankInfo& ranks,
    const sharding::Mesh& mesh) {
  ASSIGN_OR_RETURN(plan::Plan plan, plan_of_ranks(config, environment, inputs, ranks, mesh));
  RETURN_IF_ERROR(check_fits(config, plan));
  return plan;
}

void limit_memory(
    const config::Config& config, const Environment& environment, const plan::MemoryPrediction& memory,
    const std::vector<std::string>& overflows) {
  if (!overflows.empty()) {
    metrics::log_warning_rank0("the memory plan does not fit, trying anyway: " + absl::StrJoin(overflows, "; "));
  }
  if (environment.device.is_cuda() || config.memory.limit_gib > 0) {
    device::track_memory(environment.device);
  }
  if (config.memory.limit_gib > 0) {
    const auto limit = static_cast<int64_t>(config.memory.limit_gib * kGiB) - memory.peer_bytes;
    if (environment.device.is_cuda()) {
      device::limit_device_memory(environment.device, limit);
    } else {
      device::limit_cpu_memory(limit);
    }
  }
}

absl::StatusOr<HostMemory> take_host_memory(const Environment& environment, const plan::Plan& plan) {
  const auto take = [&](int64_t bytes, const char* key) -> absl::StatusOr<std::shared_ptr<device::HostSlab>> {
    if (bytes == 0) {
      return nullptr;
    }
    return device::HostSlab::allocate(bytes, environment.device, /*processes_on_host=*/1, key);
  };
  HostMemory memory;
  ASSIGN_OR_RETURN(memory.activations, take(plan.memory.host_activations, "memory.activation"));
  ASSIGN_OR_RETURN(memory.optimizer, take(plan.memory.host_optimizer, "memory.optimizer"));
  return memory;
}

std::string out_of_memory_report(
    const config::Config& config, const launch::RankInfo& ranks, const std::string& error) {
  const device::FailedRequest failed = device::failed_request();
  const int64_t held = device::total(failed.held);
  std::string text = absl::StrFormat(
      "out of memory on rank %d in the %s phase: %s were asked for while tensors held %s", ranks.rank,
      device::phase_name(failed.phase), device::bytes_text(failed.bytes), device::bytes_text(held));
  for (size_t i = 0; i < device::kNumCategories; ++i) {
    if (failed.held[i] > 0) {
      absl::StrAppendFormat(
          &text, "\n  %-12s %s", device::category_name(static_cast<device::Category>(i)),
          device::bytes_text(failed.held[i]));
    }
  }
  const auto environment = resolve_environment(config, ranks.local_gpu);
  const auto student = read_student(config);
  const auto teachers = read_teachers(config);
  if (environment.ok() && student.ok() && teachers.ok()) {
    const auto plan_of = [&](const config::Config& changed) {
      return plan_run(changed, *environment, *student, *teachers, ranks.world_size, ranks.local_world_size);
    };
    if (const auto plan = plan_of(config); plan.ok()) {
      absl::StrAppend(&text, "\nthe plan had predicted a peak of ", device::bytes_text(plan->memory.peak()));
      // The prediction was too low, so the changes must fit a budget that is smaller in the same proportion.
      config::Config tighter = config;
      const double share = static_cast<double>(held) / static_cast<double>(std::max<int64_t>(1, held + failed.bytes));
      tighter.memory.budget_gib = std::min(share, 0.98) * gib(plan->memory.peak());
      const auto other = plan_of(tighter);
      if (other.ok() && !other->changes.empty()) {
        absl::StrAppend(&text, "\nwhat would fit, the fastest first:", changes_text(*other));
      }
    }
  }
  return absl::StrCat(text, "\n  the allocator said: ", error.substr(0, error.find('\n')));
}

} // namespace distill::trainer
