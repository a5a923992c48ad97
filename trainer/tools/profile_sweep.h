#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

#include "trainer/tools/profile_memory.h"

namespace distill::trainer {

struct SweepReport {
  std::string table; // one row for each value, for people
  std::string json; // the report.json of each value that ran
};

// Profiles the configuration once for each value of one key, `sweep` being "section.key=VALUE,VALUE,...". Each value
// runs in a process of its own, so that none sees another's memory, with its log and report.json below options.folder;
// the table is also written to sweep.txt there. A value that fails while running, for instance out of memory, is a row
// of the table; InvalidArgument: a value that the configuration refuses, or a `sweep` of another form.
absl::StatusOr<SweepReport> profile_sweep(
    const std::string& config_file, const std::vector<std::string>& overrides, const std::string& sweep,
    const ProfileOptions& options);

} // namespace distill::trainer
