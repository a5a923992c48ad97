#pragma once

#include <absl/status/status.h>

#include <string>

#include "trainer/config/config.h"

namespace distill::checkpoint {

struct ExportOptions {
  std::string checkpoint; // its folder
  std::string out; // the model folder to write; must not exist, or be empty
  config::StoredDtype dtype = config::StoredDtype::kAuto;
  std::string model; // folder with config.json and tokenizer; empty: the student.path of the run
  bool merge = false; // of a student with adapters: write them into its weights; student.lora.merge does, too
};

// Writes a checkpoint's master weights as a Hugging Face folder, or the adapters that it has alone as peft writes them.
// Verifies the checksums of all bytes that it reads. Holds one unit at a time in host memory; needs no GPU.
absl::Status export_model(const ExportOptions& options);

} // namespace distill::checkpoint
