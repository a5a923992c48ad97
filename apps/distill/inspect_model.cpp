#include <absl/strings/str_cat.h>

#include <filesystem>

#include "apps/distill/inspect.h"
#include "data/tokenizer.h"
#include "trainer/hf/describe_model.h"

namespace distill::cli {

namespace {

absl::StatusOr<std::string> tokenizer_text(const std::string& folder) {
  const std::string file = (std::filesystem::path(folder) / "tokenizer.json").string();
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    return std::string("  tokenizer hash: none\n");
  }
  const auto tokenizer = data::read_tokenizer(file);
  if (!tokenizer.ok()) {
    return tokenizer.status();
  }
  return absl::StrCat(
      "  tokenizer hash: ", base::hex(tokenizer->hash()), " (", tokenizer->model, ", ", tokenizer->tokens.size(),
      " tokens)\n");
}

} // namespace

absl::StatusOr<std::string> describe_model(const std::string& folder) {
  const auto model = hf::describe_model(folder);
  if (!model.ok()) {
    return model.status();
  }
  const auto tokenizer = tokenizer_text(folder);
  if (!tokenizer.ok()) {
    return tokenizer.status();
  }
  return absl::StrCat(*model, *tokenizer);
}

} // namespace distill::cli
