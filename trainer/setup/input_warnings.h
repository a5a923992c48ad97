#pragma once

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/setup/inputs.h"

namespace distill::trainer {

// What of a training run's configuration and data is allowed and probably not meant: a line each. The inputs are those
// of config::Purpose::kTrain.
std::vector<std::string> input_warnings(const config::Config& config, const Inputs& inputs);

} // namespace distill::trainer
