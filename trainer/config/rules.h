#pragma once

#include <set>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/config/load.h"
#include "trainer/config/problem.h"

namespace distill::config {

struct CheckContext {
  std::string file; // of the configuration, for problems of keys that were not given
  Purpose purpose = Purpose::kTrain;
  Origins origins;
  std::set<std::string, std::less<>>
      suspect; // keys whose value is not what the author meant; no rule is checked on them
  int64_t ranks = 0; // that a launcher has started; 0: none has
  bool is_dump = false; // the file was written by dump(): the keys in it need not be those that the user wants
};

// The keys that the reader's problems are about, and the keys that misspelt keys probably stand for.
std::set<std::string, std::less<>> suspect_keys(const std::vector<Problem>& problems);

// Appends the problem, with file and line of the first of `keys` that was given. Does nothing if one of them is
// suspect.
void add_problem(
    const CheckContext& context, std::vector<std::string> keys, Problem problem, std::vector<Problem>* problems);

// Checks the rules between keys. The ranges of single keys are checked when they are read.
std::vector<Problem> check_rules(const Config& config, const CheckContext& context);

} // namespace distill::config
