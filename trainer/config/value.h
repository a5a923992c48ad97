#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "trainer/config/field.h"
#include "trainer/config/problem.h"

namespace distill::config {

// A node in words, for "found ...": "\"abc\"", "1.5", "a list", "nothing".
std::string describe(const YAML::Node& node);

// Writes the node's value into the field's member, or appends what is wrong with it. `place` gives file, line and key.
void assign(
    const Field& field, const YAML::Node& node, const Problem& place, Config& config, std::vector<Problem>& problems);

} // namespace distill::config
