#include "trainer/checkpoint/verify.h"

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/verified_file.h"

namespace distill::checkpoint {

absl::StatusOr<VerifiedCheckpoint> verify_checkpoint(const std::string& folder, const base::ReadProgress& progress) {
  ASSIGN_OR_RETURN(const auto index, read_index(folder));
  VerifiedCheckpoint verified{index.state.step, static_cast<int64_t>(index.files.size()) + 2, 0};
  base::ProblemList problems;
  for (const ShardFile& entry : index.files) {
    const auto file = VerifiedFile::open(folder + "/" + entry.name, entry.bytes, entry.block_sums);
    problems.add(file.ok() ? (*file)->verify(progress) : file.status());
    verified.bytes += entry.bytes;
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kDataLoss));
  return verified;
}

} // namespace distill::checkpoint
