#include "trainer/setup/run_context.h"

#include <cstdlib>
#include <thread>

#include "data/base/status_macros.h"
#include "trainer/device/device_hooks.h"
#include "trainer/device/libtorch_messages.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/metrics/log.h"
#include "trainer/setup/flight_recorder.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/resolve_environment.h"
#include "trainer/setup/warm_up.h"

namespace distill::trainer {
namespace {

// A text that names the ranks for which the others wait; empty on one process.
std::string laggards(const sharding::Mesh& mesh) {
  if (mesh.heartbeat == nullptr) {
    return "";
  }
  const std::string found = mesh.heartbeat->laggards();
  return absl::StrCat("ranks ", found.empty() ? "that hold the others up: none is seen" : found);
}

// The file for the stacks of this rank's threads, and for that of an exception, from which a rank can be debugged.
std::string stacks_file(const config::RunSection& run, int64_t rank) {
  return absl::StrCat(run.dir, "/stacks-rank", rank, ".txt");
}

} // namespace

absl::StatusOr<std::unique_ptr<RunContext>> RunContext::join(
    const config::Config& config, const launch::RankInfo& ranks, const launch::StopSignal& stop) {
  ASSIGN_OR_RETURN(const Environment environment, resolve_environment(config, ranks.local_gpu));
  std::unique_ptr<RunContext> context(new RunContext(config, ranks, environment));
  RETURN_IF_ERROR(context->join_others(stop));
  return context;
}

absl::Status RunContext::join_others(const launch::StopSignal& stop) {
  const at::Device device = environment_.device;
  if (ranks_.rank > 0) {
    metrics::set_log_prefix(absl::StrFormat("[rank %d on %s, %s] ", ranks_.rank, host_name(), device.str()));
  }
  metrics::set_trace_file(stacks_file(config_.run, ranks_.rank));
  configure_libtorch(config_.train, environment_);
  enable_flight_recorder(config_.run.dir);
  load_libraries(environment_);
  outside_.start = device::bytes_outside_allocator(device);
  outside_.others = std::min(device::bytes_of_other_processes(device), outside_.start);
  {
    // Until all ranks are there, a signal cannot be agreed upon.
    launch::Watchdog joining(
        {.process = absl::StrCat("rank ", ranks_.rank), .grace = std::chrono::seconds(config_.run.grace_s)}, stop);
    joining.report_progress(0, "joining the other ranks");
    ASSIGN_OR_RETURN(mesh_, join_ranks(config_, ranks_, device));
  }
  RETURN_IF_ERROR(settle_teacher_sequences(mesh_->samples_together(config_.train.micro_batch_size), config_));
  start_watchdog(stop);
  measure_device();
  return absl::OkStatus();
}

// Measures what is in use on the device before the first weight is read. All ranks call it together, and then plan with
// the most that any of them has found.
void RunContext::measure_device() {
  if (!environment_.device.is_cuda()) {
    return;
  }
  open_communicators(*mesh_, environment_.device);
  outside_.joined = device::bytes_outside_allocator(environment_.device);
  const at::Tensor bytes = at::tensor(
      {outside_.start - outside_.others, std::max<int64_t>(0, outside_.joined - outside_.start), outside_.others},
      at::kLong);
  if (mesh_->host != nullptr) {
    mesh_->host->all_reduce_max(bytes);
  }
  const auto* most = bytes.const_data_ptr<int64_t>();
  environment_.outside = device::OutsideMemory{
      .context = most[0] + device::kLoadedLater, .communicators = most[1], .others = most[2], .measured = true};
  device::reset_allocator_peaks(environment_.device);
  device::reset_memory_peaks();
}

void RunContext::start_watchdog(const launch::StopSignal& stop) {
  const std::string& dir = config_.run.dir;
  const int64_t rank = mesh_->rank;
  launch::WatchdogOptions options;
  options.process = absl::StrCat("rank ", rank);
  options.step_timeout = std::chrono::seconds(config_.run.step_timeout_s);
  options.grace = std::chrono::seconds(config_.run.grace_s);
  options.stacks_file = stacks_file(config_.run, rank);
  options.write_more = [mesh = mesh_.get(), dir, rank] {
    dump_flight_recorder(dir, rank);
    if (const std::string blame = laggards(*mesh); !blame.empty()) {
      metrics::log_error(blame);
    }
  };
  watchdog_ = std::make_unique<launch::Watchdog>(std::move(options), stop);
  mesh_->watch = [watchdog = watchdog_.get()](int64_t step, const char* place) {
    watchdog->report_progress(step, place);
  };
  watchdog_->report_progress(0, "opening models and data");
}

void RunContext::leave() {
  constexpr int64_t kWithoutLimit = 30; // run.grace_s 0 means no limit after a signal; here there is always one
  const std::chrono::seconds grace(config_.run.grace_s > 0 ? config_.run.grace_s : kWithoutLimit);
  if (!sharding::leave(*mesh_, environment_.device, grace)) {
    metrics::log_warning(absl::StrFormat(
        "the ranks' communicators did not close within %d s; the run itself is complete", grace.count()));
  }
}

absl::Status RunContext::lost_ranks(int64_t step, const std::string& error) const {
  const std::string trace = metrics::write_trace(absl::StrFormat("step %d: %s", step, error), device::newest_trace());
  const std::string message = absl::StrFormat(
      "step %d: %s\n  %s%s", step, error, laggards(*mesh_),
      trace.empty() ? "" : absl::StrCat("\n  for debugging, the stack trace is in ", trace));
  if (!environment_.device.is_cpu()) {
    metrics::log_error(message);
    dump_flight_recorder(config_.run.dir, mesh_->rank);
    std::this_thread::sleep_for(std::chrono::seconds(mesh_->is_main() ? 2 : 0)); // rank 0 serves the store
    std::_Exit(1);
  }
  return absl::UnavailableError(message);
}

} // namespace distill::trainer
