#pragma once

#include <string>
#include <vector>

namespace distill::hf {

// A line for the user about a model folder that is read in another way than one of its files asks for.
struct Note {
  std::string text;
  bool is_warning = false; // something of the folder is not used, or a file contradicts another one
};
using Notes = std::vector<Note>;

} // namespace distill::hf
