#include "trainer/setup/tokenizers.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "data/base/status_macros.h"
#include "trainer/metrics/log.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;

// A model's tokenizer; nullopt where its folder has none and the configuration names no other.
absl::StatusOr<std::optional<data::Tokenizer>> read_tokenizer(const config::ModelSection& section) {
  std::error_code error;
  const bool beside_model = fs::exists(fs::path(section.folder()) / "tokenizer.json", error);
  if (section.folder().empty() || (section.tokenizer.empty() && !beside_model)) {
    return std::optional<data::Tokenizer>();
  }
  auto tokenizer = data::read_tokenizer(section.tokenizer.empty() ? section.folder() : section.tokenizer);
  if (!tokenizer.ok()) {
    return tokenizer.status();
  }
  return std::optional(*std::move(tokenizer));
}

// The union of two sorted lists.
std::vector<int64_t> in_either(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> both;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

constexpr size_t kShown = 5; // tokens in a line of the log

// "3 tokens that the student's lacks: 128256 (\"<|think|>\"), ..."
void log_one_sided(
    const std::string& has, const std::string& lacks, const std::vector<int64_t>& ids,
    const RunTokenizers& tokenizers) {
  if (ids.empty()) {
    return;
  }
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(ids.size(), kShown); ++i) {
    shown.push_back(absl::StrCat(ids[i], " (\"", absl::Utf8SafeCEscape(tokenizers.token_text(ids[i])), "\")"));
  }
  if (ids.size() > kShown) {
    shown.push_back(absl::StrCat("and ", ids.size() - kShown, " more"));
  }
  metrics::log_warning_rank0(absl::StrCat(
      "the tokenizer of the ", has, " has ", ids.size(), ids.size() == 1 ? " token" : " tokens", " that the ", lacks,
      "'s lacks: ", absl::StrJoin(shown, ", "), "; no document may use ", ids.size() == 1 ? "it" : "them"));
}

} // namespace

data::TokenLimits RunTokenizers::limits(int64_t student_rows, int64_t teacher_rows) const {
  data::TokenLimits limits;
  limits.token_text = token_text;
  limits.teacher_texts = {teacher_rows, one_sided.student};
  const bool both = student_rows > 0 && teacher_rows > 0;
  limits.documents.rows = both ? std::min(student_rows, teacher_rows) : std::max(student_rows, teacher_rows);
  std::set_union(
      one_sided.teacher.begin(), one_sided.teacher.end(), one_sided.student.begin(), one_sided.student.end(),
      std::back_inserter(limits.documents.absent));
  return limits;
}

void RunTokenizers::add(RunTokenizers other) {
  for (const base::Digest& hash : other.hashes) {
    if (std::find(hashes.begin(), hashes.end(), hash) == hashes.end()) {
      hashes.push_back(hash);
    }
  }
  one_sided.teacher = in_either(one_sided.teacher, other.one_sided.teacher);
  one_sided.student = in_either(one_sided.student, other.one_sided.student);
  if (!token_text) {
    token_text = std::move(other.token_text);
  } else {
    token_text = [first = std::move(token_text), second = std::move(other.token_text)](int64_t id) {
      const std::string text = first(id);
      return text.empty() ? second(id) : text;
    };
  }
}

data::TokenLimits narrower(data::TokenLimits a, const data::TokenLimits& b) {
  const auto narrow = [](data::TokenLimits::Stream& own, const data::TokenLimits::Stream& other) {
    own.rows = own.rows > 0 && other.rows > 0 ? std::min(own.rows, other.rows) : std::max(own.rows, other.rows);
    own.absent = in_either(own.absent, other.absent);
  };
  narrow(a.documents, b.documents);
  narrow(a.teacher_texts, b.teacher_texts);
  a.token_text = a.token_text ? a.token_text : b.token_text;
  return a;
}

absl::StatusOr<RunTokenizers> check_tokenizers(const config::Config& config) {
  ASSIGN_OR_RETURN(auto student, read_tokenizer(config.student));
  ASSIGN_OR_RETURN(auto teacher, read_tokenizer(config.teacher));
  RunTokenizers out;
  if (student && teacher) {
    ASSIGN_OR_RETURN(out.one_sided, data::compare_tokenizers(*teacher, *student));
  } else if (config.has_teacher() && !config.student.path.empty()) {
    const bool student_lacks = !student.has_value();
    metrics::log_warning_rank0(absl::StrCat(
        "student and teacher tokenizers cannot be compared: no tokenizer.json in ",
        student_lacks ? config.student.path : config.teacher.folder(), "; name one in ",
        student_lacks ? "student.tokenizer" : "teacher.tokenizer"));
  }
  std::vector<std::shared_ptr<const data::Tokenizer>> known;
  for (auto* tokenizer : {&student, &teacher}) {
    if (!*tokenizer) {
      continue;
    }
    if (const base::Digest hash = (*tokenizer)->hash(); out.hashes.empty() || out.hashes[0] != hash) {
      out.hashes.push_back(hash);
    }
    known.push_back(std::make_shared<const data::Tokenizer>(*std::move(*tokenizer)));
  }
  out.token_text = [known = std::move(known)](int64_t id) {
    for (const auto& tokenizer : known) {
      const auto& tokens = tokenizer->tokens;
      const auto at = std::lower_bound(
          tokens.begin(), tokens.end(), id, [](const auto& token, int64_t value) { return token.first < value; });
      if (at != tokens.end() && at->first == id) {
        return at->second;
      }
    }
    return std::string();
  };
  log_one_sided("teacher", "student", out.one_sided.teacher, out);
  log_one_sided("student", "teacher", out.one_sided.student, out);
  return out;
}

} // namespace distill::trainer
