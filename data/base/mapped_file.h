#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace distill::base {

enum class Access {
  kNormal,
  kSequential,
  kRandom
};

// A regular file mapped read-only. It must not shrink while it is mapped (the kernel then sends SIGBUS): replace files
// by renaming a new one over them, which leaves the mapping intact.
class MappedFile {
 public:
  // An empty file has no bytes. Errors: NotFound, PermissionDenied, InvalidArgument (not a regular file, and all else),
  // each with the path.
  static absl::StatusOr<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const {
    return path_;
  }
  const uint8_t* bytes() const { // null: the file is empty
    return bytes_;
  }
  uint64_t size() const {
    return size_;
  }
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_), size_};
  }
  // Tells the kernel how bytes [begin, end) will be read. A hint: failure is not an error.
  void advise(uint64_t begin, uint64_t end, Access access) const;
  // Removes the whole pages within bytes [begin, end) from this process's memory, so that reading a file once does not
  // keep it resident. They are read again when they are used again.
  void release(uint64_t begin, uint64_t end) const;

 private:
  MappedFile(std::string path, const uint8_t* bytes, uint64_t size);

  std::string path_;
  const uint8_t* bytes_ = nullptr;
  uint64_t size_ = 0;
};

} // namespace distill::base
