#pragma once

#include <absl/types/span.h>

#include <string>
#include <string_view>

namespace distill::config {

// The key that the author of the unknown key `name` probably meant, as "section.key", or the name of a section; empty:
// no suggestion. `section` is the section that the key was found in; empty: the top level. Names that other trainers
// use are known.
std::string closest_key(const std::string& section, const std::string& name);

// The one of `names`, the values of a choice, that was probably meant; empty: no suggestion.
std::string closest_name(const std::string& name, absl::Span<const std::string> names);

// The least number of insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`. Some number
// above `limit` if it exceeds `limit`, which is usually found without comparing letter by letter.
size_t edit_distance(std::string_view a, std::string_view b, size_t limit);

} // namespace distill::config
