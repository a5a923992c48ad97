#pragma once

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <string>
#include <vector>

#include "data/base/enum_names.h"

namespace distill::models {

// The policies of blocks in forward order, "recompute*24,keep*8"; a single name where all blocks have the same policy.
template <base::NamedEnum Policy>
std::string policies_text(const std::vector<Policy>& policies) {
  std::vector<std::string> runs;
  for (size_t i = 0; i < policies.size();) {
    size_t end = i;
    while (end < policies.size() && policies[end] == policies[i]) {
      ++end;
    }
    const char* name = base::enum_name(policies[i]);
    runs.push_back(end - i == 1 ? name : absl::StrCat(name, "*", end - i));
    i = end;
  }
  return runs.size() == 1 ? base::enum_name(policies[0]) : absl::StrJoin(runs, ",");
}

} // namespace distill::models
