#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "trainer/checkpoint/index.h"
#include "trainer/checkpoint/verified_file.h"
#include "trainer/hf/safetensors.h"

namespace distill::checkpoint {

// What a rank's file holds of each unit, in this order.
inline constexpr const char* kUnitTensors[] = {"master", "exp_avg", "exp_avg_sq"};
std::string tensor_name(int64_t unit, const char* what); // "unit.3.master"

// Reads a checkpoint's tensors by ranges of the units' flat buffers, whatever the number of ranks that wrote them.
// Every byte's checksum is compared. Errors are DataLoss and name the file.
class StateReader {
 public:
  StateReader(std::string folder, const Index& index) : folder_(std::move(folder)), index_(index) {}

  // Elements [begin, begin + dst.numel()) of a unit's flat fp32 buffer; zeros past the unit's end. dst: fp32,
  // one-dimensional, contiguous, on any device.
  absl::Status read(int64_t unit, const char* what, int64_t begin, at::Tensor dst);

  // A whole tensor of one rank's file, by name: the step counter, a generator's state. Undefined: the file has none.
  absl::StatusOr<at::Tensor> read_tensor(int64_t file, const std::string& name);

  std::string file_path(int64_t file) const {
    return folder_ + "/" + index_.files[static_cast<size_t>(file)].name;
  }

 private:
  struct File {
    std::unique_ptr<VerifiedFile> bytes;
    hf::SafetensorsHeader header;
  };
  absl::StatusOr<File*> open(int64_t index);
  absl::Status read_elements(File& file, const hf::TensorInfo& tensor, int64_t first, at::Tensor dst);

  std::string folder_;
  const Index& index_;
  std::map<int64_t, File> open_; // a few of them
  at::Tensor staging_; // for devices
};

} // namespace distill::checkpoint
