#pragma once

#include <string>

#include "trainer/checkpoint/state.h"

namespace distill::checkpoint {

// What became of data.train since the checkpoint in `folder` was written, data set by data set with both counts, and
// the commands that begin a new run from its weights. Lines of an error, indented.
std::string data_change(const std::string& folder, const RunInfo& saved, const RunIdentity& current);

} // namespace distill::checkpoint
