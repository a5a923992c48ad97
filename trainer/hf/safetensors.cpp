#include "trainer/hf/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "data/base/json.h"

namespace distill::hf {
namespace {

constexpr int64_t kCopyChunk = int64_t{1} << 22; // elements converted at a time

absl::Status system_error(const std::string& path, const char* action) {
  return absl::InternalError(absl::StrCat(path, ": cannot ", action, ": ", std::strerror(errno)));
}

} // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  absl::StatusOr<std::shared_ptr<const models::MappedFile>> file = models::MappedFile::open(path);
  if (!file.ok()) {
    return file.status();
  }
  const std::string_view bytes((*file)->data(), static_cast<size_t>((*file)->size()));
  absl::StatusOr<SafetensorsHeader> header = parse_safetensors_header(bytes, (*file)->size(), path);
  if (!header.ok()) {
    return header.status();
  }
  SafetensorsFile result;
  result.file_ = std::move(*file);
  result.header_ = std::move(*header);
  return result;
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  return found == header_.tensors.end() ? nullptr : &found->second;
}

void SafetensorsFile::copy_elements(const TensorInfo& tensor, int64_t first, at::Tensor dst) const {
  const std::optional<at::ScalarType> dtype = scalar_type_of(tensor.dtype);
  TORCH_CHECK(dtype.has_value(), path(), ": tensors of dtype ", tensor.dtype, " cannot be read");
  TORCH_CHECK(
      dst.is_cpu() && dst.is_contiguous() && first >= 0 && first + dst.numel() <= tensor.numel(), path(),
      ": elements [", first, ", ", first + dst.numel(), ") of ", tensor.numel(), " into a contiguous CPU tensor");
  const auto element = static_cast<int64_t>(at::elementSize(*dtype));
  const char* source = file_->data() + header_.data_begin + tensor.begin;
  at::Tensor flat = dst.view({-1});
  at::Tensor aligned; // only for files whose data does not start at a multiple of the element's size
  for (int64_t done = 0; done < flat.numel(); done += kCopyChunk) {
    const int64_t count = std::min(kCopyChunk, flat.numel() - done);
    const char* begin = source + (first + done) * element;
    at::Tensor part = flat.narrow(0, done, count);
    if (part.scalar_type() == *dtype) {
      std::memcpy(part.mutable_data_ptr(), begin, static_cast<size_t>(count * element));
    } else if (reinterpret_cast<uintptr_t>(begin) % static_cast<uintptr_t>(element) != 0) {
      aligned = aligned.defined() ? aligned : at::empty({std::min(kCopyChunk, flat.numel())}, *dtype);
      std::memcpy(aligned.mutable_data_ptr(), begin, static_cast<size_t>(count * element));
      part.copy_(aligned.narrow(0, 0, count));
    } else {
      part.copy_(at::from_blob(const_cast<char*>(begin), {count}, *dtype));
    }
    const int64_t offset = begin - file_->data();
    file_->release(offset, offset + count * element);
  }
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& path, std::vector<Entry> entries, const std::map<std::string, std::string>& metadata,
    base::ByteSink sink) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    json["__metadata__"] = metadata;
  }
  int64_t offset = 0;
  for (auto& [name, tensor] : entries) {
    const std::optional<at::ScalarType> dtype = scalar_type_of(tensor.dtype);
    if (!dtype || name == "__metadata__" || json.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor \"", name, "\" of dtype ", tensor.dtype,
          dtype ? " has a name that is taken" : " cannot be written"));
    }
    tensor.begin = offset;
    offset += tensor.numel() * static_cast<int64_t>(at::elementSize(*dtype));
    tensor.end = offset;
    json[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string header = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  header.append((8 - header.size() % 8) % 8, ' '); // the data starts aligned
  std::string start(8, '\0');
  for (size_t byte = 0; byte < 8; ++byte) {
    start[byte] = static_cast<char>(header.size() >> (8 * byte) & 0xff);
  }
  start += header;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) {
    return system_error(path, "create");
  }
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(path, fd, offset, std::move(sink)));
  if (absl::Status status = writer->write(start.data(), static_cast<int64_t>(start.size())); !status.ok()) {
    return status;
  }
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

absl::Status SafetensorsWriter::write(const char* data, int64_t size) {
  if (sink_) {
    sink_(data, static_cast<size_t>(size));
  }
  while (size > 0) {
    const ssize_t count = ::write(fd_, data, static_cast<size_t>(std::min<int64_t>(size, int64_t{1} << 30)));
    if (count < 0 && errno != EINTR) {
      return system_error(path_, "write");
    }
    data += std::max<ssize_t>(count, 0);
    size -= std::max<ssize_t>(count, 0);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::append(const at::Tensor& values) {
  TORCH_CHECK(values.is_cpu() && values.is_contiguous(), path_, ": a contiguous CPU tensor is expected");
  const auto bytes = static_cast<int64_t>(values.nbytes());
  TORCH_CHECK(
      written_ + bytes <= data_bytes_, path_, ": more data than announced: ", written_ + bytes, " of ", data_bytes_);
  written_ += bytes;
  return write(static_cast<const char*>(values.const_data_ptr()), bytes);
}

absl::Status SafetensorsWriter::finish() {
  TORCH_CHECK(written_ == data_bytes_, path_, ": ", written_, " bytes written of ", data_bytes_, " announced");
  const int fd = std::exchange(fd_, -1);
  const bool synced = ::fsync(fd) == 0;
  if (::close(fd) != 0 || !synced) {
    return system_error(path_, "sync");
  }
  return absl::OkStatus();
}

absl::Status write_safetensors(
    const std::string& path, const std::map<std::string, at::Tensor>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) {
    absl::StatusOr<std::string> dtype = safetensors_dtype(tensor.scalar_type());
    if (!dtype.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", name, "\": ", dtype.status().message()));
    }
    entries.emplace_back(name, TensorInfo{std::move(*dtype), tensor.sizes().vec(), 0, 0});
  }
  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> writer =
      SafetensorsWriter::create(path, std::move(entries), metadata);
  if (!writer.ok()) {
    return writer.status();
  }
  for (const auto& [name, tensor] : tensors) {
    if (absl::Status status = (*writer)->append(tensor.cpu().contiguous()); !status.ok()) {
      return status;
    }
  }
  return (*writer)->finish();
}

absl::StatusOr<SafetensorsContents> read_safetensors(const std::string& path) {
  absl::StatusOr<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file.ok()) {
    return file.status();
  }
  SafetensorsContents contents;
  contents.metadata = file->header().metadata;
  for (const auto& [name, info] : file->header().tensors) {
    const std::optional<at::ScalarType> dtype = scalar_type_of(info.dtype);
    if (!dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", name, "\": dtype ", info.dtype, " cannot be read"));
    }
    at::Tensor tensor = at::empty(info.shape, *dtype);
    file->copy_elements(info, 0, tensor);
    contents.tensors.emplace(name, std::move(tensor));
  }
  return contents;
}

} // namespace distill::hf
