#include "trainer/onpolicy/teacher_tokens.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>

#include <filesystem>
#include <fstream>
#include <numeric>

#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::onpolicy {
namespace {

using Json = nlohmann::ordered_json;
using data::TextAlignment;

constexpr int kMaxDepth = 3;

std::string absolute(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::absolute(path, ignored).lexically_normal().string();
}

absl::Status unusable(const std::string& reason) {
  return absl::InvalidArgumentError(reason);
}

// The number of tokens of both models up to the end of the first `pieces` pieces.
std::pair<int64_t, int64_t> ends_of(const TextAlignment::Pieces& split, size_t pieces) {
  return pieces == 0 ? std::pair<int64_t, int64_t>(0, 0)
                     : std::pair(split.pieces[pieces - 1].end, split.pieces[pieces - 1].teacher_end);
}

Json member(const Json& object, const char* name) {
  return object.is_object() ? object.value(name, Json()) : Json();
}

// The completion that an answer is about.
absl::StatusOr<std::map<int64_t, Completion>::iterator> find_completion(
    const Json& answer, std::map<int64_t, Completion>& completions) {
  const Json id = member(answer, "id");
  const bool known = id.is_number_unsigned() && id.get<uint64_t>() <= INT64_MAX;
  const auto found = known ? completions.find(id.get<int64_t>()) : completions.end();
  if (found == completions.end()) {
    return unusable(absl::StrCat("id: expected that of a completion, found ", id.dump()));
  }
  return found;
}

absl::StatusOr<TeacherTokens> parse(const Json& answer, const Completion& completion) {
  const Json error = member(answer, "error"), tokens = member(answer, "tokens"), ids = member(answer, "teacher_ids");
  if (error.is_string()) {
    return unusable(error.get<std::string>());
  }
  if (!tokens.is_number_unsigned() || tokens.get<uint64_t>() > completion.ids.size()) {
    return unusable(absl::StrCat(
        "tokens: expected how many of its ", completion.ids.size(), " tokens have the text of teacher_ids, found ",
        tokens.dump()));
  }
  if (!ids.is_array()) {
    return unusable(absl::StrCat("teacher_ids: expected a list of token ids, found ", ids.type_name()));
  }
  TeacherTokens teacher{tokens.get<int64_t>(), {}};
  for (const Json& id : ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return unusable(
          absl::StrCat("teacher_ids[", teacher.ids.size(), "]: expected a token id, found ", id.type_name()));
    }
    teacher.ids.push_back(id.get<uint32_t>());
  }
  return teacher;
}

absl::Status take_answer(
    const Json& answer, const data::PooledPrompt& prompt, const RoundInputs& inputs, int64_t teacher_seq_len,
    Completion& completion) {
  const TextAlignment* alignment = inputs.alignment_of(prompt.teacher);
  if (alignment == nullptr) {
    return unusable("its teacher reads the student's tokens");
  }
  if (!completion.teacher_ids.empty()) {
    return absl::OkStatus(); // it has been answered
  }
  ASSIGN_OR_RETURN(TeacherTokens teacher, parse(answer, completion));
  return set_teacher_tokens(
      std::move(teacher), *alignment, teacher_seq_len - static_cast<int64_t>(prompt.teacher_ids.size()), completion);
}

} // namespace

std::string retokenize_lines(
    const std::vector<Request>& requests, const std::map<int64_t, Completion>& completions, const RoundInputs& inputs) {
  std::string lines;
  for (const auto& [id, completion] : completions) {
    const data::PooledPrompt& prompt = requests[static_cast<size_t>(id)].prompt;
    const TextAlignment* alignment = inputs.alignment_of(prompt.teacher);
    if (alignment == nullptr || !completion.teacher_ids.empty()) {
      continue;
    }
    Json pairs = Json::array();
    for (const auto& [own, its] : alignment->token_pairs()) {
      pairs.push_back({own, its});
    }
    const Json line = {
        {"id", id},
        {"student_tokenizer", absolute(alignment->student_path())},
        {"teacher_tokenizer", absolute(alignment->teacher_path())},
        {"token_pairs", std::move(pairs)},
        {"completion_ids", completion.ids}};
    absl::StrAppend(&lines, line.dump(-1, ' ', false, Json::error_handler_t::replace), "\n");
  }
  return lines;
}

absl::Status set_teacher_tokens(
    TeacherTokens teacher, const TextAlignment& alignment, int64_t room, Completion& completion) {
  for (size_t i = 0; i < teacher.ids.size(); ++i) {
    const int64_t id = teacher.ids[i];
    if (id >= alignment.teacher_vocab_size() || alignment.teacher_row(id) < 0) {
      return unusable(
          absl::StrCat("teacher_ids[", i, "]: expected an id with a row in the teacher's tables, found ", id));
    }
  }
  const std::vector<int64_t> own(completion.ids.begin(), completion.ids.begin() + teacher.tokens);
  const std::vector<int64_t> its(teacher.ids.begin(), teacher.ids.end());
  std::vector<int64_t> positions(std::max(own.size(), its.size()));
  std::iota(positions.begin(), positions.end(), 0);
  const auto in_order = [&](const std::vector<int64_t>& ids) { // they stand one after the other
    return TextAlignment::Tokens{ids, absl::MakeConstSpan(positions).first(ids.size())};
  };
  TextAlignment::Pieces split;
  if (const absl::Status status = alignment.align(in_order(own), in_order(its), split); !status.ok()) {
    return unusable(std::string(status.message()));
  }
  LeftOff left;
  left.characters = static_cast<int64_t>(completion.ids.size()) - teacher.tokens;
  std::pair<int64_t, int64_t> ends(own.size(), its.size());
  const auto cut_to = [&](size_t pieces, int64_t& left_off) {
    const auto shorter = ends_of(split, pieces);
    left_off = ends.first - shorter.first;
    ends = shorter;
  };
  size_t pieces = split.pieces.size();
  if ((completion.truncated || left.characters > 0) && pieces > 0 && split.pieces.back().is_span()) {
    cut_to(--pieces, left.spans);
  }
  if (ends.second > room) {
    while (pieces > 0 && ends_of(split, pieces).second > room) {
      --pieces;
    }
    cut_to(pieces, left.room);
  }
  if (pieces == 0 || split.pieces.empty()) {
    return unusable(absl::StrCat(
        "nothing of its ", completion.ids.size(), " tokens can be compared: ",
        left.room > 0        ? absl::StrCat("the teacher's sequence has room for ", room, " (data.teacher_seq_len)")
            : left.spans > 0 ? "it was truncated before both models had a token boundary"
            : left.characters > 0 ? "no character of it is complete"
                                  : "it has no text"));
  }
  completion.ids.resize(static_cast<size_t>(ends.first));
  if (!completion.logprobs.empty()) {
    completion.logprobs.resize(completion.ids.size());
  }
  teacher.ids.resize(static_cast<size_t>(ends.second));
  completion.teacher_ids = std::move(teacher.ids);
  completion.left_off = left;
  return absl::OkStatus();
}

absl::Status read_teacher_tokens(
    const std::string& path, const std::vector<Request>& requests, const RoundInputs& inputs, int64_t teacher_seq_len,
    std::map<int64_t, Completion>& completions, std::vector<std::string>& bad) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  }
  absl::flat_hash_map<int64_t, std::string> reasons; // why a completion cannot be used
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    const std::string place = absl::StrCat(path, ":", ++number, ": ");
    const auto answer = base::parse_json(line, "no JSON", kMaxDepth);
    const auto found = answer.ok() ? find_completion(*answer, completions) : answer.status();
    if (!found.ok()) {
      bad.push_back(place + std::string(found.status().message()));
      continue;
    }
    auto& [id, completion] = **found;
    const data::PooledPrompt& prompt = requests[static_cast<size_t>(id)].prompt;
    if (const absl::Status status = take_answer(*answer, prompt, inputs, teacher_seq_len, completion); !status.ok()) {
      reasons.emplace(id, absl::StrCat(place, "completion ", id, ": ", std::string(status.message())));
    }
  }
  std::erase_if(completions, [&](const auto& entry) {
    const auto& [id, completion] = entry;
    const bool lacks = completion.teacher_ids.empty() &&
        inputs.alignment_of(requests[static_cast<size_t>(id)].prompt.teacher) != nullptr;
    if (lacks) {
      const auto reason = reasons.find(id);
      bad.push_back(
          reason != reasons.end()
              ? reason->second
              : absl::StrCat(path, ": completion ", id, ": no good line with the teacher's tokens"));
    }
    return lacks;
  });
  return absl::OkStatus();
}

LeftOff sum_left_off(const std::map<int64_t, Completion>& completions) {
  LeftOff sum;
  for (const auto& [id, completion] : completions) {
    sum.characters += completion.left_off.characters;
    sum.spans += completion.left_off.spans;
    sum.room += completion.left_off.room;
  }
  return sum;
}

} // namespace distill::onpolicy
