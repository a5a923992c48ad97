#include "trainer/checkpoint/verify.h"

#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/verified_file.h"

namespace distill::checkpoint {

absl::StatusOr<VerifiedCheckpoint> verify_checkpoint(const std::string& folder) {
  const auto index = read_index(folder);
  if (!index.ok()) {
    return index.status();
  }
  VerifiedCheckpoint verified{index->state.step, static_cast<int64_t>(index->files.size()) + 2, 0};
  std::vector<std::string> problems;
  for (const ShardFile& entry : index->files) {
    const auto file = VerifiedFile::open(folder + "/" + entry.name, entry.bytes, entry.block_sums);
    const absl::Status status = file.ok() ? (*file)->verify() : file.status();
    if (!status.ok()) {
      problems.emplace_back(status.message());
    }
    verified.bytes += entry.bytes;
  }
  if (!problems.empty()) {
    return absl::DataLossError(absl::StrJoin(problems, "\n"));
  }
  return verified;
}

} // namespace distill::checkpoint
