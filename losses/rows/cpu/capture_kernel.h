#pragma once

#include "losses/rows/capture_args.h"

namespace distill::losses {

// Computes top-k or samples of each row's logits on the CPU, with the rows spread over threads.
void capture_rows_cpu(const CaptureRowArgs& args, CaptureStage stage);

} // namespace distill::losses
