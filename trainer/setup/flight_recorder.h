#pragma once

#include <cstdint>
#include <string>

// NCCL's flight recorder: the last collectives of this process, which of them were started and which ended.
namespace distill::trainer {

// Call before the first communicator is made. Variables that are set already (TORCH_FR_BUFFER_SIZE,
// TORCH_NCCL_DUMP_ON_TIMEOUT, TORCH_NCCL_DEBUG_INFO_TEMP_FILE) are not changed. Dumps on a timeout go to
// <run_dir>/nccl-trace/.
void enable_flight_recorder(const std::string& run_dir);

// Writes <run_dir>/nccl-trace/rank_<N>.json now, unless no collective was recorded.
void dump_flight_recorder(const std::string& run_dir, int64_t rank);

} // namespace distill::trainer
