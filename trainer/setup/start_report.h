#pragma once

#include <string>
#include <vector>

#include "trainer/setup/inputs.h"

namespace distill::trainer {

// Lines that describe a run that is about to start: device, models, data, length. The memory plan describes the loss
// head and its chunks.
std::vector<std::string> start_report(
    const config::Config& config, const Environment& environment, const Inputs& inputs);

} // namespace distill::trainer
