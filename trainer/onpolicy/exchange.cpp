#include "trainer/onpolicy/exchange.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::onpolicy {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 4;
constexpr double kLogprobSlack = 1e-3; // rounding may bring the logarithm of 1 above 0

absl::Status wrong(const std::string& key, const std::string& expected, const std::string& found) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": expected ", expected, ", found ", found));
}

std::string brief(const Json& value) {
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? absl::StrCat(text.substr(0, 60), "...") : text;
}

// The member of an object; null where it is absent or null.
const Json* member(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<std::vector<uint32_t>> ids_of(const Json& object, const char* key) {
  const Json* list = member(object, key);
  if (list == nullptr || !list->is_array()) {
    return wrong(key, "a list of token ids", list == nullptr ? "none" : brief(*list));
  }
  std::vector<uint32_t> ids;
  for (const Json& id : *list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return wrong(absl::StrCat(key, "[", ids.size(), "]"), "a token id", brief(id));
    }
    ids.push_back(static_cast<uint32_t>(id.get<uint64_t>()));
  }
  return ids;
}

absl::Status check_ids(const std::vector<uint32_t>& ids, const CompletionRules& rules) {
  if (ids.empty() || static_cast<int64_t>(ids.size()) > rules.max_new_tokens) {
    return wrong(
        "completion_ids", absl::StrCat("1 to ", rules.max_new_tokens, " tokens (onpolicy.max_new_tokens)"),
        absl::StrCat(ids.size()));
  }
  const int64_t rows = rules.limits.rows > 0 ? std::min(rules.limits.rows, rules.vocab_size) : rules.vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string place = absl::StrCat("completion_ids[", i, "]");
    if (ids[i] >= rows) {
      return wrong(place, absl::StrCat("an id below ", rows, ", the tokens of both models"), absl::StrCat(ids[i]));
    }
    if (std::binary_search(rules.limits.absent.begin(), rules.limits.absent.end(), ids[i])) {
      return wrong(place, "a token that both models' tokenizers have", absl::StrCat(ids[i]));
    }
    if (i + 1 < ids.size() && std::binary_search(rules.end_ids.begin(), rules.end_ids.end(), ids[i])) {
      return wrong(
          place, "no token after the end of the text",
          absl::StrCat("the end-of-text token ", ids[i], " before ", ids.size() - i - 1, " more"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> logprobs_of(const Json& object, size_t tokens) {
  const Json* list = member(object, "logprobs");
  std::vector<double> logprobs;
  if (list == nullptr) {
    return logprobs;
  }
  if (!list->is_array() || list->size() != tokens) {
    return wrong(
        "logprobs", absl::StrCat("null, or a number for each of the ", tokens, " tokens"),
        list->is_array() ? absl::StrCat(list->size()) : brief(*list));
  }
  for (const Json& value : *list) {
    const double number = value.is_number() ? value.get<double>() : NAN;
    if (!std::isfinite(number) || number > kLogprobSlack) {
      return wrong(absl::StrCat("logprobs[", logprobs.size(), "]"), "the logarithm of a probability", brief(value));
    }
    logprobs.push_back(number);
  }
  return logprobs;
}

// What completion_line() adds for a teacher with a tokenizer of its own. Without it the completion is an engine's.
absl::Status read_teacher_tokens(const Json& object, Completion& completion) {
  const Json* left = member(object, "left_off");
  if (left == nullptr) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(completion.teacher_ids, ids_of(object, "teacher_ids"));
  for (const auto& [name, count] :
       {std::pair("characters", &completion.left_off.characters),
        {"spans", &completion.left_off.spans},
        {"room", &completion.left_off.room}}) {
    const Json* value = left->is_object() ? member(*left, name) : nullptr;
    if (value == nullptr || !value->is_number_unsigned()) {
      return wrong(absl::StrCat("left_off.", name), "a number of tokens", brief(*left));
    }
    *count = value->get<int64_t>();
  }
  return absl::OkStatus();
}

absl::Status check_versions(const Json& object, const CompletionRules& rules, const std::string& name) {
  const Json* version = member(object, "weight_version");
  if (version != nullptr && *version != rules.version) {
    return wrong("weight_version", rules.version + ", the weights of this round", brief(*version));
  }
  const Json* teacher = member(object, "teacher");
  if (teacher != nullptr && *teacher != "" && *teacher != name) {
    return wrong(
        "teacher",
        name.empty() ? "null: the run has one teacher" : absl::StrCat("null or ", name, ", as the prompt has"),
        brief(*teacher));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<int64_t, Completion>> parse(const std::string& line, const CompletionRules& rules) {
  ASSIGN_OR_RETURN(const Json object, base::parse_json(line, "no JSON", kMaxDepth));
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("expected an object, found ", brief(object)));
  }
  const auto asked = static_cast<int64_t>(rules.requests.size());
  const Json* id = member(object, "id");
  if (id == nullptr || !id->is_number_unsigned() || id->get<uint64_t>() >= static_cast<uint64_t>(asked)) {
    return wrong("id", absl::StrCat("that of a prompt, 0 to ", asked - 1), id == nullptr ? "none" : brief(*id));
  }
  const auto number = id->get<int64_t>();
  const std::vector<uint32_t>& expected = rules.requests[static_cast<size_t>(number)].prompt.ids;
  ASSIGN_OR_RETURN(const std::vector<uint32_t> prompt, ids_of(object, "prompt_ids"));
  if (prompt != expected) {
    const auto at = std::mismatch(prompt.begin(), prompt.end(), expected.begin(), expected.end());
    return wrong(
        "prompt_ids", absl::StrCat("the ", expected.size(), " ids of prompt ", number),
        absl::StrCat(prompt.size(), " ids, of which [", at.first - prompt.begin(), "] is the first that differs"));
  }
  Completion completion;
  ASSIGN_OR_RETURN(completion.ids, ids_of(object, "completion_ids"));
  RETURN_IF_ERROR(check_ids(completion.ids, rules));
  const Json* reason = member(object, "finish_reason");
  if (reason == nullptr || (*reason != "stop" && *reason != "length")) {
    return wrong("finish_reason", "stop or length", reason == nullptr ? "none" : brief(*reason));
  }
  completion.truncated = *reason == "length";
  ASSIGN_OR_RETURN(completion.logprobs, logprobs_of(object, completion.ids.size()));
  RETURN_IF_ERROR(check_versions(object, rules, rules.requests[static_cast<size_t>(number)].prompt.teacher));
  if (rules.own_lines) {
    RETURN_IF_ERROR(read_teacher_tokens(object, completion));
  }
  return std::pair(number, std::move(completion));
}

} // namespace

std::string request_lines(
    const std::vector<const Request*>& requests, const Sampling& sampling, const std::string& version) {
  std::string lines;
  for (const Request* request : requests) {
    const Json line = {
        {"id", request->id},
        {"prompt_ids", request->prompt.ids},
        {"seed", request->seed},
        {"max_new_tokens", sampling.max_new_tokens},
        {"temperature", request->temperature.value_or(sampling.temperature)},
        {"top_p", sampling.top_p},
        {"stop", sampling.stop},
        {"stop_token_ids", sampling.end_ids},
        {"weight_version", version}};
    absl::StrAppend(&lines, line.dump(), "\n");
  }
  return lines;
}

std::string completion_line(const Request& request, const Completion& completion, const std::string& version) {
  Json line = {
      {"id", request.id},
      {"prompt_ids", request.prompt.ids},
      {"completion_ids", completion.ids},
      {"finish_reason", completion.truncated ? "length" : "stop"}};
  line["logprobs"] = completion.logprobs.empty() ? Json() : Json(completion.logprobs);
  line["weight_version"] = version;
  line["teacher"] = request.prompt.teacher.empty() ? Json() : Json(request.prompt.teacher);
  if (!completion.teacher_ids.empty()) {
    line["teacher_ids"] = completion.teacher_ids;
    const LeftOff& left = completion.left_off;
    line["left_off"] = {{"characters", left.characters}, {"spans", left.spans}, {"room", left.room}};
  }
  return line.dump() + "\n";
}

absl::StatusOr<ReadCompletions> read_completions(const std::string& path, const CompletionRules& rules) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  ReadCompletions read;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    auto parsed = parse(line, rules);
    if (!parsed.ok() && file.eof()) {
      read.cut_off = true;
    } else if (!parsed.ok()) {
      read.bad.push_back(absl::StrCat(path, ":", number, ": ", std::string(parsed.status().message())));
    } else if (!read.completions.emplace(parsed->first, std::move(parsed->second)).second) {
      read.bad.push_back(absl::StrCat(path, ":", number, ": id: a second completion of prompt ", parsed->first));
    }
  }
  return read;
}

} // namespace distill::onpolicy
