#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "trainer/config/config.h"
#include "trainer/launch/supervised_process.h"
#include "trainer/onpolicy/engine.h"

namespace distill::onpolicy {

// onpolicy.command: one run of a shell command writes one round. onpolicy.server is another command, which is started
// before the first round and lives until the engine ends. Where the command fails, the server has kServerEnds to end,
// too: a server that dies closes its connections first, and its end is then the cause that the error names. Their
// placeholders are those of trainer/config/command_template.h.
class CommandEngine : public Engine {
 public:
  // `folder`: for the log of onpolicy.server.
  CommandEngine(const config::OnPolicySection& config, std::string folder)
      : config_(config), folder_(std::move(folder)) {}

  absl::Status start(const EngineJob& job) override;
  absl::StatusOr<bool> poll() override;
  void stop() override {
    process_.reset();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kServerEnds{5};

  absl::Status start_server(const EngineJob& job);
  // Whether the command, which has failed, has failed for less than kServerEnds, and there is a server.
  bool server_may_be_ending();

  const config::OnPolicySection& config_;
  std::string folder_;
  EngineJob job_;
  std::unique_ptr<launch::SupervisedProcess> server_; // null: there is none
  std::unique_ptr<launch::SupervisedProcess> process_;
  std::optional<Clock::time_point> failed_at_; // when poll() saw first that the command had failed
};

// The last lines of a command's log, for an error.
std::string last_output(const std::string& log);

} // namespace distill::onpolicy
