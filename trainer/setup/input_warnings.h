#pragma once

#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/setup/inputs.h"

namespace distill::trainer {

// Lines about parts of a training run's configuration and data that are allowed, but probably not meant. The inputs are
// those of config::Purpose::kTrain.
std::vector<std::string> input_warnings(const config::Config& config, const Inputs& inputs);

} // namespace distill::trainer
