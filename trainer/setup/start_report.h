#pragma once

#include <string>
#include <vector>

#include "trainer/setup/inputs.h"

namespace distill::trainer {

// Lines that describe a run that is about to start: device, models, data, length. The memory plan describes the loss
// head and its chunks.
std::vector<std::string> start_report(
    const config::Config& config, const Environment& environment, const Inputs& inputs);

// Lines about how the completions of some documents, which `name` says, are split by a teacher with a tokenizer of its
// own, and about special tokens that have no partner.
std::vector<std::string> alignment_lines(const std::string& name, const data::AlignmentStats& found);

} // namespace distill::trainer
