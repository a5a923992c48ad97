#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

// XXH3 with 64 bits: detects damaged files, gives no protection against an attacker.
namespace distill::base {

uint64_t checksum(const void* data, size_t size);

// The checksum of bytes that are given in pieces.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;

  void update(const void* data, size_t size);
  uint64_t value() const; // of all bytes so far
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// 16 hexadecimal digits, and the value of such a text; nullopt for any other text.
std::string checksum_text(uint64_t value);
std::optional<uint64_t> parse_checksum(std::string_view text);

// Receives every byte of a file in order while it is written.
using ByteSink = std::function<void(const char* data, size_t size)>;

// Is called with the number of bytes that have been read since its last call.
using ReadProgress = std::function<void(int64_t bytes)>;

// The checksum of a whole file. Errors: NotFound or DataLoss, which name the file.
absl::StatusOr<uint64_t> file_checksum(const std::string& path, const ReadProgress& progress = {});

} // namespace distill::base
