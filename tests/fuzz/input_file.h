#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// A fuzz program's input as text, or as a file.
namespace distill::fuzz {

inline std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Own folder in memory, for readers of files; removed at the end.
const std::string& own_folder();

// The bytes as a file in this folder, for readers that map one. One at a time. Returns its path.
std::string file_with(const uint8_t* data, size_t size, const char* name = "file");

} // namespace distill::fuzz
