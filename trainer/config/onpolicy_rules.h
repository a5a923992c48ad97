#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config.h"

namespace distill::config {

// Reports a problem of the first of `keys`; the others decide about it, too.
using ReportProblem =
    std::function<void(std::vector<std::string> keys, std::string expected, std::string found, std::string hint)>;

// The rules between the keys of an on-policy run. Does nothing for another run.
void check_on_policy(const Config& config, const ReportProblem& fail);

} // namespace distill::config
