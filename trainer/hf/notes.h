#pragma once

#include <string>
#include <vector>

namespace distill::hf {

// A line for the user about a model folder that is read otherwise than one of its files says.
struct Note {
  std::string text;
  bool is_warning = false; // something of the folder is not used, or a file contradicts another one
};
using Notes = std::vector<Note>;

} // namespace distill::hf
