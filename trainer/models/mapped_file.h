#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

namespace distill::models {

// A file mapped read-only into memory.
class MappedFile {
 public:
  static absl::StatusOr<std::shared_ptr<const MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const {
    return path_;
  }
  const char* data() const {
    return data_;
  }
  int64_t size() const {
    return size_;
  }
  // The bytes have been used: their pages may go, so that reading a file does not make it stay in memory.
  void release(int64_t begin, int64_t end) const;

 private:
  MappedFile(std::string path, const char* data, int64_t size) : path_(std::move(path)), data_(data), size_(size) {}

  std::string path_;
  const char* data_ = nullptr;
  int64_t size_ = 0;
};

} // namespace distill::models
