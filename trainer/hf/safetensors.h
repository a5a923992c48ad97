#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/base/checksum.h"
#include "trainer/models/mapped_file.h"

// The safetensors format: 8 bytes little-endian header length, a JSON header, the tensors' bytes one after the other.
// Errors name the file and the tensor, what was expected and what was found.
namespace distill::hf {

struct TensorInfo {
  std::string dtype; // as the format spells it: F32, BF16, I64, ...
  std::vector<int64_t> shape;
  int64_t begin = 0; // bytes from the start of the data
  int64_t end = 0;

  int64_t numel() const;
};

struct SafetensorsHeader {
  std::map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
  int64_t data_begin = 0; // bytes from the start of the file
};

// ATen's dtype, or nothing where ATen has no such type.
std::optional<at::ScalarType> scalar_type_of(std::string_view safetensors_dtype);
// The format's spelling; InvalidArgumentError for dtypes it cannot hold.
absl::StatusOr<std::string> safetensors_dtype(at::ScalarType dtype);

// Checks a header that is not trusted: its length, JSON, names, dtypes, shapes, and that the tensors' bytes fill the
// file without holes and overlaps. `start` holds at least the header; `file_bytes` is the whole file's size.
absl::StatusOr<SafetensorsHeader> parse_safetensors_header(
    std::string_view start, int64_t file_bytes, const std::string& source);

// A mapped file whose header has been checked.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> open(const std::string& path);

  const std::string& path() const {
    return file_->path();
  }
  const SafetensorsHeader& header() const {
    return header_;
  }
  const TensorInfo* find(const std::string& name) const; // null: no such tensor

  // Elements [first, first + dst.numel()) of a tensor, converted to dst's dtype; dst is a contiguous CPU tensor. The
  // pages read are released afterwards.
  void copy_elements(const TensorInfo& tensor, int64_t first, at::Tensor dst) const;

 private:
  std::shared_ptr<const models::MappedFile> file_;
  SafetensorsHeader header_;
};

// Writes a file tensor by tensor, in the order announced. Nothing is complete until finish() has returned ok.
class SafetensorsWriter {
 public:
  using Entry = std::pair<std::string, TensorInfo>; // offsets are filled in by the writer
  // `sink`, where there is one, sees every byte of the file in order.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> create(
      const std::string& path, std::vector<Entry> entries, const std::map<std::string, std::string>& metadata,
      base::ByteSink sink = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of the data: a contiguous CPU tensor in the dtype announced.
  absl::Status append(const at::Tensor& values);
  // Checks that every byte announced has come, syncs and closes.
  absl::Status finish();

 private:
  SafetensorsWriter(std::string path, int fd, int64_t data_bytes, base::ByteSink sink)
      : path_(std::move(path)), fd_(fd), data_bytes_(data_bytes), sink_(std::move(sink)) {}
  absl::Status write(const char* data, int64_t size);

  std::string path_;
  int fd_ = -1;
  int64_t data_bytes_ = 0;
  int64_t written_ = 0; // of the data
  base::ByteSink sink_;
};

// Named tensors at once, for checkpoints and tools. Tensors may lie on any device and be strided; the file is synced.
absl::Status write_safetensors(
    const std::string& path, const std::map<std::string, at::Tensor>& tensors,
    const std::map<std::string, std::string>& metadata = {});

struct SafetensorsContents {
  std::map<std::string, at::Tensor> tensors; // copies, on the CPU
  std::map<std::string, std::string> metadata;
};
absl::StatusOr<SafetensorsContents> read_safetensors(const std::string& path);

} // namespace distill::hf
