#pragma once

#include <set>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/load.h"
#include "trainer/config/problem.h"

namespace distill::config {

struct CheckContext {
  std::string file; // the configuration's, for keys that have no origin of their own
  Purpose purpose = Purpose::kTrain;
  Origins origins;
  std::set<std::string, std::less<>> suspect; // keys whose value is not what the author wrote: rules skip them
  int64_t ranks = 0; // that a launcher started; 0: none did
};

// Keys that a reader's problems are about, and those it took misspelt keys for.
std::set<std::string, std::less<>> suspect_keys(const std::vector<Problem>& problems);

// A problem whose place is that of the first of `keys` that was given; nothing when one of them is suspect.
void add_problem(
    const CheckContext& context, std::vector<std::string> keys, Problem problem, std::vector<Problem>* problems);

// The rules between keys. Ranges of single keys are checked when they are read.
std::vector<Problem> check_rules(const Config& config, const CheckContext& context);

// Optimizer steps of the run: train.steps, or train.tokens divided by the tokens of a global batch, rounded up.
int64_t total_steps(const Config& config);

} // namespace distill::config
