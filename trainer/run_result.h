#pragma once

#include <cstdint>
#include <memory>

#include "trainer/plan/plan.h"
#include "trainer/run_folder/run_folder.h"
#include "trainer/setup/run_context.h"

namespace distill::trainer {

// How a run ended in this process.
struct RunResult {
  bool stopped_by_signal = false; // the state was saved
  int64_t steps = 0; // done since the start of the run, earlier parts included
  std::shared_ptr<const plan::Plan> plan; // the prediction that was made before the run
  OutsideAllocator outside;
  // Belongs to this job until the last copy is gone; null on ranks other than 0.
  std::shared_ptr<const RunFolder> folder;
};

} // namespace distill::trainer
