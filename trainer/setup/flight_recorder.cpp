#include "trainer/setup/flight_recorder.h"

#include <cstdlib>
#include <fstream>

#include "trainer/metrics/log.h"
#include "trainer/sharding/nccl_backend.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;

fs::path folder_of(const std::string& run_dir) {
  return fs::path(run_dir) / "nccl-trace";
}

} // namespace

void enable_flight_recorder(const std::string& run_dir) {
  constexpr int kKeep = 0; // setenv leaves a variable that is set already
  ::setenv("TORCH_FR_BUFFER_SIZE", "2000", kKeep);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", kKeep);
  ::setenv("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", (folder_of(run_dir) / "pickle_rank_").c_str(), kKeep);
}

void dump_flight_recorder(const std::string& run_dir, int64_t rank) {
  const std::string record = sharding::nccl_flight_record();
  if (record.empty()) {
    return;
  }
  std::error_code error;
  fs::create_directories(folder_of(run_dir), error);
  const std::string path = (folder_of(run_dir) / absl::StrCat("rank_", rank, ".json")).string();
  std::ofstream file(path);
  file << record;
  file.close();
  metrics::log_error(absl::StrCat(file ? "NCCL's last collectives are in " : "cannot write ", path));
}

} // namespace distill::trainer
