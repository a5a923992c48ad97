#include "trainer/hf/save_model.h"

#include "data/base/durable_file.h"
#include "data/base/status_macros.h"
#include "trainer/hf/families.h"
#include "trainer/hf/model_checksums.h"
#include "trainer/hf/other_parts.h"
#include "trainer/hf/safetensors.h"
#include "trainer/hf/staged_writer.h"
#include "trainer/hf/text_config.h"

namespace distill::hf {
namespace {

using Path = std::filesystem::path;
using Json = nlohmann::ordered_json;

constexpr const char* kTokenizer = "tokenizer.json";
constexpr const char* kNamedTemplates = "additional_chat_templates"; // a file for each, NAME.jinja

// Removes the unfinished folder, unless keep() is called.
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

absl::Status copy_synced(const Path& source, const Path& target) {
  std::error_code error;
  std::filesystem::copy_file(source, target, error);
  return error ? failed(source, "copy", error.message()) : base::sync_file(target.string());
}

struct Shard {
  std::string file;
  std::vector<SafetensorsWriter::Entry> entries;
  int64_t bytes = 0;
};

// Distributes the tensors, those of the units in their order and then `others` (null: none), to shards of at most
// max_shard_bytes (or of one larger tensor).
absl::StatusOr<std::vector<Shard>> plan_shards(
    const std::vector<models::UnitLayout>& layouts, const OtherParts* others, const SaveOptions& options) {
  ASSIGN_OR_RETURN(const std::string dtype, safetensors_dtype(options.dtype));
  std::vector<Shard> shards(1);
  const auto add = [&](std::string name, TensorInfo info) {
    const int64_t bytes = info.numel() * element_bytes(info.dtype).value();
    if (!shards.back().entries.empty() && shards.back().bytes + bytes > options.max_shard_bytes) {
      shards.emplace_back();
    }
    shards.back().bytes += bytes;
    shards.back().entries.emplace_back(std::move(name), std::move(info));
  };
  const TextNames names = others ? others->files.text : TextNames();
  for (const models::UnitLayout& layout : layouts) {
    for (const models::ParamLayout& param : layout.params) {
      for (const models::ParamPart& part : param.parts) {
        add(names.stored(part.hf_name), {dtype, models::part_shape(param, part), 0, 0});
      }
    }
  }
  if (others != nullptr) {
    for (const OtherParts::Tensor& tensor : others->tensors) {
      add(tensor.name, *tensor.info);
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
  return base::write_file((folder / "model.safetensors.index.json").string(), index.dump(2) + "\n");
}

// Writes the units and the tensors after them one after the other, and begins new shards as planned.
class WeightStream {
 public:
  WeightStream(Path folder, std::vector<Shard>& shards, const SaveOptions& options)
      : folder_(std::move(folder)), shards_(shards), options_(options) {}

  absl::Status write_unit(const models::UnitLayout& layout, const at::Tensor& flat) {
    if (flat.dim() != 1 || flat.numel() < layout.numel || !at::isFloatingType(flat.scalar_type())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unit '", layout.name, "': a flat buffer of at least ", layout.numel, " elements is expected, found ",
          flat.numel(), " of ", at::toString(flat.scalar_type())));
    }
    for (const models::FlatPiece& piece : models::flat_pieces(layout, 0, layout.numel)) {
      RETURN_IF_ERROR(begin_tensor());
      RETURN_IF_ERROR(writer_.append(flat.narrow(0, piece.flat_begin, piece.count), options_.dtype));
    }
    return absl::OkStatus();
  }

  absl::Status write_other(const OtherParts::Tensor& tensor) {
    RETURN_IF_ERROR(begin_tensor());
    return tensor.file->copy_bytes(
        *tensor.info, [this](std::string_view bytes) { return writer_.append_bytes(bytes); });
  }

  absl::Status finish() {
    return is_open_ ? finish_shard() : absl::OkStatus();
  }

  // Checksums of the written files, by name.
  const std::map<std::string, uint64_t>& checksums() const {
    return checksums_;
  }

 private:
  absl::Status begin_tensor() {
    if (!is_open_ || entry_ == shards_[shard_].entries.size()) {
      RETURN_IF_ERROR(next_shard());
    }
    ++entry_;
    return absl::OkStatus();
  }

  absl::Status finish_shard() {
    ASSIGN_OR_RETURN(checksums_[shards_[shard_].file], writer_.finish());
    is_open_ = false;
    return absl::OkStatus();
  }

  absl::Status next_shard() {
    if (is_open_) {
      RETURN_IF_ERROR(finish_shard());
      ++shard_;
    }
    Shard& shard = shards_[shard_];
    const std::string path = (folder_ / shard.file).string();
    int64_t data_bytes = 0;
    ASSIGN_OR_RETURN(const std::string start, safetensors_start(path, shard.entries, {{"format", "pt"}}, data_bytes));
    RETURN_IF_ERROR(
        writer_.begin(path, static_cast<int64_t>(start.size()) + data_bytes, /*keep_pages=*/options_.in_place));
    is_open_ = true;
    entry_ = 0;
    return writer_.append_bytes(start);
  }

  Path folder_;
  std::vector<Shard>& shards_;
  const SaveOptions& options_;
  std::map<std::string, uint64_t> checksums_;
  StagedWriter writer_;
  bool is_open_ = false; // the writer has a file
  size_t shard_ = 0;
  size_t entry_ = 0;
};

// Of a folder that is written in place: nobody takes it for whole any more, and of its files only those of weights that
// are written again are left.
absl::Status make_unfinished(const Path& folder, const std::vector<Shard>& shards) {
  std::error_code error;
  std::filesystem::remove(folder / kChecksumsFile, error);
  if (!error) {
    RETURN_IF_ERROR(base::sync_folder(folder.string()));
  }
  std::vector<Path> others;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (std::none_of(shards.begin(), shards.end(), [&](const Shard& shard) { return shard.file == name; })) {
      others.push_back(it->path());
    }
  }
  for (size_t i = 0; i < others.size() && !error; ++i) {
    std::filesystem::remove_all(others[i], error);
  }
  return error ? failed(folder, "remove earlier files", error.message()) : absl::OkStatus();
}

// `others`: null: the folder's text model is saved alone.
absl::Status write_config(
    const Path& folder, const models::ModelConfig& config, const OtherParts* others, const SaveOptions& options) {
  ASSIGN_OR_RETURN(Json json, read_config_json(options.config_folder));
  if (others == nullptr) {
    json = text_keys(json);
  }
  set_text_dtype(
      json,
      options.dtype == at::kBFloat16   ? "bfloat16"
          : options.dtype == at::kHalf ? "float16"
                                       : "float32");
  if (!json.contains("architectures") || json["architectures"].is_null()) {
    const MultimodalFamily* whole = multimodal_family(json);
    const Family* family = find_family(config.model_type);
    TORCH_CHECK(family != nullptr, "save_model: model_type ", config.model_type, " is not supported");
    json["architectures"] = {whole ? whole->architecture : family->architecture};
  }
  // If a folder's tensors contradicted its config.json (stored_model.h), the saved model is the one that was read.
  set_tied(json, config.tie_word_embeddings);
  json.erase("_name_or_path");
  return base::write_file((folder / "config.json").string(), json.dump(2) + "\n");
}

absl::Status write_folder(
    const Path& folder, const models::ModelConfig& config, const UnitFlat& units, const SaveOptions& options) {
  const std::vector<models::UnitLayout> layouts = models::unit_layouts(config);
  ASSIGN_OR_RETURN(const std::unique_ptr<OtherParts> others, open_other_parts(options.config_folder, config));
  ASSIGN_OR_RETURN(std::vector<Shard> shards, plan_shards(layouts, others.get(), options));
  if (options.in_place) {
    RETURN_IF_ERROR(make_unfinished(folder, shards));
  }
  RETURN_IF_ERROR(write_config(folder, config, others.get(), options));
  RETURN_IF_ERROR(
      copy_tokenizer_files(options.tokenizer.empty() ? options.config_folder : options.tokenizer, folder.string()));
  if (others) {
    for (const std::string& name : processor_files(options.config_folder)) {
      RETURN_IF_ERROR(copy_synced(Path(options.config_folder) / name, folder / name));
    }
  }
  WeightStream stream(folder, shards, options);
  for (size_t i = 0; i < layouts.size(); ++i) {
    ASSIGN_OR_RETURN(const at::Tensor flat, units(i));
    RETURN_IF_ERROR(stream.write_unit(layouts[i], flat));
  }
  if (others) {
    for (const OtherParts::Tensor& tensor : others->tensors) {
      RETURN_IF_ERROR(stream.write_other(tensor));
    }
  }
  RETURN_IF_ERROR(stream.finish());
  if (shards.size() > 1) {
    RETURN_IF_ERROR(write_index(folder, shards));
  }
  return write_checksums(folder.string(), stream.checksums());
}

} // namespace

std::vector<std::string> tokenizer_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const char* name :
       {kTokenizer, "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
        "vocab.json", "merges.txt", "tekken.json", "chat_template.jinja", "chat_template.json",
        "generation_config.json"}) {
    std::error_code error;
    if (std::filesystem::is_regular_file(Path(folder) / name, error)) {
      found.emplace_back(name);
    }
  }
  const size_t named = found.size();
  std::error_code error;
  for (std::filesystem::directory_iterator it(Path(folder) / kNamedTemplates, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code ignored;
    if (it->path().extension() == ".jinja" && it->is_regular_file(ignored)) {
      found.push_back((Path(kNamedTemplates) / it->path().filename()).string());
    }
  }
  std::sort(found.begin() + static_cast<std::ptrdiff_t>(named), found.end());
  return found;
}

absl::Status copy_tokenizer_files(const std::string& from, const std::string& to) {
  std::error_code ignored;
  const bool is_file = std::filesystem::is_regular_file(from, ignored);
  const Path folder = is_file ? std::filesystem::absolute(from).parent_path() : Path(from);
  std::vector<std::string> names = tokenizer_files(folder.string());
  if (is_file && std::find(names.begin(), names.end(), kTokenizer) == names.end()) {
    names.emplace_back(kTokenizer);
  }
  bool has_named = false;
  for (const std::string& name : names) {
    const Path source = is_file && name == kTokenizer ? Path(from) : folder / name, target = Path(to) / name;
    if (name.find('/') != std::string::npos) {
      has_named = true;
      std::error_code unmade; // copy_synced reports a folder that is missing
      std::filesystem::create_directories(target.parent_path(), unmade);
    }
    RETURN_IF_ERROR(copy_synced(source, target));
  }
  return has_named ? base::sync_folder((Path(to) / kNamedTemplates).string()) : absl::OkStatus();
}

absl::Status save_model(
    const std::string& target, const models::ModelConfig& config, const UnitFlat& units, const SaveOptions& options) {
  if (options.dtype != at::kFloat && options.dtype != at::kHalf && options.dtype != at::kBFloat16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "float32, float16 or bfloat16 is expected for saved weights, found ", at::toString(options.dtype)));
  }
  const auto write = [&](const std::string& folder) { return write_folder(folder, config, units, options); };
  if (options.in_place) {
    std::error_code error;
    std::filesystem::create_directories(target, error);
    return error ? failed(target, "create", error.message()) : write(target);
  }
  return write_model_folder(target, options.replace, write);
}

absl::Status write_model_folder(
    const std::string& target, bool replace, const std::function<absl::Status(const std::string& folder)>& write) {
  // An absolute path without a trailing slash, so that its parent can be synced.
  std::error_code error;
  Path path = std::filesystem::absolute(target, error).lexically_normal();
  path = path.has_filename() ? path : path.parent_path();
  if (std::filesystem::exists(path, error) && !replace && !std::filesystem::is_empty(path, error)) {
    return absl::AlreadyExistsError(absl::StrCat(path.string(), ": exists already"));
  }
  const Path temporary = path.string() + base::kUnfinishedFolder;
  std::filesystem::remove_all(temporary, error);
  TemporaryFolder guard(temporary);
  std::filesystem::create_directories(temporary, error);
  if (error) {
    return failed(temporary, "create", error.message());
  }
  RETURN_IF_ERROR(write(temporary.string()));
  RETURN_IF_ERROR(base::publish_folder(temporary.string(), path.string()));
  guard.keep();
  return absl::OkStatus();
}

} // namespace distill::hf
