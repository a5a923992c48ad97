#include "losses/checks.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include "losses/meta_device.h"
#include "losses/options.h"

namespace distill::losses {

at::ScalarType compute_type(at::ScalarType input) {
  return input == at::kDouble ? at::kDouble : at::kFloat;
}

void assert_labels(const at::Tensor& targets_N, int64_t vocab) {
  if (targets_N.numel() > 0) {
    assert_async(
        targets_N.eq(kIgnoreIndex).bitwise_or(targets_N.ge(0).bitwise_and(targets_N.lt(vocab))).all(),
        "a target is neither the ignore index (-100) nor in [0, vocabulary size)");
  }
}

} // namespace distill::losses
