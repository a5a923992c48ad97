#pragma once

#include <absl/status/status.h>

#include <string>
#include <string_view>
#include <vector>

#include "trainer/config/config.h"

namespace distill::config {

// The first line of every dump, by which the reader knows it.
inline constexpr std::string_view kDumpHeader = "# The whole configuration of a distill run, defaults included.";

// The whole configuration as YAML that reads back equal. Keys without effect (Field::only_when) are left out.
std::string dump(const Config& config);

// Writes the dump to a file, whole or not at all.
absl::Status write_config(const Config& config, const std::string& path);

// A line "loss.beta: 0.5 -> 0.3" for every key that differs.
std::vector<std::string> differences(const Config& before, const Config& after);

} // namespace distill::config
