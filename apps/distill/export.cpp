#include <cstdio>

#include "apps/distill/commands.h"
#include "apps/distill/exit_code.h"
#include "trainer/checkpoint/export.h"
#include "trainer/checkpoint/folder.h"

namespace distill::cli {

int run_export(const ExportCommand& command) {
  checkpoint::ExportOptions options;
  options.checkpoint = command.checkpoint;
  options.out = command.out;
  options.dtype = command.dtype;
  options.model = command.model;
  // A run folder stands for its newest complete checkpoint.
  if (const auto newest = checkpoint::newest_complete(command.checkpoint)) {
    options.checkpoint = *newest;
  }
  const absl::Status status = checkpoint::export_model(options);
  if (!status.ok()) {
    return fail(status);
  }
  std::printf("wrote %s from %s\n", options.out.c_str(), options.checkpoint.c_str());
  return kSuccess;
}

} // namespace distill::cli
