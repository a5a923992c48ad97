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

// The tensors of each unit in a rank's file, in this order.
inline constexpr const char* kUnitTensors[] = {"master", "exp_avg", "exp_avg_sq"};
std::string tensor_name(int64_t unit, const char* what); // "unit.3.master"

// Reads ranges of the units' flat buffers from a checkpoint that any number of ranks may have written. Verifies the
// checksums of all bytes that it reads. Errors are DataLoss and name the file.
class StateReader {
 public:
  StateReader(std::string folder, const Index& index) : folder_(std::move(folder)), index_(index) {}

  // Reads elements [begin, begin + dst.numel()) of a unit's flat buffer; sets elements past the unit's end to zero.
  // dst: one-dimensional, contiguous, on any device; its dtype is the one that must be stored.
  absl::Status read(int64_t unit, const char* what, int64_t begin, at::Tensor dst);

  // Reads a whole tensor of one rank's file: the step counter or a generator's state. Returns an undefined tensor if
  // the file has none of this name.
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
  std::map<int64_t, File> open_; // at most kOpenFiles
  at::Tensor staging_; // page-locked, for tensors on a GPU
};

} // namespace distill::checkpoint
