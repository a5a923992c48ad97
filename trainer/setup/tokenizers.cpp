#include "trainer/setup/tokenizers.h"

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

} // namespace

absl::StatusOr<std::optional<base::Digest>> check_tokenizers(const config::Config& config) {
  const auto student = read_tokenizer(config.student);
  if (!student.ok()) {
    return student.status();
  }
  const auto teacher = read_tokenizer(config.teacher);
  if (!teacher.ok()) {
    return teacher.status();
  }
  if (student->has_value() && teacher->has_value()) {
    if (absl::Status status = data::compare_tokenizers(**teacher, **student); !status.ok()) {
      return status;
    }
  } else if (config.has_teacher() && !config.student.path.empty()) {
    const bool student_lacks = !student->has_value();
    metrics::log_warning_rank0(absl::StrCat(
        "student and teacher tokenizers cannot be compared: no tokenizer.json in ",
        student_lacks ? config.student.path : config.teacher.folder(), "; name one in ",
        student_lacks ? "student.tokenizer" : "teacher.tokenizer"));
  }
  const auto& any = student->has_value() ? *student : *teacher;
  return any ? std::optional(any->hash()) : std::nullopt;
}

} // namespace distill::trainer
