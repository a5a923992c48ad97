#include <cstdio>

#include "apps/distill/commands.h"
#include "data/base/output_path.h"
#include "data/base/status_macros.h"
#include "trainer/checkpoint/export.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/launch/exit_code.h"

namespace distill::cli {

absl::StatusOr<int> run_export(const ExportCommand& command) {
  RETURN_IF_ERROR(base::check_output_folder("--out", command.out));
  checkpoint::ExportOptions options;
  // A run folder stands for its newest complete checkpoint.
  options.checkpoint = checkpoint::newest_complete(command.checkpoint).value_or(command.checkpoint);
  options.out = command.out;
  options.dtype = command.dtype;
  options.model = command.model;
  options.merge = command.merge;
  RETURN_IF_ERROR(checkpoint::export_model(options));
  std::printf("wrote %s from %s\n", options.out.c_str(), options.checkpoint.c_str());
  return launch::kSuccess;
}

} // namespace distill::cli
