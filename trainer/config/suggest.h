#pragma once

#include <absl/types/span.h>

#include <string>
#include <string_view>

namespace distill::config {

// The key that the author of an unknown one probably meant, dotted, or just a section's name; empty: no idea.
// `section` is where the name stands: empty at the top of the file. Knows the names that other trainers use.
std::string closest_key(const std::string& section, const std::string& name);

// The same among the names of a choice.
std::string closest_name(const std::string& name, absl::Span<const std::string> names);

// Insertions, deletions, substitutions and swaps of neighbours that turn one into the other. Where these are more than
// `limit`, some number above it: most names are told apart without comparing them letter by letter.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

} // namespace distill::config
