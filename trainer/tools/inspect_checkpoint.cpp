#include "trainer/tools/inspect_checkpoint.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <filesystem>

#include "data/base/json.h"
#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxIndexBytes = int64_t{1} << 30;

} // namespace

absl::StatusOr<std::string> inspect_checkpoint(const std::string& folder) {
  const std::string file = (fs::path(folder) / checkpoint::kIndexFile).string();
  // Not checkpoint::read_index, which refuses an incomplete checkpoint.
  ASSIGN_OR_RETURN(const std::string content, base::read_text_file(file, kMaxIndexBytes));
  ASSIGN_OR_RETURN(const checkpoint::Index index, checkpoint::parse_index(content, file));
  std::error_code error;
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "%-16s %s\n", name, value);
  };
  line("checkpoint", folder);
  line("complete", fs::exists(fs::path(folder) / checkpoint::kMarkerFile, error) ? "yes" : "no, it is not used");
  line("written by", absl::StrCat(index.info.program, ", format version ", index.version));
  line("step", absl::StrCat(index.state.step));
  line("samples", absl::StrCat(index.state.samples));
  line("tokens", absl::StrCat(index.state.tokens));
  line("skipped_total", absl::StrCat(index.state.skipped_total));
  line("ranks", absl::StrCat("sharded over ", index.shard, ", ", index.replicate, " replica(s)"));
  line("model", index.info.identity.model);
  line("optimizer", index.info.identity.optimizer);
  line("data", index.state.data_stages.back().data.text);
  for (const checkpoint::DataStage& stage : index.state.data_stages) {
    line(
        "data stage",
        absl::StrFormat(
            "from sample %d: seq_len %d, %s%s", stage.first_sample, stage.seq_len,
            stage.teacher_seq_len > 0 ? absl::StrFormat("teacher_seq_len %d, ", stage.teacher_seq_len) : "",
            base::enum_name(stage.packing)));
  }
  line("tokenizer", index.info.identity.tokenizer);
  int64_t bytes = 0;
  for (const checkpoint::ShardFile& shard : index.files) {
    bytes += shard.bytes;
  }
  line("files", absl::StrCat(index.files.size(), " shards, ", bytes, " bytes"));
  line("units", absl::StrCat(index.units.size()));
  for (const checkpoint::Unit& unit : index.units) {
    absl::StrAppendFormat(&text, "  %-14s %d elements\n", unit.name, unit.numel);
  }
  return text;
}

} // namespace distill::trainer
