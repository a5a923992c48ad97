#include "trainer/hf/save_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fstream>

#include "data/base/json.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/hf/safetensors.h"

namespace distill::hf {
namespace {

using Path = std::filesystem::path;
using Json = nlohmann::ordered_json;

constexpr int64_t kConvertChunk = int64_t{1} << 24; // elements

// Removes the unfinished folder unless it has been renamed.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(Path path) : path_(std::move(path)) {}
  ~TemporaryFolder() {
    if (!kept_) {
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    }
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  void keep() {
    kept_ = true;
  }

 private:
  Path path_;
  bool kept_ = false;
};

absl::Status failed(const Path& path, const char* action, const std::string& why) {
  return absl::InternalError(absl::StrCat(path.string(), ": cannot ", action, ": ", why));
}

absl::Status sync_path(const Path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int saved = errno;
  if (fd >= 0) {
    ::close(fd);
  }
  return synced ? absl::OkStatus() : failed(path, "sync", std::strerror(saved));
}

absl::Status write_text(const Path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? sync_path(path) : failed(path, "write", std::strerror(errno));
}

struct Shard {
  std::string file;
  std::vector<SafetensorsWriter::Entry> entries;
  int64_t bytes = 0;
};

// Tensors in the order in which the units hold them, cut into shards of at most `max_bytes` (or one tensor).
absl::StatusOr<std::vector<Shard>> plan_shards(
    const std::vector<models::UnitLayout>& layouts, const SaveOptions& options) {
  const absl::StatusOr<std::string> dtype = safetensors_dtype(options.dtype);
  if (!dtype.ok()) {
    return dtype.status();
  }
  std::vector<Shard> shards(1);
  for (const models::UnitLayout& layout : layouts) {
    for (const models::ParamLayout& param : layout.params) {
      for (const models::ParamPart& part : param.parts) {
        TensorInfo info{*dtype, models::part_shape(param, part), 0, 0};
        const int64_t bytes = info.numel() * static_cast<int64_t>(at::elementSize(options.dtype));
        if (!shards.back().entries.empty() && shards.back().bytes + bytes > options.max_shard_bytes) {
          shards.emplace_back();
        }
        shards.back().bytes += bytes;
        shards.back().entries.emplace_back(part.hf_name, std::move(info));
      }
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? "model.safetensors"
                                        : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
  }
  return shards;
}

absl::Status write_index(const Path& folder, const std::vector<Shard>& shards) {
  Json index;
  int64_t total = 0;
  Json& files = index["weight_map"] = Json::object();
  for (const Shard& shard : shards) {
    total += shard.bytes;
    for (const auto& [name, info] : shard.entries) {
      files[name] = shard.file;
    }
  }
  index["metadata"] = {{"total_size", total}};
  return write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

// Streams the units through, opening shard after shard.
class WeightStream {
 public:
  WeightStream(Path folder, const std::vector<Shard>& shards, at::ScalarType dtype)
      : folder_(std::move(folder)), shards_(shards), dtype_(dtype) {}

  absl::Status write_unit(const models::UnitLayout& layout, const at::Tensor& flat) {
    if (flat.dim() != 1 || flat.numel() < layout.numel || !at::isFloatingType(flat.scalar_type())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unit '", layout.name, "': a flat buffer of at least ", layout.numel, " elements is expected, found ",
          flat.numel(), " of ", at::toString(flat.scalar_type())));
    }
    for (const models::FlatPiece& piece : models::flat_pieces(layout, 0, layout.numel)) {
      if (absl::Status status = write_tensor(flat.narrow(0, piece.flat_begin, piece.count)); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status finish() {
    return writer_ ? finish_shard() : absl::OkStatus();
  }

  // Of the files written, by name.
  const std::map<std::string, uint64_t>& checksums() const {
    return checksums_;
  }

 private:
  absl::Status write_tensor(const at::Tensor& values) {
    if (!writer_ || entry_ == shards_[shard_].entries.size()) {
      if (absl::Status status = next_shard(); !status.ok()) {
        return status;
      }
    }
    ++entry_;
    for (int64_t done = 0; done < values.numel(); done += kConvertChunk) {
      const int64_t count = std::min(kConvertChunk, values.numel() - done);
      const at::Tensor chunk = values.narrow(0, done, count).to(at::kCPU, dtype_).contiguous();
      if (absl::Status status = writer_->append(chunk); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  absl::Status finish_shard() {
    checksums_[shards_[shard_].file] = checksum_.value();
    return writer_->finish();
  }

  absl::Status next_shard() {
    if (writer_) {
      if (absl::Status status = finish_shard(); !status.ok()) {
        return status;
      }
      ++shard_;
    }
    checksum_.reset();
    const base::ByteSink sink = [this](const char* data, size_t size) { checksum_.update(data, size); };
    const Shard& shard = shards_[shard_];
    auto writer = SafetensorsWriter::create((folder_ / shard.file).string(), shard.entries, {{"format", "pt"}}, sink);
    if (!writer.ok()) {
      return writer.status();
    }
    writer_ = std::move(*writer);
    entry_ = 0;
    return absl::OkStatus();
  }

  Path folder_;
  const std::vector<Shard>& shards_;
  at::ScalarType dtype_;
  base::Checksum checksum_; // of the shard that is being written
  std::map<std::string, uint64_t> checksums_;
  std::unique_ptr<SafetensorsWriter> writer_;
  size_t shard_ = 0;
  size_t entry_ = 0;
};

std::string architecture(const std::string& model_type) {
  static const std::map<std::string, std::string> names{
      {"llama", "LlamaForCausalLM"},
      {"mistral", "MistralForCausalLM"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"}};
  return names.at(model_type);
}

absl::Status write_config(const Path& folder, const models::ModelConfig& config, const SaveOptions& options) {
  const std::string source = (Path(options.config_folder) / "config.json").string();
  const absl::StatusOr<std::string> text = base::read_text_file(source, /*max_bytes=*/8 << 20);
  if (!text.ok()) {
    return text.status();
  }
  absl::StatusOr<Json> json = base::parse_json(*text, source, /*max_depth=*/16);
  if (!json.ok()) {
    return json.status();
  }
  const std::string dtype = options.dtype == at::kBFloat16 ? "bfloat16"
      : options.dtype == at::kHalf                         ? "float16"
                                                           : "float32";
  // transformers 5 writes dtype, 4 wrote torch_dtype and is what older readers know.
  (*json)[json->contains("dtype") ? "dtype" : "torch_dtype"] = dtype;
  if (json->contains("torch_dtype")) {
    (*json)["torch_dtype"] = dtype;
  }
  if (!json->contains("architectures") || (*json)["architectures"].is_null()) {
    (*json)["architectures"] = {architecture(config.model_type)};
  }
  json->erase("_name_or_path");
  return write_text(folder / "config.json", json->dump(2) + "\n");
}

absl::Status copy_tokenizer(const Path& folder, const SaveOptions& options) {
  const Path source(options.tokenizer_folder.empty() ? options.config_folder : options.tokenizer_folder);
  for (const std::string& name : tokenizer_files(source.string())) {
    std::error_code error;
    std::filesystem::copy_file(source / name, folder / name, error);
    if (error) {
      return failed(source / name, "copy", error.message());
    }
    if (absl::Status status = sync_path(folder / name); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

// Of every file in the folder; `known` are not read again.
absl::Status write_checksums(const Path& folder, std::map<std::string, uint64_t> known) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (known.count(name) == 0) {
      const auto sum = base::file_checksum(entry.path().string());
      if (!sum.ok()) {
        return sum.status();
      }
      known[name] = *sum;
    }
  }
  return write_text(folder / kChecksumsFile, checksums_text(known));
}

absl::Status write_folder(
    const Path& folder, const models::ModelConfig& config, const UnitFlat& units, const SaveOptions& options) {
  const std::vector<models::UnitLayout> layouts = models::unit_layouts(config);
  const absl::StatusOr<std::vector<Shard>> shards = plan_shards(layouts, options);
  if (!shards.ok()) {
    return shards.status();
  }
  if (absl::Status status = write_config(folder, config, options); !status.ok()) {
    return status;
  }
  if (absl::Status status = copy_tokenizer(folder, options); !status.ok()) {
    return status;
  }
  WeightStream stream(folder, *shards, options.dtype);
  for (size_t i = 0; i < layouts.size(); ++i) {
    const absl::StatusOr<at::Tensor> flat = units(i);
    if (!flat.ok()) {
      return flat.status();
    }
    if (absl::Status status = stream.write_unit(layouts[i], *flat); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = stream.finish(); !status.ok()) {
    return status;
  }
  if (shards->size() > 1) {
    if (absl::Status status = write_index(folder, *shards); !status.ok()) {
      return status;
    }
  }
  if (absl::Status status = write_checksums(folder, stream.checksums()); !status.ok()) {
    return status;
  }
  return sync_path(folder);
}

// Puts `temporary` in the place of `target`; an old target steps aside first and is removed last.
absl::Status move_into_place(const Path& temporary, const Path& target) {
  std::error_code error;
  const Path old = target.string() + ".old";
  const bool replaces = std::filesystem::exists(target, error);
  if (replaces) {
    std::filesystem::remove_all(old, error);
    std::filesystem::rename(target, old, error);
    if (error) {
      return failed(target, "move aside", error.message());
    }
  }
  std::filesystem::rename(temporary, target, error);
  if (error) {
    const std::string why = error.message();
    if (replaces) {
      std::filesystem::rename(old, target, error);
    }
    return failed(target, "create", why);
  }
  if (replaces) {
    std::filesystem::remove_all(old, error);
  }
  return sync_path(target.parent_path());
}

} // namespace

std::vector<std::string> tokenizer_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "tekken.json", "chat_template.jinja", "chat_template.json",
        "generation_config.json"}) {
    std::error_code error;
    if (std::filesystem::is_regular_file(Path(folder) / name, error)) {
      found.emplace_back(name);
    }
  }
  return found;
}

absl::Status save_model(
    const std::string& target, const models::ModelConfig& config, const UnitFlat& units, const SaveOptions& options) {
  if (options.dtype != at::kFloat && options.dtype != at::kHalf && options.dtype != at::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "float32, float16 or bfloat16 is expected for saved weights, found ", at::toString(options.dtype)));
  }
  // An absolute path without a trailing slash, so that its parent can be synced.
  std::error_code error;
  Path path = std::filesystem::absolute(target, error).lexically_normal();
  path = path.has_filename() ? path : path.parent_path();
  if (std::filesystem::exists(path, error) && !options.replace && !std::filesystem::is_empty(path, error)) {
    return absl::AlreadyExistsError(absl::StrCat(path.string(), ": exists already"));
  }
  const Path temporary = path.string() + ".tmp";
  std::filesystem::remove_all(temporary, error);
  TemporaryFolder guard(temporary);
  std::filesystem::create_directories(temporary, error);
  if (error) {
    return failed(temporary, "create", error.message());
  }
  if (absl::Status status = write_folder(temporary, config, units, options); !status.ok()) {
    return status;
  }
  if (absl::Status status = move_into_place(temporary, path); !status.ok()) {
    return status;
  }
  guard.keep();
  return absl::OkStatus();
}

} // namespace distill::hf
