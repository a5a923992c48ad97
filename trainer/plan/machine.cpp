#include "trainer/plan/machine.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "data/base/json.h"
#include "trainer/device/host_memory.h"

namespace distill::plan {
namespace {

struct Member {
  const char* name;
  double Machine::*value;
  bool may_be_zero = false;
  bool may_be_missing = false; // from older files
};
constexpr Member kMembers[] = {
    {"memory_gib", &Machine::memory_gib},
    {"host_gib", &Machine::host_gib},
    {"matmul_flops", &Machine::matmul_flops},
    {"float8_flops", &Machine::float8_flops, /*may_be_zero=*/true},
    {"attention_forward_flops", &Machine::attention_forward_flops},
    {"attention_backward_flops", &Machine::attention_backward_flops},
    {"memory_bytes", &Machine::memory_bytes},
    {"host_bytes", &Machine::host_bytes},
    {"host_store_bytes", &Machine::host_store_bytes},
    {"host_update_bytes", &Machine::host_update_bytes, /*may_be_zero=*/true, /*may_be_missing=*/true},
    {"gather_bytes", &Machine::gather_bytes},
    {"reduce_bytes", &Machine::reduce_bytes},
    {"node_bytes", &Machine::node_bytes},
    {"overlap_cost", &Machine::overlap_cost, /*may_be_zero=*/true},
    {"copy_cost", &Machine::copy_cost, /*may_be_zero=*/true},
    {"launch_seconds", &Machine::launch_seconds},
    {"context_gib", &Machine::context_gib, /*may_be_zero=*/true},
    {"communicator_gib", &Machine::communicator_gib, /*may_be_zero=*/true},
};
struct MeasurementMember {
  const char* name;
  std::string Measurement::*value;
};
constexpr MeasurementMember kMeasurementMembers[] = {
    {"device", &Measurement::device},
    {"driver", &Measurement::driver},
    {"libtorch", &Measurement::libtorch},
    {"date", &Measurement::date}};

// The speed of one thread with an instruction set, in fp32. That of AVX512 is of an AMD EPYC with 2 cores, where the
// quickstart ran at 280 to 300 tok/s; the others follow from the width of their vectors.
struct CpuSpeed {
  const char* capability; // as ATen names it
  double matmul_flops, attention_flops;
};
constexpr CpuSpeed kCpuSpeeds[] = {{"AVX512", 120e9, 55e9}, {"AVX2", 60e9, 28e9}, {"", 15e9, 7e9}};
constexpr double kThreadBytes = 10e9; // streamed by one thread
constexpr double kMostStreams = 12; // threads after which a CPU's memory is busy

constexpr int64_t kMaxBytes = 1 << 20;
constexpr double kMaxGib = 1 << 30; // the bytes of this many GiB fit 64 bits

} // namespace

Machine generic_cpu() {
  const double threads = at::get_num_threads();
  const std::string capability = at::get_cpu_capability();
  const CpuSpeed* speed = std::begin(kCpuSpeeds);
  while (*speed->capability != '\0' && capability != speed->capability) {
    ++speed;
  }
  const double memory_bytes = kThreadBytes * std::min(threads, kMostStreams);
  return {
      .name = absl::StrFormat("CPU, %s, %d thread(s)", capability, at::get_num_threads()),
      .source = "not calibrated",
      .memory_gib = static_cast<double>(device::host_memory_bytes()) / (1 << 30),
      .host_gib = static_cast<double>(device::host_memory_bytes()) / (1 << 30),
      .matmul_flops = speed->matmul_flops * threads,
      .float8_flops = speed->matmul_flops * threads, // computed in fp32
      .attention_forward_flops = speed->attention_flops * threads,
      .attention_backward_flops = speed->attention_flops * threads,
      .memory_bytes = memory_bytes,
      .host_bytes = 8e9,
      .host_store_bytes = 8e9,
      .gather_bytes = 1e9,
      .reduce_bytes = 0.5e9,
      .node_bytes = 0.5e9,
      .overlap_cost = 1,
      .copy_cost = 1,
      .launch_seconds = 5e-6};
}

std::string Measurement::text() const {
  return absl::StrCat(
      "measured on ", date, driver.empty() ? "" : absl::StrCat(", driver ", driver), ", libtorch ", libtorch);
}

std::string Machine::text() const {
  return absl::StrCat(name, " (", source, choice.empty() ? "" : "; ", choice, ")");
}

device::OutsideMemory assumed_outside(const Machine& machine, int64_t communicators) {
  constexpr double kGiB = 1 << 30;
  return {
      .context = static_cast<int64_t>(machine.context_gib * kGiB),
      .communicators = communicators * static_cast<int64_t>(machine.communicator_gib * kGiB)};
}

absl::StatusOr<Machine> read_machine(const std::string& path) {
  const auto text = base::read_text_file(path, kMaxBytes);
  if (!text.ok()) {
    return text.status();
  }
  const auto json = base::parse_json(*text, path, /*max_depth=*/4);
  if (!json.ok()) {
    return json.status();
  }
  Machine machine;
  if (!json->is_object() || !json->contains("name") || !(*json)["name"].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected what `distill plan --calibrate` writes, an object with a name, found another"));
  }
  machine.name = (*json)["name"];
  for (const Member& member : kMembers) {
    const auto found = json->find(member.name);
    if (found == json->end() && member.may_be_missing) {
      continue;
    }
    if (found == json->end() || !found->is_number() || !(member.may_be_zero ? *found >= 0.0 : *found > 0.0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": ", member.name, ": expected a positive number, found ",
          found == json->end() ? "none" : found->dump(), "; `distill plan --calibrate` writes such a file"));
    }
    machine.*member.value = *found;
  }
  for (const Member& member : {kMembers[0], kMembers[1]}) {
    if (machine.*member.value > kMaxGib) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", member.name, ": expected at most ", kMaxGib, ", found ", machine.*member.value));
    }
  }
  machine.source = "measured";
  if (const auto found = json->find("measured"); found != json->end()) {
    Measurement measurement;
    for (const MeasurementMember& member : kMeasurementMembers) {
      const auto value = found->find(member.name);
      if (value == found->end() || !value->is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": measured.", member.name, ": expected a text, found ",
            value == found->end() ? "none" : value->dump()));
      }
      measurement.*member.value = *value;
    }
    machine.source = measurement.text();
    machine.measurement = std::move(measurement);
  }
  return machine;
}

absl::Status write_machine(const Machine& machine, const std::string& path) {
  nlohmann::ordered_json json{{"name", machine.name}};
  for (const Member& member : kMembers) {
    json[member.name] = machine.*member.value;
  }
  if (machine.measurement) {
    for (const MeasurementMember& member : kMeasurementMembers) {
      json["measured"][member.name] = (*machine.measurement).*member.value;
    }
  }
  std::ofstream file(path);
  file << json.dump(1) << "\n";
  file.close();
  return file ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(path, ": cannot write"));
}

} // namespace distill::plan
