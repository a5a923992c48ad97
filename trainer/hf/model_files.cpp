#include "data/base/json.h"
#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/hf/stored_model.h"

namespace distill::hf {
namespace {

using Path = std::filesystem::path;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr int64_t kMaxIndexBytes = 64 << 20;
constexpr size_t kNamesListed = 20; // in an error
constexpr size_t kNamesNoted = 6; // in a line of the log

// `twice`: receives the tensors that two files have with equal values, of which the first one is read.
absl::Status add_file(ModelFiles& model, const std::string& path, std::vector<std::string>& twice) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  for (const auto& [name, tensor] : file.header().tensors) {
    const auto [entry, added] = model.file_of.emplace(name, model.files.size());
    if (added) {
      continue;
    }
    const SafetensorsFile& first = model.files[entry->second];
    if (!equal_tensors(first, *first.find(name), file, tensor)) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor \"", name, "\" is also in ", first.path(),
          ", with other values; programs differ in which of the two they read: remove one of them"));
    }
    twice.push_back(name);
  }
  model.files.push_back(std::move(file));
  return absl::OkStatus();
}

// Tells whether this is a file name without a path: an index must not lead out of its folder.
bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
      name.find('\\') == std::string::npos && name.find('\0') == std::string::npos;
}

absl::StatusOr<std::map<std::string, std::string>> read_index(const std::string& path) {
  const absl::StatusOr<std::string> text = base::read_text_file(path, kMaxIndexBytes);
  return text.ok() ? parse_weight_map(*text, path) : text.status();
}

void add_note(const std::string& path, const std::vector<std::string>& names, const char* text, Notes* notes) {
  if (notes != nullptr && !names.empty()) {
    notes->push_back(
        {absl::StrCat(path, ": ", text, " (", names.size(), "): ", names_text(names, kNamesNoted)),
         /*is_warning=*/true});
  }
}

absl::StatusOr<ModelFiles> open_shards(const Path& folder, Notes* notes) {
  const std::string index_path = (folder / kIndexFile).string();
  ASSIGN_OR_RETURN(const auto index, read_index(index_path));
  std::map<std::string, size_t> opened; // file name -> index
  ModelFiles model;
  std::vector<std::string> twice, elsewhere;
  for (const auto& [name, file] : index) {
    if (opened.contains(file)) {
      continue;
    }
    opened[file] = model.files.size();
    if (absl::Status status = add_file(model, (folder / file).string(), twice); !status.ok()) {
      return absl::IsNotFound(status)
          ? absl::NotFoundError(absl::StrCat(status.message(), " (", index_path, " lists it for \"", name, "\")"))
          : status;
    }
  }
  base::ProblemList problems;
  size_t missing = 0;
  for (const auto& [name, file] : index) {
    const auto found = model.file_of.find(name);
    if (found == model.file_of.end() && ++missing <= kNamesListed) {
      problems.add(absl::StrCat(
          (folder / file).string(), ": tensor \"", name, "\" is missing, though ", index_path, " lists it here"));
    } else if (found != model.file_of.end() && model.files[opened[file]].find(name) == nullptr) {
      elsewhere.push_back(name);
    }
  }
  if (missing > kNamesListed) {
    problems.add(absl::StrCat(index_path, ": ", missing - kNamesListed, " more tensors that it lists are missing"));
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  for (const auto& [name, file] : model.file_of) {
    if (!index.contains(name)) {
      model.unlisted.insert(name);
    }
  }
  add_note(index_path, twice, "tensors that two files have with equal values, and that are read once", notes);
  add_note(index_path, elsewhere, "tensors read from another file than the index lists them for", notes);
  return model;
}

absl::StatusOr<ModelFiles> open_all(const std::string& folder, Notes* notes) {
  const Path root(folder);
  std::error_code error;
  const bool has_index = std::filesystem::exists(root / kIndexFile, error);
  if (std::filesystem::exists(root / kSingleFile, error)) {
    ModelFiles model;
    std::vector<std::string> twice; // a file's names are distinct
    RETURN_IF_ERROR(add_file(model, (root / kSingleFile).string(), twice));
    if (has_index && notes != nullptr) {
      notes->push_back(
          {absl::StrCat(folder, ": ", kSingleFile, " is read, and ", kIndexFile, " with its shards is not"),
           /*is_warning=*/true});
    }
    return model;
  }
  if (has_index) {
    return open_shards(root, notes);
  }
  const bool pickled = std::filesystem::exists(root / "pytorch_model.bin", error) ||
      std::filesystem::exists(root / "pytorch_model.bin.index.json", error);
  return absl::NotFoundError(absl::StrCat(
      folder, ": neither ", kSingleFile, " nor ", kIndexFile,
      pickled ? "; pytorch_model.bin is not read, save the model as safetensors first" : ""));
}

} // namespace

absl::StatusOr<std::map<std::string, std::string>> parse_weight_map(std::string_view text, const std::string& source) {
  ASSIGN_OR_RETURN(const auto json, base::parse_json(text, source, /*max_depth=*/8));
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object() ||
      json["weight_map"].empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": weight_map: an object of tensor names and files is expected"));
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : json["weight_map"].items()) {
    if (!file.is_string() || !is_plain_file_name(file.get<std::string>())) {
      return absl::InvalidArgumentError(absl::StrCat(
          source, ": weight_map[\"", name, "\"]: the name of a file in the same folder is expected, found ",
          file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 100)));
    }
    files[name] = file.get<std::string>();
  }
  return files;
}

const TensorInfo* ModelFiles::find(const std::string& name) const {
  const auto found = file_of.find(name);
  return found == file_of.end() ? nullptr : files[found->second].find(name);
}

bool has_weights(const std::string& folder) {
  std::error_code error;
  return std::filesystem::exists(Path(folder) / kSingleFile, error) ||
      std::filesystem::exists(Path(folder) / kIndexFile, error);
}

absl::StatusOr<ModelFiles> open_model_files(const std::string& folder, Notes* notes) {
  ASSIGN_OR_RETURN(ModelFiles model, open_all(folder, notes));
  std::vector<std::string_view> names;
  for (const auto& [name, file] : model.file_of) {
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  ASSIGN_OR_RETURN(model.text, find_text_names(names, folder));
  return model;
}

} // namespace distill::hf
