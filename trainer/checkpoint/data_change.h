#pragma once

#include <string>
#include <vector>

#include "trainer/checkpoint/state.h"

namespace distill::checkpoint {

// Describes how data.train has changed since the checkpoint in `folder` was written, data set by data set with both
// counts, and gives the commands that begin a new run from its weights. Lines of an error, indented. `config`: of the
// run that saved, YAML.
std::string data_change(
    const std::string& folder, const std::string& config, const std::vector<DataSetSize>& then,
    const std::vector<DataSetSize>& now);

} // namespace distill::checkpoint
