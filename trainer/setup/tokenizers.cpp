#include "trainer/setup/tokenizers.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>

#include "data/base/status_macros.h"
#include "trainer/config/teachers.h"
#include "trainer/metrics/log.h"
#include "trainer/teacher_cache/cache_folder.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using SharedTokenizer = std::shared_ptr<const data::Tokenizer>;

// The union of two sorted lists.
std::vector<int64_t> in_either(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  std::vector<int64_t> both;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

constexpr size_t kShown = 5; // tokens in a line of the log
constexpr int64_t kMaxRows = int64_t{1} << 26; // of a table whose rows are reordered

// The tokenizer at a path, or else in a folder; null where the folder has none.
absl::StatusOr<SharedTokenizer> read_one(const std::string& path, const std::string& folder) {
  std::error_code error;
  if (path.empty() && (folder.empty() || !fs::exists(fs::path(folder) / "tokenizer.json", error))) {
    return SharedTokenizer();
  }
  ASSIGN_OR_RETURN(data::Tokenizer tokenizer, data::read_tokenizer(path.empty() ? folder : path));
  return std::make_shared<const data::Tokenizer>(std::move(tokenizer));
}

std::string text_of(const SharedTokenizer& tokenizer, int64_t id) {
  if (tokenizer == nullptr) {
    return "";
  }
  const auto& tokens = tokenizer->tokens;
  const auto at = std::lower_bound(
      tokens.begin(), tokens.end(), id, [](const auto& token, int64_t value) { return token.first < value; });
  return at != tokens.end() && at->first == id ? at->second : "";
}

// "3 tokens that the student's lacks: 128256 (\"<|think|>\"), ..."
void log_one_sided(
    const std::string& has, const std::string& lacks, const std::vector<int64_t>& ids, const SharedTokenizer& tokenizer,
    bool masks) {
  if (ids.empty()) {
    return;
  }
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(ids.size(), kShown); ++i) {
    shown.push_back(absl::StrCat(ids[i], " (\"", absl::Utf8SafeCEscape(text_of(tokenizer, ids[i])), "\")"));
  }
  if (ids.size() > kShown) {
    shown.push_back(absl::StrCat("and ", ids.size() - kShown, " more"));
  }
  metrics::log_warning_rank0(absl::StrCat(
      "the tokenizer of the ", has, " has ", ids.size(), ids.size() == 1 ? " token" : " tokens", " that the ", lacks,
      "'s lacks: ", absl::StrJoin(shown, ", "), masks ? "; documents have no targets from " : "; no document may use ",
      ids.size() == 1 ? "it" : "them", masks ? " on" : ""));
}

bool contains(const losses::ColumnRanges& ranges, int64_t id) {
  return std::any_of(
      ranges.begin(), ranges.end(), [id](const auto& range) { return range.begin <= id && id < range.end; });
}

// Ranges of ascending ids.
losses::ColumnRanges ranges_of(const std::vector<int64_t>& ids) {
  losses::ColumnRanges ranges;
  for (const int64_t id : ids) {
    if (!ranges.empty() && ranges.back().end == id) {
      ++ranges.back().end;
    } else {
      ranges.push_back({id, id + 1});
    }
  }
  return ranges;
}

// Ids of a tokenizer below a number of rows (0: all), without those that `leave_out` names.
template <typename LeaveOut>
std::vector<int64_t> ids_below(const SharedTokenizer& tokenizer, int64_t rows, const LeaveOut& leave_out) {
  std::vector<int64_t> ids;
  for (const auto& [id, text] : tokenizer->tokens) {
    if ((rows == 0 || id < rows) && (ids.empty() || ids.back() != id) && !leave_out(id)) {
      ids.push_back(id);
    }
  }
  return ids;
}

// Checks whose tokens the rows of a cache are of. `own_tokens`: of the teacher's own.
absl::Status check_alignment(const config::Config& config, bool own_tokens) {
  const bool expects = config.teacher.alignment == config::Alignment::kBytes;
  const auto text = [](bool own) {
    return own ? "the teacher's own tokens (teacher.alignment: bytes)"
               : "the student's tokens (teacher.alignment: tokens)";
  };
  return own_tokens == expects
      ? absl::OkStatus()
      : absl::InvalidArgumentError(absl::StrFormat(
            "teacher.cache: %s: expected rows of %s, found rows of %s; capture with this configuration, or set "
            "teacher.alignment",
            config.teacher.cache, text(expects), text(own_tokens)));
}

// Of two tokenizers that split texts otherwise. Column i is the student's row i. The teacher's other tokens fill the
// rows in between, so that its tables become no larger than they must.
Vocabulary aligned_vocabulary(
    const data::VocabularyMap& map, const std::vector<int64_t>& columns, std::vector<int64_t> others,
    int64_t teacher_rows) {
  Vocabulary out;
  out.aligned = true;
  const int64_t width = columns.back() + 1;
  out.columns = {{0, width}};
  out.folder_rows = teacher_rows;
  out.rows.assign(static_cast<size_t>(width), -1);
  for (const auto& [student, teacher] : map.shared) {
    if (std::binary_search(columns.begin(), columns.end(), student)) {
      out.rows[static_cast<size_t>(student)] = teacher;
    }
  }
  size_t next = 0; // of the others
  for (int64_t row = 0; row < width; ++row) {
    if (!std::binary_search(columns.begin(), columns.end(), row)) {
      out.excluded.push_back(row);
      if (next < others.size()) {
        out.rows[static_cast<size_t>(row)] = others[next++];
      } else {
        out.empty_rows.push_back(row);
      }
    }
  }
  out.rows.insert(out.rows.end(), others.begin() + static_cast<int64_t>(next), others.end());
  return out;
}

} // namespace

std::shared_ptr<const data::TextAlignment> RunTokenizers::alignment_of(const Vocabulary& vocabulary) const {
  if (alignment == nullptr) {
    return nullptr;
  }
  auto out = std::make_shared<data::TextAlignment>(*alignment);
  std::vector<int64_t> rows(static_cast<size_t>(alignment->teacher_vocab_size()), -1); // by the teacher's id
  for (size_t row = 0; row < vocabulary.rows.size(); ++row) {
    if (vocabulary.rows[row] >= 0) {
      rows[static_cast<size_t>(vocabulary.rows[row])] = static_cast<int64_t>(row);
    }
  }
  out->set_teacher_rows(std::move(rows));
  return out;
}

absl::StatusOr<Vocabulary> RunTokenizers::vocabulary(int64_t student_rows, int64_t teacher_rows) const {
  Vocabulary out;
  if (!map) {
    return out;
  }
  const auto has_row = [](int64_t id, int64_t rows) { return rows == 0 || id < rows; };
  const auto is_ambiguous = [&](int64_t student) {
    return alignment != nullptr &&
        std::binary_search(alignment->ambiguous().begin(), alignment->ambiguous().end(), student);
  };
  std::vector<int64_t> columns; // the student's ids
  std::vector<int64_t> others = map->teacher_only; // the teacher's ids of all other tokens
  for (const auto& [student, teacher] : map->shared) {
    const bool is_column = has_row(student, student_rows) && has_row(teacher, teacher_rows) &&
        (captured.empty() || contains(captured, student)) && !is_ambiguous(student);
    (is_column ? columns : others).push_back(is_column ? student : teacher);
  }
  std::erase_if(others, [&](int64_t id) { return !has_row(id, teacher_rows); });
  std::sort(others.begin(), others.end());
  if (columns.empty() || columns.back() >= kMaxRows) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "teacher and student have different tokenizers: %s and %s: expected tokens of both with rows in both models "
        "(%d of the student's, %d of the teacher's) and ids below %d, found %s",
        this->teacher->path, this->student->path, student_rows, teacher_rows, kMaxRows,
        columns.empty() ? "none" : absl::StrCat("the id ", columns.back())));
  }
  if (alignment != nullptr) {
    return aligned_vocabulary(*map, columns, std::move(others), teacher_rows);
  }
  out.columns = ranges_of(columns);
  if (captured_order) { // the rows beyond are those of the teacher's other tokens
    for (int64_t row = captured.back().end; row < teacher_rows; ++row) {
      out.dropped.push_back(row);
    }
    return out;
  }
  const bool lacks = columns.size() < map->shared.size() + map->student_only.size();
  if (map->moved == 0 && !(masks && lacks)) {
    out.dropped = std::move(others);
    return out;
  }
  out.folder_rows = teacher_rows;
  out.rows.assign(static_cast<size_t>(columns.back() + 1), -1);
  for (const auto& [student, teacher] : map->shared) {
    if (contains(out.columns, student)) {
      out.rows[static_cast<size_t>(student)] = teacher;
    }
  }
  for (const int64_t id : others) {
    out.dropped.push_back(static_cast<int64_t>(out.rows.size()));
    out.rows.push_back(id);
  }
  return out;
}

data::TokenLimits RunTokenizers::limits(
    const Vocabulary& vocabulary, int64_t student_rows, int64_t teacher_rows) const {
  data::TokenLimits limits;
  limits.token_text = token_text;
  if (alignment != nullptr) { // the teacher reads texts in its own tokens, whose rows the alignment knows
    limits.documents.rows = student_rows;
    return limits;
  }
  const bool both = student_rows > 0 && teacher_rows > 0;
  const bool renumbered = vocabulary.renumbered();
  // What is masked need not have a row in the teacher.
  limits.documents.rows = both && !renumbered && !masks ? std::min(student_rows, teacher_rows)
      : student_rows > 0 || masks                       ? student_rows
                                                        : teacher_rows;
  limits.teacher_texts.rows = renumbered ? vocabulary.columns.back().end : teacher_rows;
  if (!map) {
    return limits;
  }
  std::vector<int64_t> absent =
      ids_below(student, limits.documents.rows, [&](int64_t id) { return contains(vocabulary.columns, id); });
  limits.teacher_texts.absent = renumbered ? absent : map->student_only;
  if (!renumbered && !masks) { // the shards may have been written with the teacher's tokenizer
    std::vector<int64_t> all;
    std::set_union(
        absent.begin(), absent.end(), map->teacher_only.begin(), map->teacher_only.end(), std::back_inserter(all));
    absent = std::move(all);
  }
  (masks ? limits.documents.masked : limits.documents.absent) = std::move(absent);
  return limits;
}

void RunTokenizers::add(RunTokenizers other) {
  for (const base::Digest& hash : other.hashes) {
    if (std::find(hashes.begin(), hashes.end(), hash) == hashes.end()) {
      hashes.push_back(hash);
    }
  }
  students_alone = students_alone || other.students_alone;
  if (students_alone && !hashes.empty()) {
    hashes.resize(1); // the student's
  }
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
    own.masked = in_either(own.masked, other.masked);
  };
  narrow(a.documents, b.documents);
  narrow(a.teacher_texts, b.teacher_texts);
  a.token_text = a.token_text ? a.token_text : b.token_text;
  return a;
}

std::string RunTokenizers::text(const Vocabulary& vocabulary, int64_t student_rows, int64_t teacher_rows) const {
  if (vocabulary.columns.empty()) {
    return "";
  }
  const auto nothing = [](int64_t /*id*/) { return false; };
  const auto padding = [&](const SharedTokenizer& tokenizer, int64_t rows) {
    return rows - static_cast<int64_t>(ids_below(tokenizer, rows, nothing).size());
  };
  const int64_t columns = losses::count_columns(vocabulary.columns);
  if (vocabulary.aligned) {
    const auto own = static_cast<int64_t>(ids_below(student, student_rows, nothing).size());
    const auto its = static_cast<int64_t>(ids_below(teacher, teacher_rows, nothing).size());
    const auto shared = static_cast<int64_t>(map->shared.size());
    return absl::StrFormat(
        "vocabulary: teacher.alignment bytes: where both have a boundary in the text, the loss compares the models' "
        "distributions of %d tokens that mean the same text in both, of %d that are the same bytes, which are %.1f%% of "
        "the student's %d and %.1f%% of the teacher's %d",
        columns - static_cast<int64_t>(vocabulary.excluded.size()), shared,
        100.0 * static_cast<double>(shared) / static_cast<double>(own), own,
        100.0 * static_cast<double>(shared) / static_cast<double>(its), its);
  }
  const int64_t of_student = padding(student, student_rows);
  const int64_t of_teacher = captured_order ? 0 : padding(teacher, teacher_rows);
  const auto without = static_cast<int64_t>(vocabulary.dropped.size());
  if (map->moved == 0 && of_student == 0 && of_teacher == 0 && without == 0 && columns == student_rows) {
    return "";
  }
  return absl::StrFormat(
      "vocabulary: the loss compares %d tokens of both models%s; no part in it have %d rows of the student's %d and %d "
      "of the teacher's %d without a token, %d other tokens of the student's and %d of the teacher's",
      columns,
      map->moved > 0 ? absl::StrFormat(
                           ", %d of which have another id in the teacher's tokenizer, so that its rows are read in the "
                           "student's order",
                           map->moved)
                     : "",
      of_student, student_rows, of_teacher, teacher_rows, student_rows - of_student - columns, without);
}

absl::StatusOr<RunTokenizers> read_tokenizers(const config::Config& config) {
  RunTokenizers out;
  ASSIGN_OR_RETURN(out.student, read_one(config.student.tokenizer, config.student.path));
  std::string own = config.teacher.tokenizer;
  if (config.has_teacher() && config.teacher.reads_cache()) {
    // A manifest that cannot be read is reported where the teacher is opened.
    if (const auto manifest = teacher_cache::read_manifest(config.teacher.cache); manifest.ok()) {
      RETURN_IF_ERROR(check_alignment(config, manifest->own_tokenizer.has_value()));
      out.captured_order = manifest->vocabulary.has_value();
      own = out.captured_order ? "" : own;
      out.captured = manifest->rows.ranges;
    }
  }
  if (config.has_teacher()) {
    ASSIGN_OR_RETURN(out.teacher, read_one(own, config.teacher.folder()));
  }
  if (config.has_teacher() && config.teacher.alignment == config::Alignment::kBytes &&
      (out.student == nullptr || out.teacher == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "teacher.alignment: bytes: expected a tokenizer.json of both models, found none in ",
        out.student == nullptr ? config.student.path : config.teacher.folder(), "; name one in ",
        out.student == nullptr ? "student.tokenizer" : "teacher.tokenizer"));
  }
  if (out.student != nullptr && out.teacher != nullptr) {
    if (config.teacher.alignment == config::Alignment::kBytes) {
      ASSIGN_OR_RETURN(
          const data::TokenPairs pairs, data::read_token_pairs(config.teacher.token_pairs, *out.student, *out.teacher));
      ASSIGN_OR_RETURN(data::TextAlignment made, data::TextAlignment::make(*out.student, *out.teacher, pairs));
      out.map = made.map();
      out.alignment = std::make_shared<const data::TextAlignment>(std::move(made));
      out.hashes = {out.student->hash()};
      out.students_alone = true;
      out.token_text = [student = out.student](int64_t id) { return text_of(student, id); };
      return out;
    }
    const auto mapped = data::map_vocabularies(*out.teacher, *out.student);
    if (!mapped.ok()) {
      return absl::Status(
          mapped.status().code(),
          absl::StrCat(
              std::string(mapped.status().message()),
              "\n  teacher.alignment: bytes compares two such models by the bytes of their texts (docs/vocabulary.md)"));
    }
    out.map = *mapped;
    if (out.captured_order && out.map->moved > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "teacher.cache: ", config.teacher.cache, ": its teacher's tokens have the numbers of ", out.teacher->path,
          ": expected a student whose tokens have the same, found ", out.map->moved, " of ", out.student->path,
          " that have others; capture with this student"));
    }
  }
  out.masks = config.teacher.missing_tokens == config::MissingTokens::kMask;
  const bool renumbered = out.map && out.map->moved > 0;
  out.students_alone = renumbered || (out.masks && out.student != nullptr); // are the data's ids
  for (const SharedTokenizer& tokenizer : {out.student, out.students_alone ? nullptr : out.teacher}) {
    if (tokenizer != nullptr) {
      const base::Digest hash = tokenizer->hash();
      if (out.hashes.empty() || out.hashes[0] != hash) {
        out.hashes.push_back(hash);
      }
    }
  }
  out.token_text = [student = out.student, teacher = renumbered ? nullptr : out.teacher](int64_t id) {
    const std::string text = text_of(student, id);
    return text.empty() ? text_of(teacher, id) : text;
  };
  return out;
}

void log_tokenizers(const config::Config& config, const RunTokenizers& tokenizers) {
  if (tokenizers.alignment != nullptr) {
    return;
  }
  if (tokenizers.map) {
    const std::string teacher = config::text_of_teacher(config);
    log_one_sided(teacher, "student", tokenizers.map->teacher_only, tokenizers.teacher, /*masks=*/false);
    log_one_sided("student", teacher, tokenizers.map->student_only, tokenizers.student, tokenizers.masks);
  } else if (config.has_teacher() && !config.student.path.empty()) {
    const bool student_lacks = tokenizers.student == nullptr;
    metrics::log_warning_rank0(absl::StrCat(
        "student and ", config::text_of_teacher(config), " tokenizers cannot be compared: no tokenizer.json in ",
        student_lacks ? config.student.path : config.teacher.folder(), "; name one in ",
        student_lacks ? "student.tokenizer" : "teacher.tokenizer"));
  }
}

} // namespace distill::trainer
