#include "data/vocabulary_map.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "data/base/problem_list.h"

namespace distill::data {
namespace {

constexpr size_t kShown = 5;

std::string quoted(const std::string& text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

// The ids of each text, ascending.
using IdsOfTexts = absl::flat_hash_map<std::string_view, std::vector<int64_t>>;

IdsOfTexts ids_of_texts(const Tokenizer& tokenizer) {
  IdsOfTexts ids;
  for (const auto& [id, text] : tokenizer.tokens) {
    ids[text].push_back(id);
  }
  return ids;
}

std::vector<int64_t> unique_ids(const Tokenizer& tokenizer) {
  std::vector<int64_t> ids;
  for (const auto& [id, text] : tokenizer.tokens) {
    if (ids.empty() || ids.back() != id) {
      ids.push_back(id);
    }
  }
  return ids;
}

// Tokens of the vocabulary, not added ones, whose text the other tokenizer does not have at all.
std::string missing_tokens(const char* has, const char* lacks, const Tokenizer& some, const IdsOfTexts& other) {
  absl::flat_hash_set<int64_t> added;
  for (const AddedToken& token : some.added) {
    added.insert(token.id);
  }
  std::vector<std::string> shown;
  size_t missing = 0, all = 0;
  for (const auto& [id, text] : some.tokens) {
    if (added.contains(id)) {
      continue;
    }
    ++all;
    if (!other.contains(text) && ++missing <= kShown) {
      shown.push_back(absl::StrCat(id, " (", quoted(text), ")"));
    }
  }
  if (missing == 0) {
    return "";
  }
  if (missing > kShown) {
    shown.push_back(absl::StrCat("and ", missing - kShown, " more"));
  }
  return absl::StrCat(
      "  model.vocab: the ", lacks, " has ", all - missing, " of the ", has, "'s ", all, " tokens; it lacks ",
      absl::StrJoin(shown, ", "));
}

std::string merge_difference(const Tokenizer& teacher, const Tokenizer& student) {
  const auto text = [](const Tokenizer& tokenizer, size_t rank) {
    return rank < tokenizer.merges.size()
        ? absl::StrCat(quoted(tokenizer.merges[rank].first), " + ", quoted(tokenizer.merges[rank].second))
        : absl::StrCat("has ", tokenizer.merges.size(), " merges");
  };
  size_t rank = 0;
  while (rank < std::min(teacher.merges.size(), student.merges.size()) &&
         teacher.merges[rank] == student.merges[rank]) {
    ++rank;
  }
  return absl::StrCat("  merge ", rank, ": teacher ", text(teacher, rank), ", student ", text(student, rank));
}

// The scores of a Unigram model, by text.
std::vector<std::pair<std::string_view, double>> scores_of(const Tokenizer& tokenizer) {
  std::vector<std::pair<std::string_view, double>> scores;
  for (const auto& [id, text] : tokenizer.tokens) {
    if (id < static_cast<int64_t>(tokenizer.scores.size())) {
      scores.emplace_back(text, tokenizer.scores[static_cast<size_t>(id)]);
    }
  }
  std::sort(scores.begin(), scores.end());
  return scores;
}

// Lists what makes the two tokenizers split a text in other ways, or into tokens that one of them lacks.
std::string differences(
    const Tokenizer& teacher, const Tokenizer& student, const IdsOfTexts& teacher_ids, const IdsOfTexts& student_ids) {
  base::ProblemList problems;
  const auto component = [&](const char* name, const std::string& of_teacher, const std::string& of_student) {
    if (of_teacher != of_student) {
      problems.add(absl::StrCat("  ", name, ": teacher ", of_teacher, ", student ", of_student));
    }
  };
  component("model.type", teacher.model, student.model);
  for (const std::string& text :
       {missing_tokens("teacher", "student", teacher, student_ids),
        missing_tokens("student", "teacher", student, teacher_ids)}) {
    if (!text.empty()) {
      problems.add(text);
    }
  }
  if (teacher.merges != student.merges) {
    problems.add(merge_difference(teacher, student));
  }
  if (problems.empty() && teacher.scores != student.scores && scores_of(teacher) != scores_of(student)) {
    problems.add("  model.vocab: the scores differ");
  }
  component("model", teacher.model_options, student.model_options);
  component("normalizer", teacher.normalizer, student.normalizer);
  component("pre_tokenizer", teacher.pre_tokenizer, student.pre_tokenizer);
  return problems.empty() ? "" : problems.text();
}

} // namespace

absl::StatusOr<VocabularyMap> map_vocabularies(const Tokenizer& teacher, const Tokenizer& student) {
  const IdsOfTexts teacher_ids = ids_of_texts(teacher), student_ids = ids_of_texts(student);
  if (const std::string text = differences(teacher, student, teacher_ids, student_ids); !text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "teacher and student have different tokenizers: ", teacher.path, " and ", student.path, "\n", text));
  }
  VocabularyMap map;
  // An id of each side is part of one pair at most.
  absl::flat_hash_set<int64_t> of_teacher, of_student;
  // Equal ids come first, so that a text that has two of them keeps both in their places.
  for (const bool equal : {true, false}) {
    for (const auto& [id, text] : student.tokens) {
      const auto found = teacher_ids.find(text);
      if (found == teacher_ids.end() || of_student.contains(id)) {
        continue;
      }
      const std::vector<int64_t>& ids = found->second;
      const auto fits = std::find_if(ids.begin(), ids.end(), [&, id = id](int64_t other) {
        return !of_teacher.contains(other) && (!equal || other == id);
      });
      if (fits != ids.end()) {
        map.shared.push_back({id, *fits});
        of_teacher.insert(*fits);
        of_student.insert(id);
        map.moved += equal ? 0 : 1;
      }
    }
  }
  std::sort(map.shared.begin(), map.shared.end(), [](const auto& a, const auto& b) { return a.student < b.student; });
  for (const int64_t id : unique_ids(teacher)) {
    if (!of_teacher.contains(id)) {
      map.teacher_only.push_back(id);
    }
  }
  for (const int64_t id : unique_ids(student)) {
    if (!of_student.contains(id)) {
      map.student_only.push_back(id);
    }
  }
  return map;
}

} // namespace distill::data
