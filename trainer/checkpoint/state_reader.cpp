#include "trainer/checkpoint/state_reader.h"

#include "data/base/status_macros.h"

namespace distill::checkpoint {
namespace {

constexpr size_t kOpenFiles = 16; // each has a block in memory
constexpr int64_t kStagingBytes = 16 * kBlockBytes;
constexpr int64_t kMaxHeaderBytes = int64_t{128} << 20; // more than parse_safetensors_header accepts

} // namespace

std::string tensor_name(int64_t unit, const char* what) {
  return absl::StrCat("unit.", unit, ".", what);
}

absl::StatusOr<StateReader::File*> StateReader::open(int64_t index) {
  if (const auto found = open_.find(index); found != open_.end()) {
    return &found->second;
  }
  const ShardFile& entry = index_.files[static_cast<size_t>(index)];
  ASSIGN_OR_RETURN(auto bytes, VerifiedFile::open(file_path(index), entry.bytes, entry.block_sums));
  // The first eight bytes are the header's length; parse_safetensors_header checks the rest.
  std::vector<char> start(8);
  if (entry.bytes < 8) {
    return absl::DataLossError(
        absl::StrCat(bytes->path(), ": ", entry.bytes, " bytes are too few for a safetensors file"));
  }
  RETURN_IF_ERROR(bytes->read(0, 8, start.data()));
  uint64_t header_bytes = 0;
  for (size_t byte = 8; byte-- > 0;) {
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(start[byte]);
  }
  const auto size = static_cast<int64_t>(
      std::min({header_bytes, static_cast<uint64_t>(entry.bytes - 8), static_cast<uint64_t>(kMaxHeaderBytes)}));
  start.resize(8 + static_cast<size_t>(size));
  RETURN_IF_ERROR(bytes->read(8, size, start.data() + 8));
  auto header = hf::parse_safetensors_header({start.data(), start.size()}, entry.bytes, bytes->path());
  if (!header.ok()) {
    return absl::DataLossError(header.status().message());
  }
  if (open_.size() >= kOpenFiles) {
    open_.erase(open_.begin());
  }
  return &open_.emplace(index, File{std::move(bytes), *std::move(header)}).first->second;
}

absl::Status StateReader::read_elements(File& file, const hf::TensorInfo& tensor, int64_t first, at::Tensor dst) {
  const auto element = static_cast<int64_t>(dst.element_size());
  const int64_t offset = file.header.data_begin + tensor.begin + first * element;
  if (dst.is_cpu()) {
    return file.bytes->read(offset, dst.numel() * element, static_cast<char*>(dst.mutable_data_ptr()));
  }
  const int64_t step = kStagingBytes / element;
  if (!staging_.defined()) {
    staging_ = at::empty({kStagingBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
  }
  for (int64_t done = 0; done < dst.numel(); done += step) {
    const int64_t count = std::min(step, dst.numel() - done);
    at::Tensor staged = staging_.narrow(0, 0, count * element);
    RETURN_IF_ERROR(
        file.bytes->read(offset + done * element, count * element, static_cast<char*>(staged.mutable_data_ptr())));
    dst.narrow(0, done, count).copy_(staged.view(dst.scalar_type()));
  }
  return absl::OkStatus();
}

absl::Status StateReader::read(int64_t unit, const char* what, int64_t begin, at::Tensor dst) {
  const int64_t end = std::min(begin + dst.numel(), index_.units[static_cast<size_t>(unit)].numel);
  const std::string name = tensor_name(unit, what);
  ASSIGN_OR_RETURN(const std::string dtype, hf::safetensors_dtype(dst.scalar_type()));
  for (size_t i = 0; i < index_.files.size(); ++i) {
    const Range& range = index_.files[i].ranges[static_cast<size_t>(unit)];
    const int64_t from = std::max(begin, range.begin), to = std::min(end, range.begin + range.numel);
    if (from >= to) {
      continue;
    }
    ASSIGN_OR_RETURN(File* const file, open(static_cast<int64_t>(i)));
    const auto found = file->header.tensors.find(name);
    const bool fits =
        found != file->header.tensors.end() && found->second.dtype == dtype && found->second.numel() == range.numel;
    if (!fits) {
      return absl::DataLossError(absl::StrCat(
          file->bytes->path(), ": tensor ", name, ": expected ", dtype, " with ", range.numel, " elements, found ",
          found == file->header.tensors.end() ? "none"
                                              : absl::StrCat(found->second.dtype, " with ", found->second.numel())));
    }
    RETURN_IF_ERROR(read_elements(*file, found->second, from - range.begin, dst.narrow(0, from - begin, to - from)));
  }
  const int64_t held = std::clamp<int64_t>(end - begin, 0, dst.numel());
  if (held < dst.numel()) {
    dst.narrow(0, held, dst.numel() - held).zero_();
  }
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> StateReader::read_tensor(int64_t index, const std::string& name) {
  ASSIGN_OR_RETURN(File* const file, open(index));
  const auto found = file->header.tensors.find(name);
  if (found == file->header.tensors.end()) {
    return at::Tensor();
  }
  const auto dtype = hf::scalar_type_of(found->second.dtype);
  if (!dtype) {
    return absl::DataLossError(
        absl::StrCat(file->bytes->path(), ": tensor ", name, ": dtype ", found->second.dtype, " cannot be read"));
  }
  at::Tensor tensor = at::empty(found->second.shape, *dtype); // no larger than the file, which has been checked
  absl::Status status = read_elements(*file, found->second, 0, tensor);
  return status.ok() ? absl::StatusOr<at::Tensor>(std::move(tensor)) : status;
}

} // namespace distill::checkpoint
