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

// Tokens at the end of a completion that have no counterpart in the teacher's own tokens, and are not learned
// (teacher_tokens.h).
struct LeftOff {
  int64_t characters = 0; // of an incomplete character
  int64_t spans = 0; // of a truncated completion: whose text the teacher would split in another way if it went on
  int64_t room = 0; // beyond data.teacher_seq_len

  bool operator==(const LeftOff&) const = default;
};

struct Completion {
  std::vector<uint32_t> ids; // at least one; with the token that ended the text, if one did
  bool truncated = false; // by its length: what comes next is not known
  std::vector<double> logprobs; // of ids, nats, of the model's own distribution at temperature 1; empty: not known
  // Of a teacher with a tokenizer of its own: the same text in its tokens; empty: not known yet.
  std::vector<uint32_t> teacher_ids = {};
  LeftOff left_off = {}; // from `ids`, once teacher_ids are known
};

// The line of a completion in the form in which engines write it; with teacher_ids, with these and left_off, too.
std::string completion_line(const Request& request, const Completion& completion, const std::string& version);

// What a completion must fulfil.
struct CompletionRules {
  const std::vector<Request>& requests; // by id
  int64_t max_new_tokens = 0;
  int64_t vocab_size = 0; // ids from here on are no tokens
  const data::TokenLimits::Stream& limits; // which of them both models can read
  std::vector<int64_t> end_ids; // tokens that end a text
  std::string version; // of the student's weights
  bool own_lines = false; // the lines are completion_line()'s: teacher_ids and left_off are read
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
