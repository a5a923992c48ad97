#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/base/checksum.h"
#include "data/base/durable_file.h"
#include "data/base/mapped_file.h"
#include "trainer/hf/non_finite.h"

// The safetensors format has the length of the header (8 bytes, little-endian), a JSON header, and the tensors' bytes
// one after the other. Errors name the file and the tensor, what was expected and what was found.
namespace distill::hf {

struct TensorInfo {
  std::string dtype; // in the format's spelling: F32, BF16, I64, ...
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

// ATen's dtype; nullopt: ATen has no such type.
std::optional<at::ScalarType> scalar_type_of(std::string_view safetensors_dtype);
// The bytes of an element; nullopt: the format does not have this dtype.
std::optional<int64_t> element_bytes(std::string_view safetensors_dtype);
// The format's spelling of a dtype. InvalidArgument: the format does not have it.
absl::StatusOr<std::string> safetensors_dtype(at::ScalarType dtype);

// Reads a header that is not trusted. Checks its length, JSON, names, dtypes and shapes, and that the tensors' bytes
// fill the file without holes and overlaps. `start`: the file's first bytes, header included; `file_bytes`: its size.
absl::StatusOr<SafetensorsHeader> parse_safetensors_header(
    std::string_view start, int64_t file_bytes, const std::string& source);

// A mapped safetensors file with a valid header.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> open(const std::string& path);

  const std::string& path() const {
    return file_.path();
  }
  const SafetensorsHeader& header() const {
    return header_;
  }
  const TensorInfo* find(const std::string& name) const; // null: no such tensor

  // Copies elements [first, first + dst.numel()) of a tensor to `dst`, a contiguous CPU tensor, converted to its dtype.
  // Releases the file's pages afterwards. `bad`: receives those that are not finite after the conversion, by their
  // index in the tensor.
  void copy_elements(const TensorInfo& tensor, int64_t first, at::Tensor dst, NonFinite* bad = nullptr) const;
  // Gives the bytes of a tensor of any dtype, as they are, to `write`, part by part. Releases the file's pages.
  absl::Status copy_bytes(
      const TensorInfo& tensor, const std::function<absl::Status(std::string_view bytes)>& write) const;

 private:
  SafetensorsFile(base::MappedFile file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}

  base::MappedFile file_;
  SafetensorsHeader header_;
};

using SafetensorsEntry = std::pair<std::string, TensorInfo>; // name, dtype and shape of a tensor to be written

// The first bytes of a file with these tensors, one after the other, up to the data. Sets their offsets, and
// `data_bytes` to the bytes of all of them. InvalidArgument, which names `path`: a name or a dtype that cannot be
// written.
absl::StatusOr<std::string> safetensors_start(
    const std::string& path, std::vector<SafetensorsEntry>& entries, const std::map<std::string, std::string>& metadata,
    int64_t& data_bytes);

// Writes a file tensor by tensor. The file is complete, and on the disk, once finish() has returned ok.
class SafetensorsWriter {
 public:
  using Entry = SafetensorsEntry; // the writer computes the offsets
  // `sink`, if there is one, receives every byte of the file in order.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> create(
      const std::string& path, std::vector<Entry> entries, const std::map<std::string, std::string>& metadata,
      base::ByteSink sink = {});
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // Writes the next tensor of `entries`, or the next part of one. A contiguous CPU tensor of the entry's dtype.
  absl::Status append(const at::Tensor& values);
  absl::Status append_bytes(std::string_view bytes);
  // Checks that all bytes have been written, syncs and closes.
  absl::Status finish();

 private:
  SafetensorsWriter(base::DurableFile file, int64_t data_bytes, base::ByteSink sink)
      : file_(std::move(file)), data_bytes_(data_bytes), sink_(std::move(sink)) {}
  absl::Status write(std::string_view bytes);

  base::DurableFile file_;
  int64_t data_bytes_ = 0;
  int64_t written_ = 0; // of the data
  base::ByteSink sink_;
};

// Writes tensors that may be on any device and strided, and syncs the file.
absl::Status write_safetensors(
    const std::string& path, const std::map<std::string, at::Tensor>& tensors,
    const std::map<std::string, std::string>& metadata = {});

struct SafetensorsContents {
  std::map<std::string, at::Tensor> tensors; // copies, on the CPU
  std::map<std::string, std::string> metadata;
};
absl::StatusOr<SafetensorsContents> read_safetensors(const std::string& path);

} // namespace distill::hf
