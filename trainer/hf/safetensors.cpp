#include "trainer/hf/safetensors.h"

#include <cstring>

#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::hf {
namespace {

constexpr int64_t kReleaseChunk = int64_t{1} << 22; // elements after which the file's pages are released
constexpr uint64_t kBytesChunk = uint64_t{1} << 24; // bytes written at a time
constexpr int64_t kCopyChunk = int64_t{1} << 17; // elements converted at a time: still in a cache when they are checked

} // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  ASSIGN_OR_RETURN(base::MappedFile file, base::MappedFile::open(path));
  ASSIGN_OR_RETURN(
      SafetensorsHeader header, parse_safetensors_header(file.text(), static_cast<int64_t>(file.size()), path));
  return SafetensorsFile(std::move(file), std::move(header));
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = header_.tensors.find(name);
  return found == header_.tensors.end() ? nullptr : &found->second;
}

void SafetensorsFile::copy_elements(const TensorInfo& tensor, int64_t first, at::Tensor dst, NonFinite* bad) const {
  const std::optional<at::ScalarType> dtype = scalar_type_of(tensor.dtype);
  TORCH_CHECK(dtype.has_value(), path(), ": tensors of dtype ", tensor.dtype, " cannot be read");
  TORCH_CHECK(
      dst.is_cpu() && dst.is_contiguous() && first >= 0 && first + dst.numel() <= tensor.numel(), path(),
      ": elements [", first, ", ", first + dst.numel(), ") of ", tensor.numel(), " into a contiguous CPU tensor");
  const auto element = static_cast<int64_t>(at::elementSize(*dtype));
  const char* source = file_.text().data() + header_.data_begin + tensor.begin;
  at::Tensor flat = dst.view({-1});
  at::Tensor aligned; // a copy, for files whose data does not start at a multiple of the element's size
  int64_t released = 0;
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
    if (bad != nullptr) {
      add_non_finite(part, first + done, *bad);
    }
    if (const int64_t copied = done + count; copied - released >= kReleaseChunk || copied == flat.numel()) {
      const auto offset = static_cast<uint64_t>(source - file_.text().data() + (first + released) * element);
      file_.release(offset, offset + static_cast<uint64_t>((copied - released) * element));
      released = copied;
    }
  }
}

absl::Status SafetensorsFile::copy_bytes(
    const TensorInfo& tensor, const std::function<absl::Status(std::string_view bytes)>& write) const {
  const auto end = static_cast<uint64_t>(header_.data_begin + tensor.end);
  for (auto begin = static_cast<uint64_t>(header_.data_begin + tensor.begin); begin < end;) {
    const uint64_t next = std::min(end, begin + kBytesChunk);
    RETURN_IF_ERROR(write(file_.text().substr(begin, next - begin)));
    file_.release(begin, next);
    begin = next;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> safetensors_start(
    const std::string& path, std::vector<SafetensorsEntry>& entries, const std::map<std::string, std::string>& metadata,
    int64_t& data_bytes) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) {
    json["__metadata__"] = metadata;
  }
  int64_t offset = 0;
  for (auto& [name, tensor] : entries) {
    const std::optional<int64_t> bytes = element_bytes(tensor.dtype);
    if (!bytes || name == "__metadata__" || json.contains(name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor \"", name, "\" of dtype ", tensor.dtype,
          bytes ? " has a name that is taken" : " cannot be written"));
    }
    tensor.begin = offset;
    offset += tensor.numel() * *bytes;
    tensor.end = offset;
    json[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string header = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  header.append((8 - header.size() % 8) % 8, ' '); // the data starts aligned
  std::string start(8, '\0');
  for (size_t byte = 0; byte < 8; ++byte) {
    start[byte] = static_cast<char>(header.size() >> (8 * byte) & 0xff);
  }
  data_bytes = offset;
  return start + header;
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& path, std::vector<Entry> entries, const std::map<std::string, std::string>& metadata,
    base::ByteSink sink) {
  int64_t data_bytes = 0;
  ASSIGN_OR_RETURN(const std::string start, safetensors_start(path, entries, metadata, data_bytes));
  ASSIGN_OR_RETURN(base::DurableFile file, base::DurableFile::create(path));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(std::move(file), data_bytes, std::move(sink)));
  RETURN_IF_ERROR(writer->write(start));
  return writer;
}

absl::Status SafetensorsWriter::write(std::string_view bytes) {
  if (sink_) {
    sink_(bytes.data(), bytes.size());
  }
  return file_.write(bytes);
}

absl::Status SafetensorsWriter::append(const at::Tensor& values) {
  TORCH_CHECK(values.is_cpu() && values.is_contiguous(), file_.path(), ": a contiguous CPU tensor is expected");
  return append_bytes({static_cast<const char*>(values.const_data_ptr()), values.nbytes()});
}

absl::Status SafetensorsWriter::append_bytes(std::string_view bytes) {
  const int64_t written = written_ + static_cast<int64_t>(bytes.size());
  TORCH_CHECK(written <= data_bytes_, file_.path(), ": more data than announced: ", written, " of ", data_bytes_);
  written_ = written;
  return write(bytes);
}

absl::Status SafetensorsWriter::finish() {
  TORCH_CHECK(written_ == data_bytes_, file_.path(), ": ", written_, " bytes written of ", data_bytes_, " announced");
  return file_.close();
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
  ASSIGN_OR_RETURN(
      std::unique_ptr<SafetensorsWriter> writer, SafetensorsWriter::create(path, std::move(entries), metadata));
  for (const auto& [name, tensor] : tensors) {
    RETURN_IF_ERROR(writer->append(tensor.cpu().contiguous()));
  }
  return writer->finish();
}

absl::StatusOr<SafetensorsContents> read_safetensors(const std::string& path) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  SafetensorsContents contents;
  contents.metadata = file.header().metadata;
  for (const auto& [name, info] : file.header().tensors) {
    const std::optional<at::ScalarType> dtype = scalar_type_of(info.dtype);
    if (!dtype) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", name, "\": dtype ", info.dtype, " cannot be read"));
    }
    at::Tensor tensor = at::empty(info.shape, *dtype);
    file.copy_elements(info, 0, tensor);
    contents.tensors.emplace(name, std::move(tensor));
  }
  return contents;
}

} // namespace distill::hf
