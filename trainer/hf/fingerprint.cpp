#include "trainer/hf/fingerprint.h"

#include <filesystem>

#include "data/base/checksum.h"
#include "trainer/models/mapped_file.h"

namespace distill::hf {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWhole = 1 << 20; // files up to this size are read whole
constexpr int64_t kEnds = 64 << 10;
constexpr int64_t kBlock = 4 << 10;
constexpr int64_t kBlocks = 64;

uint64_t sampled_checksum(const models::MappedFile& file) {
  const int64_t size = file.size();
  if (size <= kWhole) {
    return base::checksum(file.data(), static_cast<size_t>(size));
  }
  base::Checksum sum;
  sum.update(file.data(), kEnds);
  for (int64_t i = 1; i < kBlocks; ++i) {
    sum.update(file.data() + size / kBlocks * i, kBlock);
  }
  sum.update(file.data() + size - kEnds, kEnds);
  return sum.value();
}

bool belongs_to_model(const fs::path& path) {
  const std::string name = path.filename().string();
  return path.extension() == ".safetensors" || name == "config.json" || name == "model.safetensors.index.json";
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
    const auto file = models::MappedFile::open(path.string());
    if (!file.ok()) {
      return file.status();
    }
    absl::StrAppend(
        &text, path.filename().string(), " ", (*file)->size(), " ", base::checksum_text(sampled_checksum(**file)),
        "\n");
  }
  return text;
}

} // namespace distill::hf
