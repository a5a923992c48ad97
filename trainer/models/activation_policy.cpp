#include "trainer/models/activation_policy.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace distill::models {

std::string policies_text(const std::vector<ActivationPolicy>& policies) {
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
