#include "trainer/config/path_hints.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "data/shard.h"

namespace distill::config {

namespace {

namespace fs = std::filesystem;

// Folders of texts, and names that people give to folders of models: no organisation of the hub is meant.
constexpr std::array kFolderNames = {"checkpoints", "data",    "model", "models", "out",
                                     "output",      "outputs", "runs",  "work"};
constexpr std::array kTextExtensions = {".txt", ".md", ".json", ".jsonl", ".ndjson", ".parquet", ".csv", ".gz"};

bool is_hub_name(std::string_view name) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
  return !name.empty() && name.size() <= 96 && std::isalnum(static_cast<unsigned char>(name[0])) != 0 &&
      std::all_of(name.begin(), name.end(), allowed);
}

bool is_text_file(const fs::path& path) {
  std::error_code error;
  const std::string extension = path.extension().string();
  return fs::is_regular_file(path, error) &&
      std::find(kTextExtensions.begin(), kTextExtensions.end(), extension) != kTextExtensions.end() &&
      !data::is_token_data(path.string());
}

bool has_text_file(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (is_text_file(it->path())) {
      return true;
    }
  }
  return false;
}

} // namespace

std::string download_hint(const std::string& key, const std::string& path) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos) {
    return "";
  }
  const std::string organisation = path.substr(0, slash), name = path.substr(slash + 1);
  std::error_code error;
  if (!is_hub_name(organisation) || !is_hub_name(name) || fs::exists(organisation, error) ||
      std::find(kFolderNames.begin(), kFolderNames.end(), organisation) != kFolderNames.end()) {
    return "";
  }
  const std::string section = key.substr(0, key.find('.')), folder = absl::StrCat("models/", name);
  const std::string line = absl::StrCat(section, ": {path: ", folder, "}");
  if (fs::exists(fs::path(folder) / "config.json", error)) {
    return absl::StrCat("an id of the Hugging Face Hub is not looked up, but ", folder, " is here: write ", line);
  }
  return absl::StrCat(
      "an id of the Hugging Face Hub is not looked up: run `hf download ", path, " --local-dir ", folder,
      "`, and write ", line);
}

std::string tokenize_hint(const std::string& path, const std::string& tokenizer) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  if (folder ? !has_text_file(path) : !is_text_file(path)) {
    return "";
  }
  fs::path output = fs::path(path).lexically_normal();
  output = output.has_filename() ? output : output.parent_path();
  output = folder ? fs::path(output.string() + "-tokens") : output.parent_path() / output.stem();
  if (!folder && output.extension() == ".jsonl") { // x.jsonl.gz
    output.replace_extension();
  }
  return absl::StrCat(
      "texts are tokenised first: run `scripts/tokenize.py --tokenizer ",
      tokenizer.empty() ? "MODEL_FOLDER" : tokenizer, " --output ", output.string(), " ", path, "`, and name ",
      output.string(), " here");
}

} // namespace distill::config
