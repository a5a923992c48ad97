#pragma once

#include <string>
#include <vector>

#include "trainer/setup/inputs.h"

namespace distill::trainer {

// What a run is about to do, a line each: device, models, data, loss and its chunks, length.
std::vector<std::string> start_report(
    const config::Config& config, const Environment& environment, const Inputs& inputs);

} // namespace distill::trainer
