#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/token_text.h"
#include "trainer/onpolicy/round_shards.h"

// What is said of a round's first completions, before they are learned, by the student that is about to learn them and
// by the teacher: judged.json in the round's folder (docs/onpolicy.md).
namespace distill::onpolicy {

// Divergences and entropies are in nats and over the whole vocabulary, at the temperature of onpolicy_loss. With a
// teacher that has a tokenizer of its own they are over the tokens that both have, and known where `compared`; the loss
// of a span is that of its first token.
struct JudgedToken {
  double loss = 0; // that of onpolicy_loss
  double logprob = 0; // of the token under the student, at temperature 1
  double forward_kl = 0, reverse_kl = 0; // KL(teacher || student), KL(student || teacher)
  double entropy = 0; // the student's
  bool agrees = false; // teacher and student have the same most probable token
  bool compared = true; // whether the two distributions are compared here
};

struct JudgedCompletion {
  int64_t document = 0; // of the round's shards
  std::vector<JudgedToken> tokens; // of the completion, from its first one on
};

// Means over the judged tokens at the positions [begin, end) of their completions.
struct PositionMeans {
  int64_t begin = 0, end = 0;
  int64_t tokens = 0; // the loss is their mean
  int64_t compared = 0; // of these, the tokens whose distributions are compared: the other numbers are their means
  double loss = 0, forward_kl = 0, reverse_kl = 0, entropy = 0, agreement = 0; // NaN where there is no token
};

// The tokens of all completions by their positions: at most 16 stretches of equal length up to `most`, the largest
// length of a completion. The last stretches are left out where no completion reaches them.
std::vector<PositionMeans> by_position(const std::vector<JudgedCompletion>& completions, int64_t most);

// The means over the first quarter of the positions up to `most`, and over the last one.
struct EarlyAndLate {
  PositionMeans early, late;
};
EarlyAndLate early_and_late(const std::vector<PositionMeans>& positions, int64_t most);

// A line with its probable cause where the teacher agrees with the completions' beginnings and falls off later; empty:
// it does not, or there are too few tokens to say so.
std::string position_warning(const std::vector<PositionMeans>& positions, int64_t most);

// The content of judged.json: the means by position, and the first completions token by token. `shards`: the round's;
// `text`: of the student's tokenizer; null: texts are not known, and are null.
absl::StatusOr<nlohmann::ordered_json> judged_json(
    const std::vector<JudgedCompletion>& completions, int64_t most, const RoundShards& shards,
    const data::TokenText* text);

// DataLoss: `judged`, the content of judged.json, is damaged, or is not about the shards. `file` names it in the
// message.
absl::Status check_judged(const nlohmann::ordered_json& judged, const RoundShards& shards, const std::string& file);

} // namespace distill::onpolicy
