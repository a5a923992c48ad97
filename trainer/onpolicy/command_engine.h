#pragma once

#include <memory>

#include "trainer/config/config.h"
#include "trainer/launch/supervised_process.h"
#include "trainer/onpolicy/engine.h"

namespace distill::onpolicy {

// onpolicy.command: one run of a shell command writes one round. Its placeholders are those of
// trainer/config/command_template.h.
class CommandEngine : public Engine {
 public:
  explicit CommandEngine(const config::OnPolicySection& config) : config_(config) {}

  absl::Status start(const EngineJob& job) override;
  absl::StatusOr<bool> poll() override;
  void stop() override {
    process_.reset();
  }

 private:
  const config::OnPolicySection& config_;
  EngineJob job_;
  std::unique_ptr<launch::SupervisedProcess> process_;
};

// The last lines that an engine printed, for an error.
std::string last_output(const EngineJob& job);

} // namespace distill::onpolicy
