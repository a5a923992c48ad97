#include "trainer/tools/profile_memory.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "trainer/device/device_hooks.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/device/memory_viz.h"
#include "trainer/metrics/log.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/resolve_environment.h"
#include "trainer/trainer.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using device::Category;

constexpr size_t kMaxEvents = 400'000;
constexpr double kGiB = 1 << 30;

// Makes the configuration of some steps without validation, checkpoints or a model at the end, in a run folder of the
// profile's own.
config::Config profiled(config::Config config, const ProfileOptions& options) {
  config.train.steps = options.steps;
  config.train.tokens = 0;
  config.train.epochs = 0;
  config.scheduler.type = config::LrSchedule::kConstant;
  config.scheduler.warmup_steps = 0;
  config.eval = {};
  config.checkpoint = {};
  config.checkpoint.at_end = false;
  config.profile.trace_steps = 0;
  config.run.dir = options.folder + "/distill-profile-run"; // removed at the end: a name that no user gives a run
  config.run.progress = config::ProgressStyle::kNone;
  return config;
}

absl::Status write_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  file.close();
  return file ? absl::OkStatus() : absl::InternalError(absl::StrCat(path, ": cannot write"));
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

// Medians over the run's steps without the first two, which wait for the allocator and for libraries to load.
struct Speed {
  double tokens_per_second = 0;
  Json phase_seconds = Json::object();
};

Speed measured_speed(const std::string& run_folder) {
  std::ifstream in(run_folder + "/metrics.jsonl");
  std::vector<Json> steps;
  for (std::string line; std::getline(in, line);) {
    Json step = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (step.is_object() && step.contains("tokens_per_second") && step["tokens_per_second"].is_number()) {
      steps.push_back(std::move(step));
    }
  }
  constexpr size_t kWarmUp = 2;
  if (steps.size() > kWarmUp) {
    steps.erase(steps.begin(), steps.begin() + kWarmUp);
  }
  const auto median_of = [&](const auto& value) {
    std::vector<double> values;
    for (const Json& step : steps) {
      values.push_back(value(step));
    }
    return median(std::move(values));
  };
  Speed speed;
  speed.tokens_per_second = median_of([](const Json& step) { return step["tokens_per_second"].get<double>(); });
  if (!steps.empty()) {
    for (const auto& [phase, seconds] : steps[0]["phase_seconds"].items()) {
      speed.phase_seconds[phase] =
          median_of([&name = phase](const Json& step) { return step["phase_seconds"][name].template get<double>(); });
    }
  }
  return speed;
}

Json use_json(const device::MemoryUse& use) {
  Json json;
  for (size_t p = 0; p < device::kNumMemoryPhases; ++p) {
    const device::PhasePeak& peak = use.phases[p];
    Json& phase = json[device::phase_name(static_cast<device::MemoryPhase>(p))];
    phase["peak"] = peak.bytes;
    for (size_t i = 0; i < device::kNumCategories; ++i) {
      const char* name = device::category_name(static_cast<Category>(i));
      phase["at_peak"][name] = peak.at_peak[i];
      phase["highest"][name] = peak.highest[i];
    }
  }
  return json;
}

// Samples of the allocated bytes by category, one each time the total has changed by a thousandth of the peak.
Json timeline_json(const std::vector<device::MemoryEvent>& events, int64_t peak) {
  Json json;
  for (size_t i = 0; i < device::kNumCategories; ++i) {
    json["categories"].push_back(device::category_name(static_cast<Category>(i)));
  }
  json["points"] = Json::array();
  device::CategoryBytes now{};
  int64_t total = 0, shown = -peak;
  for (size_t e = 0; e < events.size(); ++e) {
    now[static_cast<size_t>(events[e].category)] += events[e].bytes;
    total += events[e].bytes;
    if (std::abs(total - shown) * 1000 >= peak || e + 1 == events.size()) {
      shown = total;
      json["points"].push_back(
          {{"us", events[e].time_us}, {"phase", device::phase_name(events[e].phase)}, {"bytes", now}});
    }
  }
  return json;
}

std::string outside_text(const OutsideAllocator& outside) {
  return absl::StrFormat(
      "outside the allocator: %s at the start, %s with the communicators, %s after the last step",
      device::bytes_text(outside.start), device::bytes_text(outside.joined), device::bytes_text(outside.end));
}

Json report_json(
    const plan::Plan& plan, const device::MemoryUse& use, const device::AllocatorBytes& allocator,
    const OutsideAllocator& outside, const Speed& speed) {
  Json json;
  json["plan"] = Json::parse(plan.json());
  json["measured"]["phases"] = use_json(use);
  const int64_t peak = allocator.allocated_peak > 0 ? allocator.allocated_peak : use.peak();
  json["measured"]["peak"] = peak;
  json["measured"]["peak_phase"] = device::phase_name(use.peak_phase());
  json["measured"]["reserved_peak"] = allocator.reserved_peak;
  json["measured"]["fragmentation"] = allocator.reserved_peak > 0
      ? static_cast<double>(allocator.reserved_peak - peak) / static_cast<double>(allocator.reserved_peak)
      : 0.0;
  json["measured"]["outside_allocator"] = {{"start", outside.start}, {"joined", outside.joined}, {"end", outside.end}};
  const device::PhasePeak& head = use.phases[static_cast<size_t>(device::MemoryPhase::kHead)];
  json["measured"]["head_share"] = static_cast<double>(head.highest[static_cast<size_t>(Category::kHead)]) /
      static_cast<double>(std::max<int64_t>(1, peak));
  json["measured"]["tokens_per_second"] = speed.tokens_per_second;
  json["measured"]["phase_seconds"] = speed.phase_seconds;
  json["peak_error"] = static_cast<double>(plan.memory.peak()) / static_cast<double>(std::max<int64_t>(1, peak)) - 1;
  json["speed_error"] = speed.tokens_per_second > 0 ? plan.time.tokens_per_second / speed.tokens_per_second - 1 : 0.0;
  return json;
}

} // namespace

absl::StatusOr<std::string> profile_memory(
    config::Config config, const launch::RankInfo& ranks, const ProfileOptions& options) {
  config = profiled(std::move(config), options);
  auto environment = resolve_environment(config, ranks.local_gpu);
  if (!environment.ok()) {
    return environment.status();
  }
  const at::Device device = environment->device;
  std::error_code error;
  fs::create_directories(options.folder, error);
  if (error) {
    return absl::InvalidArgumentError(absl::StrCat("--out: cannot create ", options.folder, ": ", error.message()));
  }
  configure_libtorch(config.train, *environment);
  device::track_memory(device);
  device::record_memory_events(ranks.rank == 0 ? kMaxEvents : 0);
  if (device.is_cuda()) {
    device::record_allocator_history(ranks.rank == 0);
    device::reset_allocator_peaks(device);
  }
  const launch::StopSignal stop;
  const auto result = train(config, ranks, {.mode = StartMode::kOverwrite}, stop);
  if (!result.ok()) {
    return result.status();
  }
  const device::AllocatorBytes allocator = device::allocator_bytes(device);
  const device::MemoryUse use = device::memory_use();
  const std::vector<device::MemoryEvent> events = device::memory_events();
  const std::string report =
      report_json(*result->plan, use, allocator, result->outside, measured_speed(config.run.dir)).dump(1);
  if (ranks.rank != 0) {
    if (device.is_cuda()) {
      metrics::log_info("memory " + outside_text(result->outside));
    }
    return report;
  }
  const std::string snapshot =
      device.is_cuda() ? device::allocator_snapshot_pickle() : device::memory_viz_pickle(events);
  for (const auto& [name, content] : std::initializer_list<std::pair<const char*, std::string>>{
           {"report.json", report + "\n"},
           {"timeline.json", timeline_json(events, use.peak()).dump() + "\n"},
           {"snapshot.pickle", snapshot}}) {
    if (absl::Status status = write_file(absl::StrCat(options.folder, "/", name), content); !status.ok()) {
      return status;
    }
  }
  fs::remove_all(config.run.dir, error);
  return report;
}

std::string profile_text(const std::string& report_text) {
  const Json report = Json::parse(report_text);
  const Json& measured = report["measured"];
  const Json& plan = report["plan"];
  std::string text =
      absl::StrFormat("%-12s %-13s %14s %14s %9s\n", "phase", "", "predicted GiB", "measured GiB", "error");
  const auto row = [&](const std::string& phase, const std::string& what, double predicted, double found) {
    absl::StrAppendFormat(
        &text, "%-12s %-13s %14.4f %14.4f %8.2f%%\n", phase, what, predicted / kGiB, found / kGiB,
        found > 0 ? 100 * (predicted / found - 1) : 0.0);
  };
  for (const auto& [phase, found] : measured["phases"].items()) {
    const Json& predicted = plan["phases"][phase];
    row(phase, "peak", predicted["peak"], found["peak"]);
    for (const auto& [category, bytes] : found["highest"].items()) {
      const double expected = predicted["highest"][category];
      if (bytes.get<double>() > 0 || expected > 0) {
        row("", category, expected, bytes);
      }
    }
  }
  row("whole run", "peak", plan["bytes"]["peak"], measured["peak"]);
  if (measured["reserved_peak"].get<double>() > 0) {
    row("", "reserved", plan["bytes"]["peak"].get<double>() + plan["bytes"]["allocator_slack"].get<double>(),
        measured["reserved_peak"]);
    const Json& outside = measured["outside_allocator"];
    row("", "outside it", plan["bytes"]["communicators"].get<double>() + plan["bytes"]["context"].get<double>(),
        outside["end"]);
    absl::StrAppend(&text, outside_text({outside["start"], outside["joined"], outside["end"]}), "\n");
    absl::StrAppendFormat(
        &text, "fragmentation: %.1f%% of what the allocator took was not in use at its fullest\n",
        100 * measured["fragmentation"].get<double>());
  }
  absl::StrAppendFormat(
      &text, "the loss head's buffers are %.1f%% of the peak, which is in the %s phase\n",
      100 * measured["head_share"].get<double>(), measured["peak_phase"].get<std::string>());
  absl::StrAppendFormat(
      &text, "tokens per second: predicted %.0f, measured %.0f (%+.1f%%)\n", plan["tokens_per_second"].get<double>(),
      measured["tokens_per_second"].get<double>(), 100 * report["speed_error"].get<double>());
  return text;
}

} // namespace distill::trainer
