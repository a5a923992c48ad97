#include "trainer/hf/fingerprint.h"

#include <filesystem>

#include "data/base/checksum.h"
#include "data/base/mapped_file.h"
#include "data/base/status_macros.h"

namespace distill::hf {
namespace {

namespace fs = std::filesystem;

constexpr size_t kWhole = 1 << 20; // bytes; smaller files are read completely
constexpr size_t kEnds = 64 << 10;
constexpr size_t kBlock = 4 << 10;
constexpr size_t kBlocks = 64;

uint64_t sampled_checksum(std::string_view bytes) {
  const size_t size = bytes.size();
  if (size <= kWhole) {
    return base::checksum(bytes.data(), size);
  }
  base::Checksum sum;
  sum.update(bytes.data(), kEnds);
  for (size_t i = 1; i < kBlocks; ++i) {
    sum.update(bytes.data() + size / kBlocks * i, kBlock);
  }
  sum.update(bytes.data() + size - kEnds, kEnds);
  return sum.value();
}

bool belongs_to_model(const fs::path& path) {
  const std::string name = path.filename().string();
  return path.extension() == ".safetensors" || name == "config.json" || name == "adapter_config.json" ||
      name == "model.safetensors.index.json";
}

} // namespace

absl::StatusOr<std::string> folder_fingerprint(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (belongs_to_model(it->path())) {
      files.push_back(it->path());
    }
  }
  if (error) {
    return absl::NotFoundError(absl::StrCat(folder, ": cannot list: ", error.message()));
  }
  std::sort(files.begin(), files.end());
  std::string text;
  for (const fs::path& path : files) {
    ASSIGN_OR_RETURN(const base::MappedFile file, base::MappedFile::open(path.string()));
    absl::StrAppend(
        &text, path.filename().string(), " ", file.size(), " ", base::checksum_text(sampled_checksum(file.text())),
        "\n");
  }
  return text;
}

} // namespace distill::hf
