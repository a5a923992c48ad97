#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/prompt_pool.h"
#include "data/token_limits.h"

// What goes to the engine that runs the student, and what comes back: lines of JSON with token ids, never with text
// (docs/onpolicy.md).
namespace distill::onpolicy {

// How the student writes.
struct Sampling {
  int64_t max_new_tokens = 0;
  double temperature = 1; // 0: the most probable token
  double top_p = 1;
  std::vector<std::string> stop; // texts that end a completion
  std::vector<int64_t> end_ids; // tokens that end it
};

struct Request {
  int64_t id = 0; // within the round
  data::PooledPrompt prompt;
  uint64_t seed = 0; // of this completion's sampling; below 2^53, which any JSON reader keeps
  std::optional<double> temperature = {}; // nullopt: that of the round
};

// The lines that ask for these completions.
std::string request_lines(
    const std::vector<const Request*>& requests, const Sampling& sampling, const std::string& version);

struct Completion {
  std::vector<uint32_t> ids; // at least one; with the token that ended the text, if one did
  bool truncated = false; // by its length: what comes next is not known
  std::vector<double> logprobs; // of ids, nats, of the model's own distribution at temperature 1; empty: not known
};

// The line of a completion in the form in which engines write it.
std::string completion_line(const Request& request, const Completion& completion, const std::string& version);

// What a completion must fulfil.
struct CompletionRules {
  const std::vector<Request>& requests; // by id
  int64_t max_new_tokens = 0;
  int64_t vocab_size = 0; // ids from here on are no tokens
  const data::TokenLimits::Stream& limits; // which of them both models can read
  std::vector<int64_t> end_ids; // tokens that end a text
  std::string version; // of the student's weights
};

struct ReadCompletions {
  std::map<int64_t, Completion> completions; // by id
  std::vector<std::string> bad; // a line each: file, line and reason
  bool cut_off = false; // the last line has no end: its writer was killed
};

// Reads a file of completions. A line with anything wrong is not used and listed in `bad`. NotFound: there is no such
// file. The file is not trusted.
absl::StatusOr<ReadCompletions> read_completions(const std::string& path, const CompletionRules& rules);

} // namespace distill::onpolicy
