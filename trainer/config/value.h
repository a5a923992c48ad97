#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "trainer/config/field.h"
#include "trainer/config/problem.h"

namespace distill::config {

// The node after "found": "\"abc\"", "1.5", "a list", "nothing".
std::string describe(const YAML::Node& node);

// Sets the field's member of `config` to the node's value, or appends a problem. `place` has the problem's file, line
// and key.
void assign(
    const Field& field, const YAML::Node& node, const Problem& place, Config& config, std::vector<Problem>& problems);

} // namespace distill::config
