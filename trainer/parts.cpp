#include "trainer/parts.h"

#include <cstdlib>
#include <thread>

#include "trainer/device/device_hooks.h"
#include "trainer/metrics/flops.h"
#include "trainer/metrics/log.h"
#include "trainer/setup/flight_recorder.h"
#include "trainer/setup/start_report.h"

namespace distill::trainer {
namespace {

// Which ranks hold the others up; empty on one process.
std::string laggards(const sharding::Mesh& mesh) {
  if (mesh.heartbeat == nullptr) {
    return "";
  }
  const std::string found = mesh.heartbeat->laggards();
  return absl::StrCat("ranks ", found.empty() ? "that hold the others up: none is seen" : found);
}

void start_watchdog(Parts& parts, const launch::StopSignal& stop) {
  const std::string& dir = parts.config.run.dir;
  const int64_t rank = parts.mesh->rank;
  launch::WatchdogOptions options;
  options.who = absl::StrCat("rank ", rank);
  options.step_timeout = std::chrono::seconds(parts.config.run.step_timeout_s);
  options.grace = std::chrono::seconds(parts.config.run.grace_s);
  options.stacks_file = absl::StrCat(dir, "/stacks-rank", rank, ".txt");
  options.write_more = [mesh = parts.mesh.get(), dir, rank] {
    dump_flight_recorder(dir, rank);
    if (const std::string blame = laggards(*mesh); !blame.empty()) {
      metrics::log_error(blame);
    }
  };
  parts.watchdog = std::make_unique<launch::Watchdog>(std::move(options), stop);
  parts.mesh->watch = [watchdog = parts.watchdog.get()](int64_t step, const char* place) { watchdog->at(step, place); };
}

} // namespace

int64_t outside_allocator(at::Device device) {
  return device::used_device_bytes(device) - device::allocator_bytes(device).reserved;
}

absl::StatusOr<std::unique_ptr<Parts>> join_run(
    const config::Config& config, const launch::RankInfo& ranks, const launch::StopSignal& stop) {
  auto parts = std::make_unique<Parts>();
  parts->config = config;
  parts->ranks = ranks;
  auto environment = resolve_environment(config, ranks.local_gpu);
  if (!environment.ok()) {
    return environment.status();
  }
  parts->environment = *environment;
  const at::Device device = environment->device;
  if (ranks.rank > 0) {
    metrics::set_log_prefix(absl::StrFormat("[rank %d on %s, %s] ", ranks.rank, host_name(), device.str()));
  }
  configure_libtorch(config.train, device);
  enable_flight_recorder(config.run.dir);
  parts->outside.start = outside_allocator(device);
  auto mesh = join_ranks(config, ranks, device);
  if (!mesh.ok()) {
    return mesh.status();
  }
  parts->mesh = *std::move(mesh);
  parts->outside.joined = outside_allocator(device);
  start_watchdog(*parts, stop);
  return parts;
}

absl::Status plan_parts(Parts& parts) {
  parts.device = metrics::device_info(parts.environment.device);
  auto inputs = open_inputs(parts.config, parts.environment, config::Purpose::kTrain);
  if (!inputs.ok()) {
    return inputs.status();
  }
  parts.inputs = *std::move(inputs);
  parts.start_report = start_report(parts.config, parts.environment, *parts.inputs);
  auto plan = plan_memory(parts.config, parts.environment, *parts.inputs, parts.ranks);
  if (!plan.ok()) {
    return plan.status();
  }
  parts.memory.plan = *std::move(plan);
  const std::vector<std::string> lines = parts.memory.plan.lines();
  parts.start_report.insert(parts.start_report.end(), lines.begin(), lines.end());
  return absl::OkStatus();
}

absl::Status load_parts(Parts& parts) {
  if (absl::Status status = take_host_memory(parts.environment, parts.memory); !status.ok()) {
    return status;
  }
  const sharding::Mesh& mesh = *parts.mesh;
  Inputs& inputs = *parts.inputs;
  parts.train_data = std::move(inputs.train_data);
  parts.eval_data = std::move(inputs.eval_data);
  parts.student = load_model(
      parts.environment, inputs.student, Role::kStudent, mesh.shard_rank, mesh.shard_size, parts.memory.optimizer);
  if (inputs.teacher) {
    const bool shards = parts.config.parallel.shard_teacher;
    parts.teacher = load_model(
        parts.environment, *inputs.teacher, Role::kTeacher, shards ? mesh.shard_rank : 0, shards ? mesh.shard_size : 1);
  }
  parts.inputs.reset(); // its files are no longer mapped
  parts.slots = make_slots(
      parts.config.parallel, mesh, *parts.student, parts.config.parallel.shard_teacher ? parts.teacher.get() : nullptr);
  parts.micro = std::make_unique<MicroStep>(
      parts.config, *parts.student, parts.teacher.get(),
      ActivationMemory{parts.memory.plan.shape.policies, parts.memory.activations});
  metrics::PhaseTimer& phases = parts.micro->phases();
  if (parts.slots.weights != nullptr) {
    const auto observe = [&phases](bool waits) { phases.waiting(waits); };
    parts.slots.weights->observe_waits(observe);
    parts.slots.gradients->observe_waits(observe);
  }
  parts.student->observe_updates([&phases](bool waits) { phases.waiting(waits, metrics::Phase::kOptimizer); });
  parts.optimizer = std::make_unique<optim::AdamW>(*parts.student, parts.config.optimizer);
  parts.steps = std::make_unique<StepQueue>(
      parts.config, mesh, *parts.student, *parts.micro, *parts.optimizer, parts.slots.checks.get());
  return absl::OkStatus();
}

void add_throughput(const Parts& parts, metrics::StepRecord& record) {
  const int64_t seq_len = parts.config.data.seq_len;
  record.tokens_per_second = static_cast<double>(parts.config.train.global_batch_size * seq_len) / record.seconds;
  if (parts.device.peak_bf16_flops > 0) {
    const metrics::TokenFlops student = metrics::token_flops(parts.student->config(), seq_len);
    const metrics::TokenFlops teacher =
        parts.teacher ? metrics::token_flops(parts.teacher->config(), seq_len) : metrics::TokenFlops{};
    const double peak = parts.device.peak_bf16_flops * static_cast<double>(parts.mesh->world_size);
    record.mfu_causal = metrics::step_flops_per_token(student, teacher, true) * record.tokens_per_second / peak;
    record.mfu_full = metrics::step_flops_per_token(student, teacher, false) * record.tokens_per_second / peak;
  }
  record.peak_memory_bytes = metrics::peak_memory_bytes(parts.environment.device);
  record.peak_reserved_bytes = metrics::peak_reserved_bytes(parts.environment.device);
}

void leave_run(Parts& parts) {
  constexpr int64_t kWithoutLimit = 30; // run.grace_s 0: no limit after a signal, but this has one
  const std::chrono::seconds grace(parts.config.run.grace_s > 0 ? parts.config.run.grace_s : kWithoutLimit);
  if (!sharding::leave(*parts.mesh, parts.environment.device, grace)) {
    metrics::log_warning(absl::StrFormat(
        "the ranks' communicators did not close within %d s; the run itself is complete", grace.count()));
  }
}

absl::Status lost_ranks(const Parts& parts, int64_t step, const std::string& error) {
  const sharding::Mesh& mesh = *parts.mesh;
  const std::string message = absl::StrFormat("step %d: %s\n  %s", step, error, laggards(mesh));
  if (!parts.environment.device.is_cpu()) {
    metrics::log_error(message);
    dump_flight_recorder(parts.config.run.dir, mesh.rank);
    std::this_thread::sleep_for(std::chrono::seconds(mesh.is_main() ? 2 : 0)); // rank 0 serves what the others ask
    std::_Exit(1);
  }
  return absl::UnavailableError(message);
}

} // namespace distill::trainer
