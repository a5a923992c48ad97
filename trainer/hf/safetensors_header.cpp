#include <absl/strings/match.h>

#include "data/base/json.h"
#include "data/base/status_macros.h"
#include "trainer/hf/safetensors.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxHeaderBytes = 100'000'000; // the reference implementation's limit
constexpr int kHeaderDepth = 3; // file, tensor, shape
constexpr size_t kMaxDims = 64;

struct Dtype {
  const char* name;
  int64_t bytes;
  std::optional<at::ScalarType> scalar;
};

const std::vector<Dtype>& dtypes() {
  static const std::vector<Dtype> all{
      {"F32", 4, at::kFloat},
      {"BF16", 2, at::kBFloat16},
      {"F16", 2, at::kHalf},
      {"F64", 8, at::kDouble},
      {"I64", 8, at::kLong},
      {"I32", 4, at::kInt},
      {"I16", 2, at::kShort},
      {"I8", 1, at::kChar},
      {"U8", 1, at::kByte},
      {"BOOL", 1, at::kBool},
      {"U16", 2, at::kUInt16},
      {"U32", 4, at::kUInt32},
      {"U64", 8, at::kUInt64},
      {"F8_E4M3", 1, at::kFloat8_e4m3fn},
      {"F8_E5M2", 1, at::kFloat8_e5m2},
      {"F8_E8M0", 1, std::nullopt},
      {"C64", 8, at::kComplexFloat}};
  return all;
}

const Dtype* find_dtype(std::string_view name) {
  for (const Dtype& dtype : dtypes()) {
    if (name == dtype.name) {
      return &dtype;
    }
  }
  return nullptr;
}

std::string brief(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 80) {
    text.replace(80, std::string::npos, "...");
  }
  return text;
}

// Reads a non-negative integer of 63 bits. An error shows the value that was found.
absl::StatusOr<int64_t> as_size(const Json& value) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return absl::InvalidArgumentError(absl::StrCat("a non-negative integer is expected, found ", brief(value)));
  }
  return static_cast<int64_t>(value.get<uint64_t>());
}

absl::StatusOr<std::vector<int64_t>> as_sizes(const Json& value, size_t max_count) {
  if (!value.is_array() || value.size() > max_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("an array of at most ", max_count, " sizes is expected, found ", brief(value)));
  }
  std::vector<int64_t> sizes;
  for (const Json& element : value) {
    ASSIGN_OR_RETURN(const int64_t size, as_size(element));
    sizes.push_back(size);
  }
  return sizes;
}

absl::StatusOr<int64_t> byte_count(const TensorInfo& tensor, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  for (const int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(tensor.shape, ", "), "] does not fit 64 bits"));
    }
  }
  return bytes;
}

absl::StatusOr<TensorInfo> parse_tensor(const Json& entry, int64_t data_bytes) {
  if (!entry.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("an object is expected, found ", brief(entry)));
  }
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown key \"", key, "\"; dtype, shape, data_offsets are expected"));
    }
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(key)) {
      return absl::InvalidArgumentError(absl::StrCat("missing key \"", key, "\""));
    }
  }
  TensorInfo tensor;
  const Json& dtype_name = entry["dtype"];
  const Dtype* dtype = dtype_name.is_string() ? find_dtype(dtype_name.get_ref<const std::string&>()) : nullptr;
  if (dtype == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("unknown dtype ", brief(dtype_name)));
  }
  tensor.dtype = dtype->name;
  absl::StatusOr<std::vector<int64_t>> shape = as_sizes(entry["shape"], kMaxDims);
  if (!shape.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("shape: ", shape.status().message()));
  }
  tensor.shape = std::move(*shape);
  const absl::StatusOr<std::vector<int64_t>> offsets = as_sizes(entry["data_offsets"], 2);
  if (!offsets.ok() || offsets->size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets: two non-negative integers are expected, found ", brief(entry["data_offsets"])));
  }
  tensor.begin = (*offsets)[0];
  tensor.end = (*offsets)[1];
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data_offsets [", tensor.begin, ", ", tensor.end, "] do not lie within the file's ", data_bytes,
        " bytes of data (is the file truncated?)"));
  }
  ASSIGN_OR_RETURN(const int64_t bytes, byte_count(tensor, dtype->bytes));
  if (bytes != tensor.end - tensor.begin) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shape [", absl::StrJoin(tensor.shape, ", "), "] of ", tensor.dtype, " takes ", bytes,
        " bytes, but data_offsets hold ", tensor.end - tensor.begin));
  }
  return tensor;
}

absl::Status check_coverage(const SafetensorsHeader& header, int64_t data_bytes) {
  std::vector<std::pair<const std::string*, const TensorInfo*>> order;
  order.reserve(header.tensors.size());
  for (const auto& [name, tensor] : header.tensors) {
    order.emplace_back(&name, &tensor);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  int64_t next = 0;
  for (const auto& [name, tensor] : order) {
    if (tensor->begin != next) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", *name, "\": starts at byte ", tensor->begin, " of the data where ", next, " is expected (",
          tensor->begin < next ? "it overlaps another" : "a hole", ")"));
    }
    next = tensor->end;
  }
  if (next != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(data_bytes, " bytes of data, but the header describes ", next));
  }
  return absl::OkStatus();
}

absl::Status parse_metadata(const Json& value, SafetensorsHeader& header) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError("__metadata__: an object is expected");
  }
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat("__metadata__.", key, ": a string is expected, found ", brief(text)));
    }
    header.metadata[key] = text.get<std::string>();
  }
  return absl::OkStatus();
}

absl::StatusOr<SafetensorsHeader> parse_header(std::string_view start, int64_t file_bytes, const std::string& source) {
  if (file_bytes < 8 || start.size() < 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("a safetensors file of at least 8 bytes is expected, found ", file_bytes));
  }
  uint64_t header_bytes = 0;
  for (int byte = 7; byte >= 0; --byte) {
    header_bytes = header_bytes << 8 | static_cast<unsigned char>(start[static_cast<size_t>(byte)]);
  }
  if (header_bytes > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a header of at most ", kMaxHeaderBytes, " bytes is expected, found ", header_bytes));
  }
  if (header_bytes > start.size() - 8) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the header takes ", header_bytes, " bytes, but the file has ", file_bytes - 8,
        " after its length (is the file truncated?)"));
  }
  if (header_bytes == 0 || start[8] != '{') {
    return absl::InvalidArgumentError("the header does not begin with '{'");
  }
  ASSIGN_OR_RETURN(const Json json, base::parse_json(start.substr(8, header_bytes), source, kHeaderDepth));
  SafetensorsHeader header;
  header.data_begin = 8 + static_cast<int64_t>(header_bytes);
  const int64_t data_bytes = file_bytes - header.data_begin;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      RETURN_IF_ERROR(parse_metadata(entry, header));
      continue;
    }
    absl::StatusOr<TensorInfo> tensor = parse_tensor(entry, data_bytes);
    if (!tensor.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\": ", tensor.status().message()));
    }
    header.tensors.emplace(name, std::move(*tensor));
  }
  RETURN_IF_ERROR(check_coverage(header, data_bytes));
  return header;
}

} // namespace

int64_t TensorInfo::numel() const {
  int64_t product = 1;
  for (const int64_t size : shape) {
    product *= size;
  }
  return product;
}

std::optional<at::ScalarType> scalar_type_of(std::string_view safetensors_dtype) {
  const Dtype* dtype = find_dtype(safetensors_dtype);
  return dtype ? dtype->scalar : std::nullopt;
}

std::optional<int64_t> element_bytes(std::string_view safetensors_dtype) {
  const Dtype* dtype = find_dtype(safetensors_dtype);
  return dtype ? std::optional(dtype->bytes) : std::nullopt;
}

absl::StatusOr<std::string> safetensors_dtype(at::ScalarType scalar) {
  for (const Dtype& dtype : dtypes()) {
    if (dtype.scalar == scalar) {
      return std::string(dtype.name);
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", at::toString(scalar), " cannot stand in a safetensors file"));
}

absl::StatusOr<SafetensorsHeader> parse_safetensors_header(
    std::string_view start, int64_t file_bytes, const std::string& source) {
  absl::StatusOr<SafetensorsHeader> header = parse_header(start, file_bytes, source);
  if (!header.ok() && !absl::StartsWith(header.status().message(), source)) {
    return absl::InvalidArgumentError(absl::StrCat(source, ": ", header.status().message()));
  }
  return header;
}

} // namespace distill::hf
