#pragma once

#include <cstdint>
#include <string>

#include "trainer/run_folder/run_folder.h"

namespace distill::trainer {

// How a process starts on a run.
struct StartOptions {
  StartMode mode = StartMode::kFresh;
  // A checkpoint's folder to go on from, of this run or of another one. Empty: with kResume the newest complete
  // checkpoint of the run folder, else from the start.
  std::string resume_from;
  // Whether data.train may be other data than those of the checkpoint: they then begin a stage of their own.
  bool other_data_allowed = false;
  int64_t last_step = 0; // end the run after this step, as if it were its last; 0: at its end
  bool show_samples = false; // say what each sample of the last step loses
  std::string parent_run; // a replay: the run folder that run.dir lies in, which belongs to this job as well
};

} // namespace distill::trainer
