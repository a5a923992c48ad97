#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace distill::cli {

// Explains what is wrong with the first argument that no option or command has taken, and what was probably meant. The
// text is empty if every argument was taken. `app` has parsed a command line.
std::string explain_unexpected(const CLI::App& app);

} // namespace distill::cli
