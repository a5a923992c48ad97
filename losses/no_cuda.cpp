#include "losses/logits_backward.h"
#include "losses/rows_cuda.h"

namespace distill::losses {

const char* launch_rows(const RowArgs&, void*, const RowLaunch&) {
  return "this build of distill has no CUDA kernels: configure it with DISTILL_CUDA=ON";
}

const char* launch_logits_backward(const RowArgs&, void*) {
  return "this build of distill has no CUDA kernels: configure it with DISTILL_CUDA=ON";
}

} // namespace distill::losses
