#pragma once

#include <string>

namespace distill::config {

// Every key with type, default, unit, range and meaning, grouped by section, for --help-config.
std::string help_text();

} // namespace distill::config
