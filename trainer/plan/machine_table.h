#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/plan/machine.h"

// The machines that are known without a calibration: hosts with 8 GPUs of a kind.
namespace distill::plan {

// The machine on which the speeds of the table were measured (docs/performance.md); the speeds of the others are scaled
// from its by data sheets (docs/memory.md).
Machine h200();

std::vector<std::string> machine_names(); // of the table
std::optional<Machine> machine_named(const std::string& name); // capitals do not matter; nullopt: there is none
// `device_name`: as the driver calls a GPU.
std::optional<Machine> machine_with_device(const std::string& device_name);

// The machine that a plan is for: the one that memory.machine names or has in a file; or else, for a GPU, the row of
// the host's GPU, `device_name`, or H200's where there is none (then `device_name` is empty) or none is known, which
// the machine's warning says; for a CPU, generic_cpu(). InvalidArgument lists the names.
absl::StatusOr<Machine> choose_machine(const config::Config& config, bool cuda, const std::string& device_name);

} // namespace distill::plan
