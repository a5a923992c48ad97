#include "trainer/onpolicy/judgement.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>

#include "data/base/status_macros.h"

namespace distill::onpolicy {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "distill-judged";
constexpr int kVersion = 1;
constexpr int64_t kStretches = 16;
// What is stored of a round: so many completions, and of each one so many tokens and the end of its prompt.
constexpr size_t kCompletions = 8;
constexpr int64_t kTokens = 1024;
constexpr int64_t kPromptTokens = 256;
// The teacher does not follow from a position on if, of at least so many tokens before and after it, its agreement is
// below this share of what it was, and the KL above this multiple.
constexpr int64_t kLeastTokens = 64;
constexpr double kMostAgreement = 0.5;
constexpr double kLeastKl = 2;

// The numbers of a token, with their names in judged.json.
struct Number {
  const char* name;
  double (*of)(const JudgedToken&);
  bool of_all = false; // known of tokens that are not compared, too
};
constexpr Number kNumbers[] = {
    {"loss", [](const JudgedToken& token) { return token.loss; }, true},
    {"logprob", [](const JudgedToken& token) { return token.logprob; }, true},
    {"forward_kl", [](const JudgedToken& token) { return token.forward_kl; }},
    {"reverse_kl", [](const JudgedToken& token) { return token.reverse_kl; }},
    {"entropy", [](const JudgedToken& token) { return token.entropy; }},
    {"agrees", [](const JudgedToken& token) { return token.agrees ? 1.0 : 0.0; }}};

// A mean, with its name there.
struct Mean {
  const char* name;
  double PositionMeans::*member;
  int64_t PositionMeans::*count = &PositionMeans::compared;
};
constexpr Mean kMeans[] = {
    {"loss", &PositionMeans::loss, &PositionMeans::tokens},
    {"forward_kl", &PositionMeans::forward_kl},
    {"reverse_kl", &PositionMeans::reverse_kl},
    {"entropy", &PositionMeans::entropy},
    {"agreement", &PositionMeans::agreement}};

// Six digits are more than a token's number is exact to.
Json rounded(double value) {
  if (!std::isfinite(value)) {
    return nullptr;
  }
  return std::round(value * 1e6) / 1e6;
}

void add(PositionMeans& sums, const JudgedToken& token) {
  ++sums.tokens;
  sums.loss += token.loss;
  if (!token.compared) {
    return;
  }
  ++sums.compared;
  sums.forward_kl += token.forward_kl;
  sums.reverse_kl += token.reverse_kl;
  sums.entropy += token.entropy;
  sums.agreement += token.agrees ? 1 : 0;
}

// Makes means of sums.
void divide(PositionMeans& sums) {
  for (const Mean& mean : kMeans) {
    const int64_t count = sums.*mean.count;
    sums.*mean.member = count > 0 ? sums.*mean.member / static_cast<double>(count) : NAN;
  }
}

// The means over several stretches; NaN without a token.
template <class Chosen>
PositionMeans joined(const std::vector<PositionMeans>& positions, const Chosen& chosen) {
  PositionMeans all;
  for (const PositionMeans& one : positions) {
    if (!chosen(one)) {
      continue;
    }
    all.begin = all.end == 0 ? one.begin : all.begin;
    all.end = one.end;
    all.tokens += one.tokens;
    all.compared += one.compared;
    for (const Mean& mean : kMeans) {
      const int64_t count = one.*mean.count;
      all.*mean.member += count > 0 ? one.*mean.member * static_cast<double>(count) : 0;
    }
  }
  divide(all);
  return all;
}

// Whether the teacher agrees much less with the tokens of `later` than with those of `before`.
bool falls_off(const PositionMeans& before, const PositionMeans& later) {
  return before.compared >= kLeastTokens && later.compared >= kLeastTokens &&
      later.agreement < kMostAgreement * before.agreement && later.reverse_kl > kLeastKl * before.reverse_kl;
}

std::vector<int64_t> ids_of(const data::Shard& shard, int64_t document, absl::Status& status) {
  std::vector<int64_t> ids(static_cast<size_t>(shard.document_length(document)));
  status = shard.read_tokens(shard.document_begin(document), absl::MakeSpan(ids));
  return ids;
}

// The tokens of a document before its completion.
int64_t prompt_length(const data::Shard& shard, int64_t document) {
  const int64_t begin = shard.document_begin(document), length = shard.document_length(document);
  int64_t prompt = 0;
  while (prompt < length && !shard.in_loss(begin + prompt)) {
    ++prompt;
  }
  return prompt;
}

absl::StatusOr<Json> completion_json(
    const JudgedCompletion& judged, const RoundShards& shards, const data::TokenText* text) {
  absl::Status status;
  const auto [shard, document] = shards.find(judged.document);
  const std::vector<int64_t> ids = ids_of(*shard, document, status);
  RETURN_IF_ERROR(status);
  const int64_t prompt = prompt_length(*shard, document), length = static_cast<int64_t>(ids.size()) - prompt;
  if (length != static_cast<int64_t>(judged.tokens.size())) {
    return absl::InternalError(absl::StrFormat(
        "%s: document %d: expected %d judged tokens, those of its completion, found %d", shard->path(), document,
        length, judged.tokens.size()));
  }
  const int64_t first = std::max<int64_t>(0, prompt - kPromptTokens), stored = std::min(length, kTokens);
  const std::vector<int64_t> shown(ids.begin() + first, ids.begin() + prompt + stored);
  Json json = {
      {"document", judged.document},
      {"prompt_tokens", prompt},
      {"completion_tokens", length},
      {"prompt_ids", std::vector<int64_t>(shown.begin(), shown.begin() + (prompt - first))},
      {"ids", std::vector<int64_t>(shown.begin() + (prompt - first), shown.end())}};
  json["prompt"] = nullptr;
  json["texts"] = nullptr;
  if (text != nullptr) {
    const std::vector<data::TokenPiece> pieces = text->decode(shown);
    std::string before;
    Json texts = Json::array();
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (static_cast<int64_t>(i) < prompt - first) {
        before += pieces[i].text;
      } else {
        texts.push_back(pieces[i].text);
      }
    }
    json["prompt"] = before;
    json["texts"] = std::move(texts);
  }
  for (const Number& number : kNumbers) {
    Json& values = json[number.name] = Json::array();
    for (int64_t i = 0; i < stored; ++i) {
      const JudgedToken& token = judged.tokens[static_cast<size_t>(i)];
      values.push_back(number.of_all || token.compared ? rounded(number.of(token)) : Json());
    }
  }
  return json;
}

absl::Status check_completion(const Json& completion, const RoundShards& shards) {
  const auto document = completion.value("document", int64_t{-1});
  if (document < 0 || document >= shards.documents()) {
    return absl::DataLossError(absl::StrFormat("document %d of %d", document, shards.documents()));
  }
  absl::Status status;
  const auto [shard, in_shard] = shards.find(document);
  const std::vector<int64_t> ids = ids_of(*shard, in_shard, status);
  RETURN_IF_ERROR(status);
  const auto own = completion.value("ids", std::vector<int64_t>());
  const int64_t prompt = prompt_length(*shard, in_shard);
  const int64_t stored = std::min(static_cast<int64_t>(ids.size()) - prompt, kTokens);
  if (own != std::vector<int64_t>(ids.begin() + prompt, ids.begin() + prompt + stored)) {
    return absl::DataLossError(absl::StrFormat("document %d: other ids than the token shard's", document));
  }
  for (const Number& number : kNumbers) {
    const auto values = completion.find(number.name);
    if (values == completion.end() || !values->is_array() || static_cast<int64_t>(values->size()) != stored) {
      return absl::DataLossError(absl::StrFormat(
          "document %d: expected a number for each of the %d tokens as \"%s\"", document, stored, number.name));
    }
  }
  return absl::OkStatus();
}

} // namespace

std::vector<PositionMeans> by_position(const std::vector<JudgedCompletion>& completions, int64_t most) {
  const int64_t width = std::max<int64_t>(1, (most + kStretches - 1) / kStretches);
  std::vector<PositionMeans> positions;
  for (const JudgedCompletion& completion : completions) {
    for (size_t i = 0; i < completion.tokens.size(); ++i) {
      const auto stretch = static_cast<size_t>(static_cast<int64_t>(i) / width);
      while (positions.size() <= stretch) {
        const int64_t begin = static_cast<int64_t>(positions.size()) * width;
        positions.push_back({begin, std::max(begin + 1, std::min(begin + width, most))});
      }
      add(positions[stretch], completion.tokens[i]);
    }
  }
  for (PositionMeans& one : positions) {
    divide(one);
  }
  return positions;
}

EarlyAndLate early_and_late(const std::vector<PositionMeans>& positions, int64_t most) {
  return {
      joined(positions, [&](const PositionMeans& one) { return 4 * one.begin < most; }),
      joined(positions, [&](const PositionMeans& one) { return 4 * one.begin >= 3 * most; })};
}

std::string position_warning(const std::vector<PositionMeans>& positions, int64_t most) {
  for (const PositionMeans& from : positions) {
    if (4 * from.begin < most || from.compared == 0) {
      continue;
    }
    const PositionMeans before = joined(positions, [&](const PositionMeans& one) { return one.end <= from.begin; });
    const PositionMeans later = joined(positions, [&](const PositionMeans& one) { return one.begin >= from.begin; });
    // The stretch itself is one of those in which the teacher does not follow, so that the position is not too early.
    if (falls_off(before, later) && from.agreement < kMostAgreement * before.agreement) {
      return absl::StrFormat(
          "from token %d of a completion on the teacher agrees with %.0f%% of the tokens (KL %.3f), before it with "
          "%.0f%% (KL %.3f): the completions run beyond where the teacher follows, and what is learned there is noise; "
          "lower onpolicy.max_new_tokens to about %d, or end them earlier with onpolicy.stop",
          from.begin, 100 * later.agreement, later.reverse_kl, 100 * before.agreement, before.reverse_kl, from.begin);
    }
  }
  return "";
}

absl::StatusOr<Json> judged_json(
    const std::vector<JudgedCompletion>& completions, int64_t most, const RoundShards& shards,
    const data::TokenText* text) {
  int64_t tokens = 0;
  for (const JudgedCompletion& completion : completions) {
    tokens += static_cast<int64_t>(completion.tokens.size());
  }
  Json json = {{"format", kFormat}, {"version", kVersion}, {"tokens", tokens}};
  Json& positions = json["positions"] = Json::array();
  for (const PositionMeans& one : by_position(completions, most)) {
    Json means = {{"begin", one.begin}, {"end", one.end}, {"tokens", one.tokens}};
    if (one.compared < one.tokens) {
      means["compared"] = one.compared;
    }
    for (const Mean& mean : kMeans) {
      means[mean.name] = rounded(one.*mean.member);
    }
    positions.push_back(std::move(means));
  }
  Json& shown = json["completions"] = Json::array();
  for (size_t i = 0; i < std::min(completions.size(), kCompletions); ++i) {
    ASSIGN_OR_RETURN(Json completion, completion_json(completions[i], shards, text));
    shown.push_back(std::move(completion));
  }
  return json;
}

absl::Status check_judged(const Json& judged, const RoundShards& shards, const std::string& file) {
  const auto wrong = [&](const std::string& what) { return absl::DataLossError(absl::StrCat(file, ": ", what)); };
  if (!judged.is_object() || judged.value("format", Json()) != kFormat || !judged.contains("positions") ||
      !judged["positions"].is_array() || !judged.contains("completions") || !judged["completions"].is_array()) {
    return wrong("expected what student and teacher say of a round's completions");
  }
  try {
    int64_t tokens = 0;
    for (const Json& one : judged["positions"]) {
      tokens += one.value("tokens", int64_t{0});
    }
    if (tokens != judged.value("tokens", int64_t{-1})) {
      return wrong(absl::StrFormat("expected %s tokens by position, found %d", judged["tokens"].dump(), tokens));
    }
    for (const Json& completion : judged["completions"]) {
      if (const absl::Status status = check_completion(completion, shards); !status.ok()) {
        return wrong(std::string(status.message()));
      }
    }
  } catch (const nlohmann::json::exception& error) {
    return wrong(error.what());
  }
  return absl::OkStatus();
}

} // namespace distill::onpolicy
