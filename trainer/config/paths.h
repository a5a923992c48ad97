#pragma once

#include <vector>

#include "trainer/config/rules.h"

namespace distill::config {

// Checks that the files and folders which the configuration names exist and are of the right kind: model folders with
// config.json and weights, tokenizers, token shards. Their content is not read.
std::vector<Problem> check_paths(const Config& config, const CheckContext& context);

} // namespace distill::config
