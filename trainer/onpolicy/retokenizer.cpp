#include "trainer/onpolicy/retokenizer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <filesystem>

#include "data/base/durable_file.h"
#include "data/base/status_macros.h"
#include "trainer/config/command_template.h"
#include "trainer/onpolicy/command_engine.h"
#include "trainer/onpolicy/teacher_tokens.h"

namespace distill::onpolicy {

absl::StatusOr<bool> Retokenizer::start(
    const std::vector<Request>& requests, const std::map<int64_t, Completion>& completions, int64_t round) {
  const std::string lines = retokenize_lines(requests, completions, inputs_);
  if (lines.empty()) {
    return false;
  }
  round_ = round;
  started_ = Clock::now();
  RETURN_IF_ERROR(base::replace_file(folder_.file(kRetokenizeFile), lines));
  std::error_code ignored;
  std::filesystem::remove(folder_.file(kRetokenizedFile), ignored); // of an earlier process
  const std::string command = config::fill_placeholders(
      config_.onpolicy.retokenize,
      {{"completions", folder_.absolute_file(kRetokenizeFile)}, {"output", folder_.absolute_file(kRetokenizedFile)}});
  ASSIGN_OR_RETURN(process_, launch::SupervisedProcess::start(command, folder_.absolute_file(kRetokenizeLogFile)));
  return true;
}

absl::StatusOr<bool> Retokenizer::poll() {
  TORCH_CHECK(process_ != nullptr, "the retokenizer does not run");
  const std::string log = folder_.absolute_file(kRetokenizeLogFile);
  const std::optional<int> code = process_->poll();
  if (!code) {
    if (std::chrono::duration<double>(Clock::now() - started_).count() <
        static_cast<double>(config_.onpolicy.timeout_s)) {
      return false;
    }
    process_.reset();
    return absl::DeadlineExceededError(absl::StrFormat(
        "onpolicy.timeout_s: onpolicy.retokenize has not ended within %d s in round %d, and was killed; %s",
        config_.onpolicy.timeout_s, round_, last_output(log)));
  }
  process_.reset();
  if (*code != 0) {
    return absl::AbortedError(absl::StrCat(
        "onpolicy.retokenize ended with ", launch::exit_text(*code), " in round ", round_, "; ", last_output(log)));
  }
  return true;
}

absl::Status Retokenizer::finish(
    const std::vector<Request>& requests, std::map<int64_t, Completion>& completions, std::vector<std::string>& bad) {
  const absl::Status status = read_teacher_tokens(
      folder_.file(kRetokenizedFile), requests, inputs_, config_.data.teacher_length(), completions, bad);
  seconds_ = std::chrono::duration<double>(Clock::now() - started_).count();
  return status.ok()
      ? status
      : absl::AbortedError(absl::StrCat(
            "onpolicy.retokenize has not written the file of {output} in round ", round_, ": ",
            std::string(status.message()), "; ", last_output(folder_.absolute_file(kRetokenizeLogFile))));
}

} // namespace distill::onpolicy
