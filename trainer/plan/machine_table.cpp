#include "trainer/plan/machine_table.h"

#include <absl/strings/match.h>
#include <absl/strings/str_join.h>

#include "trainer/device/device_info.h"

namespace distill::plan {
namespace {

// Speeds of a GPU in the vendor's data sheet, without sparsity; those of bf16 products are in device_info.cpp.
struct Row {
  const char* key; // for memory.machine
  const char* device_name; // as the driver calls it
  double memory_gib; // as the driver counts it
  bool has_float8; // then twice the speed of bf16
  double memory_bytes;
  double link_bytes; // NVLink, both directions; between PCIe cards, a bridge of two
  double host_bytes; // PCIe, both directions
};
// The memory of the H200 and the H100 SXM is as measured; that of the others, as their users report it, rounded down.
constexpr Row kRows[] = {
    {"H200", "NVIDIA H200", 139.8, true, 4.8e12, 900e9, 128e9},
    {"H100-SXM", "NVIDIA H100 80GB HBM3", 79.2, true, 3.35e12, 900e9, 128e9},
    {"H100-PCIe", "NVIDIA H100 PCIe", 79.1, true, 2.0e12, 600e9, 128e9},
    {"A100-SXM-80", "NVIDIA A100-SXM4-80GB", 79.1, false, 2.039e12, 600e9, 64e9},
    {"A100-PCIe-80", "NVIDIA A100 80GB PCIe", 79.1, false, 1.935e12, 600e9, 64e9},
};
constexpr const Row& kMeasured = kRows[0];

// A speed that a figure of the data sheets limits is that of the measured machine times the ratio of the two figures;
// the host is the same one.
Machine scaled(const Row& row) {
  const double products = device::peak_bf16_flops(row.device_name) / device::peak_bf16_flops(kMeasured.device_name);
  const double memory = row.memory_bytes / kMeasured.memory_bytes;
  const double link = row.link_bytes / kMeasured.link_bytes;
  const double host = row.host_bytes / kMeasured.host_bytes;
  Machine machine = h200();
  machine.name = row.device_name;
  machine.source = "data sheet, not measured";
  machine.memory_gib = row.memory_gib;
  machine.matmul_flops *= products;
  machine.float8_flops *= row.has_float8 ? products : 0;
  machine.attention_forward_flops *= products;
  machine.attention_backward_flops *= products;
  machine.memory_bytes *= memory;
  machine.host_bytes *= host;
  machine.gather_bytes *= link;
  machine.reduce_bytes *= link;
  return machine;
}

// What was measured of the H100 SXM: memory and host by a calibration, and products by the phases of 1B and 3B students
// with an 8B teacher, as those of the H200.
Machine h100_sxm(const Row& row) {
  Machine machine = scaled(row);
  machine.source = "measured";
  machine.matmul_flops = 780e12;
  machine.memory_bytes = 3.0e12;
  machine.host_bytes = 51e9;
  machine.host_update_bytes = 68e9;
  return machine;
}

Machine machine_of(const Row& row) {
  return &row == &kMeasured ? h200() : std::string_view(row.key) == "H100-SXM" ? h100_sxm(row) : scaled(row);
}

Machine chosen(Machine machine, std::string choice, std::string warning = "") {
  machine.choice = std::move(choice);
  machine.warning = std::move(warning);
  return machine;
}

// The machine that memory.machine asks for.
absl::StatusOr<Machine> asked_for(const std::string& value) {
  if (auto row = machine_named(value)) {
    return chosen(*std::move(row), "memory.machine");
  }
  auto machine = read_machine(value);
  if (absl::IsNotFound(machine.status())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "memory.machine: expected one of ", absl::StrJoin(machine_names(), ", "),
        ", or a file that `distill plan --calibrate` has written, found ", value));
  }
  return machine.ok() ? chosen(*std::move(machine), absl::StrCat("memory.machine=", value)) : std::move(machine);
}

} // namespace

Machine h200() {
  return {
      .name = kMeasured.device_name,
      .source = "measured",
      .memory_gib = kMeasured.memory_gib,
      .host_gib = 1024,
      // After a run's last step.
      .context_gib = 0.762,
      // On two GPUs, minus that, for each communicator. NCCL's buffers account for it: 9.2 MiB for each connection (4
      // simple, 4.7 LL128, 0.5 LL), up to 32 channels, ring and tree.
      .communicator_gib = 0.563,
      .matmul_flops = 740e12,
      .float8_flops = 1480e12,
      .attention_forward_flops = 560e12,
      .attention_backward_flops = 450e12,
      .memory_bytes = 3.9e12,
      .host_bytes = 54e9,
      .host_store_bytes = 150e9,
      .gather_bytes = 334e9,
      .reduce_bytes = 344e9,
      .node_bytes = 45e9,
      .overlap_cost = 0.6,
      .copy_cost = 0.05,
      .launch_seconds = 4e-6};
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const Row& row : kRows) {
    names.emplace_back(row.key);
  }
  return names;
}

std::optional<Machine> machine_named(const std::string& name) {
  const auto* row = std::find_if(
      std::begin(kRows), std::end(kRows), [&](const Row& r) { return absl::EqualsIgnoreCase(r.key, name); });
  return row != std::end(kRows) ? std::optional(machine_of(*row)) : std::nullopt;
}

std::optional<Machine> machine_with_device(const std::string& device_name) {
  const auto* row =
      std::find_if(std::begin(kRows), std::end(kRows), [&](const Row& r) { return r.device_name == device_name; });
  return row != std::end(kRows) ? std::optional(machine_of(*row)) : std::nullopt;
}

absl::StatusOr<Machine> choose_machine(const config::Config& config, bool cuda, const std::string& device_name) {
  if (!config.memory.machine.empty()) {
    return asked_for(config.memory.machine);
  }
  if (!cuda) {
    return chosen(generic_cpu(), "this host");
  }
  if (device_name.empty()) {
    return chosen(h200(), "assumed, since this host has no GPU; memory.machine names another");
  }
  if (auto row = machine_with_device(device_name)) {
    return chosen(*std::move(row), "this host's GPU");
  }
  return chosen(
      h200(), absl::StrCat("in place of ", device_name),
      absl::StrCat(
          "the speeds of ", device_name, " are not known: the plan's times are those of ", kMeasured.device_name,
          "; `distill plan --calibrate FILE` measures this host's, memory.machine=FILE uses them"));
}

} // namespace distill::plan
