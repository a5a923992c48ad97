#include "losses/rows/cuda/capture/launch.h"
#include "losses/rows/cuda/launch.h"
#include "losses/rows/cuda/sparse/launch.h"

namespace distill::losses {

namespace {

constexpr const char* kNoCuda = "this build of distill has no CUDA kernels: configure it with DISTILL_CUDA=ON";

} // namespace

const char* launch_rows(const RowArgs&, void*, const RowLaunch&) {
  return kNoCuda;
}

const char* launch_capture_rows(const CaptureRowArgs&, CaptureStage, void*) {
  return kNoCuda;
}

const char* launch_sparse_rows(const SparseRowArgs&, SparseStage, void*) {
  return kNoCuda;
}

} // namespace distill::losses
