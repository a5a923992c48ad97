#include "trainer/setup/sample_inputs.h"

#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "data/base/status_macros.h"
#include "trainer/hf/end_of_text.h"

namespace distill::trainer {

absl::StatusOr<SampleInputs> open_sample_inputs(const config::Config& config) {
  auto text = data::TokenText::read(config.student.tokenizer.empty() ? config.student.path : config.student.tokenizer);
  if (!text.ok()) {
    return absl::Status(
        text.status().code(),
        absl::StrCat(
            "eval.samples: needs the student's tokenizer (student.tokenizer): ", std::string(text.status().message())));
  }
  std::vector<std::string> paths;
  for (const config::DataSet& set : config.data.eval) {
    paths.push_back(set.path);
  }
  ASSIGN_OR_RETURN(
      data::PromptSet set,
      data::held_out_prompts(paths, {config.eval.samples, config.data.seq_len, config.eval.sample_tokens}));
  const auto found = static_cast<int64_t>(set.prompts.size());
  const std::string room = absl::StrFormat(
      "a prompt of at most %d tokens (data.seq_len %d - eval.sample_tokens %d)",
      config.data.seq_len - config.eval.sample_tokens, config.data.seq_len, config.eval.sample_tokens);
  if (found == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("eval.samples: expected documents of data.eval with ", room, ", found none"));
  }
  std::string warning;
  if (found < config.eval.samples) {
    warning = absl::StrFormat(
        "eval.samples: %d, but only %d documents of data.eval have %s", config.eval.samples, found, room);
  }
  ASSIGN_OR_RETURN(std::vector<int64_t> end_ids, hf::end_of_text_ids(config.student.path));
  end_ids.insert(end_ids.end(), set.eos_ids.begin(), set.eos_ids.end());
  std::sort(end_ids.begin(), end_ids.end());
  end_ids.erase(std::unique(end_ids.begin(), end_ids.end()), end_ids.end());
  return SampleInputs{std::move(set.prompts), std::move(end_ids), *std::move(text), std::move(warning)};
}

std::string SampleInputs::fingerprint() const {
  std::string out = absl::StrJoin(end_ids, " ");
  for (const data::Prompt& prompt : prompts) {
    absl::StrAppend(&out, "\n", absl::StrJoin(prompt.ids, " "), " | ", absl::StrJoin(prompt.target, " "));
  }
  return out;
}

} // namespace distill::trainer
