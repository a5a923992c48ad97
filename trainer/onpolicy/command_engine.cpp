#include "trainer/onpolicy/command_engine.h"

#include <absl/strings/str_cat.h>

#include "data/base/status_macros.h"
#include "trainer/config/command_template.h"

namespace distill::onpolicy {
namespace {

constexpr int kShownLines = 20;

std::string server_log(const std::string& folder) {
  return folder + "/server.log";
}

} // namespace

std::string last_output(const std::string& log) {
  const std::string lines = launch::last_lines(log, kShownLines);
  return lines.empty() ? absl::StrCat("it has printed nothing (", log, ")")
                       : absl::StrCat("its last output (", log, "):", lines);
}

absl::Status CommandEngine::start_server(const EngineJob& job) {
  if (config_.server.empty() || server_ != nullptr) {
    return absl::OkStatus();
  }
  const std::string command = config::fill_placeholders(config_.server, {{"model", job.model}});
  ASSIGN_OR_RETURN(server_, launch::SupervisedProcess::start(command, server_log(folder_)));
  return absl::OkStatus();
}

absl::Status CommandEngine::start(const EngineJob& job) {
  job_ = job;
  failed_at_.reset();
  RETURN_IF_ERROR(start_server(job));
  const std::string command = config::fill_placeholders(
      config_.command,
      {{"model", job.model},
       {"prompts", job.requests},
       {"output", job.output},
       {"round", absl::StrCat(job.round)},
       {"version", job.version}});
  ASSIGN_OR_RETURN(process_, launch::SupervisedProcess::start(command, job.log));
  return absl::OkStatus();
}

bool CommandEngine::server_may_be_ending() {
  if (server_ == nullptr) {
    return false;
  }
  const Clock::time_point now = Clock::now();
  failed_at_ = failed_at_.value_or(now);
  return now - *failed_at_ < kServerEnds;
}

absl::StatusOr<bool> CommandEngine::poll() {
  if (const auto ended = server_ != nullptr ? server_->poll() : std::nullopt) {
    server_.reset();
    process_.reset();
    const std::string log = server_log(folder_);
    return absl::AbortedError(absl::StrCat(
        "onpolicy.server ended with ", launch::exit_text(*ended), "; its last output (", log,
        "):", launch::last_lines(log, kShownLines)));
  }
  TORCH_CHECK(process_ != nullptr, "the engine has no job");
  const std::optional<int> code = process_->poll();
  if (!code || (*code != 0 && server_may_be_ending())) {
    return false;
  }
  process_.reset();
  if (*code == 0) {
    return true;
  }
  return absl::AbortedError(absl::StrCat(
      "onpolicy.command ended with ", launch::exit_text(*code), " in round ", job_.round, "; ", last_output(job_.log)));
}

} // namespace distill::onpolicy
