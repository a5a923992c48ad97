#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trainer/config/config.h"

// The number of steps of a run: train.steps, or as many as train.tokens or train.epochs take.
namespace distill::config {

// The progress of a run at some time. At its start all members are zero.
struct Progress {
  int64_t steps = 0;
  int64_t tokens = 0; // read so far, padding included
};

// The tokens that the whole run reads, padding included: train.tokens, or those of train.epochs, where an epoch has
// `epoch_samples` sequences of data.seq_len (data::Dataset::num_samples). 0: train.steps decides how long the run is.
int64_t token_budget(const Config& config, int64_t epoch_samples);

// Optimizer steps of the whole run. With a token budget: those done, and as many as what is left of the budget takes,
// rounded up, whatever the size of the steps before.
int64_t total_steps(const Config& config, int64_t epoch_samples, const Progress& done = {});

// The steps of a run from its start; nullopt: they depend on the data (train.epochs), or no length is given.
std::optional<int64_t> known_steps(const Config& config);

// A key of the scheduler that a run of this length does not allow.
struct ScheduleFault {
  std::string key;
  std::string expected;
  std::string found;
};
std::optional<ScheduleFault> schedule_fault(const SchedulerSection& scheduler, int64_t steps);

} // namespace distill::config
