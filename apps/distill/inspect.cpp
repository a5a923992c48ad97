#include "apps/distill/inspect.h"

#include <absl/strings/str_cat.h>

#include <cstdio>
#include <filesystem>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "data/inspect.h"
#include "data/shard.h"

namespace distill::cli {

namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> describe(const std::string& path) {
  std::error_code error;
  const auto holds = [&](const char* name) { return fs::exists(fs::path(path) / name, error); };
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
  }
  if (fs::is_regular_file(path, error) || data::is_token_data(path)) {
    return data::describe_data(path);
  }
  if (holds("config.yaml")) {
    return describe_run(path);
  }
  if (holds("index.json")) {
    return describe_checkpoint(path);
  }
  if (holds("config.json")) {
    return describe_model(path);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": expected a token shard, a folder of them (*", data::kShardExtension,
      "), a model folder (config.json), a run folder (config.yaml) or a checkpoint (index.json), found none of these"));
}

} // namespace

int run_inspect(const InspectCommand& command) {
  const absl::StatusOr<std::string> text = describe(command.path);
  if (!text.ok()) {
    return fail(text.status());
  }
  std::fputs(text->c_str(), stdout);
  return kSuccess;
}

} // namespace distill::cli
