#include "trainer/tools/inspect.h"

#include <absl/strings/str_cat.h>

#include <filesystem>

#include "data/base/status_macros.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/hf/describe_model.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/tools/inspect_cache.h"
#include "trainer/tools/inspect_checkpoint.h"
#include "trainer/tools/inspect_documents.h"
#include "trainer/tools/inspect_run.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::string> tokenizer_line(const std::string& folder) {
  const std::string file = (fs::path(folder) / "tokenizer.json").string();
  std::error_code error;
  if (!fs::exists(file, error)) {
    return std::string("  tokenizer hash: none\n");
  }
  ASSIGN_OR_RETURN(const data::Tokenizer tokenizer, data::read_tokenizer(file));
  return absl::StrCat(
      "  tokenizer hash: ", base::hex(tokenizer.hash()), " (", tokenizer.model, ", ", tokenizer.tokens.size(),
      " tokens)\n");
}

// Describes a model folder, whose tensors are checked against its config.json.
absl::StatusOr<std::string> inspect_model(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string model, hf::describe_model(folder));
  ASSIGN_OR_RETURN(const std::string tokenizer, tokenizer_line(folder));
  return model + tokenizer;
}

// Refuses the options that choose and show documents, for a path that has none.
absl::Status no_document_options(const InspectRequest& request) {
  const char* given = !request.tokenizer.empty() ? "--tokenizer"
      : !request.documents.empty()               ? "--documents"
      : request.document                         ? "--document"
      : request.max_tokens                       ? "--tokens"
      : !request.html.empty()                    ? "--html"
                                                 : nullptr;
  return given == nullptr ? absl::OkStatus()
                          : absl::InvalidArgumentError(absl::StrCat(
                                given, ": expected a token shard, a folder of them (*", data::kShardExtension,
                                ") or a teacher's cache, found ", request.path));
}

} // namespace

absl::StatusOr<std::string> inspect(const InspectRequest& request) {
  const std::string& path = request.path;
  std::error_code error;
  const auto holds = [&](const char* name) { return fs::exists(fs::path(path) / name, error); };
  if (!fs::exists(path, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
  }
  if (fs::is_regular_file(path, error) || data::is_token_data(path)) {
    return inspect_token_data(request);
  }
  if (holds(teacher_cache::kManifestFile)) {
    return inspect_cache(request);
  }
  RETURN_IF_ERROR(no_document_options(request));
  if (holds("config.yaml")) {
    return inspect_run(path);
  }
  if (holds(checkpoint::kIndexFile)) {
    return inspect_checkpoint(path);
  }
  if (holds("config.json")) {
    return inspect_model(path);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": expected a token shard, a folder of them (*", data::kShardExtension,
      "), a model folder (config.json), a run folder (config.yaml), a teacher's cache (", teacher_cache::kManifestFile,
      ") or a checkpoint (", checkpoint::kIndexFile, "), found none of these"));
}

} // namespace distill::trainer
