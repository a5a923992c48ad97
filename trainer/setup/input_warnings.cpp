#include "trainer/setup/input_warnings.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "trainer/config/run_length.h"
#include "trainer/hf/peft_config.h"

namespace distill::trainer {
namespace {

// Empty if the key has an effect, or is not given.
std::string teacher_length_warning(const config::Config& config, const Inputs& inputs) {
  const auto reads_stream = [](const std::shared_ptr<data::Dataset>& data) {
    return data != nullptr && data->teacher_seq_len() > 0;
  };
  if (config.data.teacher_seq_len == 0 || reads_stream(inputs.train_data) || reads_stream(inputs.eval_data)) {
    return "";
  }
  return absl::StrFormat(
      "data.teacher_seq_len %d has no effect: %s", config.data.teacher_seq_len,
      inputs.teachers.exist() ? "no document has a text of the teacher's own" : "the run has no teacher");
}

// Empty unless student and teacher meet rarely.
std::string boundaries_warning(const char* name, const std::shared_ptr<data::Dataset>& data) {
  constexpr double kFew = 0.3; // of the student's tokens
  for (size_t i = 0; data != nullptr && i < data->stats().size(); ++i) {
    const auto& found = data->stats()[i].alignment;
    if (found && static_cast<double>(found->pieces) < kFew * static_cast<double>(found->tokens)) {
      return absl::StrFormat(
          "%s: %s: student and teacher both have a boundary at only %.1f%% of the student's tokens, so that the teacher "
          "says little about the others (docs/vocabulary.md)",
          name, data->stats()[i].path,
          100 * static_cast<double>(found->pieces) / static_cast<double>(std::max<int64_t>(1, found->tokens)));
    }
  }
  return "";
}

// Empty unless whole steps read far more than train.epochs asks for.
std::string epochs_warning(const config::Config& config, const data::Dataset& data) {
  constexpr double kRounding = 1.1; // more than this times train.epochs is no longer a matter of rounding
  const int64_t sequences = data.num_samples(), batch = config.train.global_batch_size;
  const int64_t steps = config::total_steps(config, sequences);
  const double epochs = static_cast<double>(steps * batch) / static_cast<double>(std::max<int64_t>(1, sequences));
  if (config.train.epochs == 0 || epochs <= kRounding * config.train.epochs) {
    return "";
  }
  return absl::StrFormat(
      "train.epochs %g of %d sequences is %d step(s) of train.global_batch_size %d: the run reads %.2f epochs, since the "
      "last step is as large as the others; a smaller train.global_batch_size comes nearer",
      config.train.epochs, sequences, steps, batch, epochs);
}

// Covers all tokens of a shard.
base::Digest hash_of(const data::Shard* shard) {
  base::Digest hash;
  std::copy_n(shard->header().header_hash, hash.size(), hash.begin());
  return hash;
}

// Empty unless a run trains on a token shard more than once in an epoch. With several teachers each may have it.
std::string twice_warning(const config::Config& config, const std::vector<const data::Shard*>& shards) {
  std::set<base::Digest> seen;
  std::vector<std::string> again;
  for (const data::Shard* shard : shards) {
    if (!config.has_list() && !seen.insert(hash_of(shard)).second) {
      again.push_back(shard->path());
    }
  }
  return again.empty()
      ? ""
      : absl::StrFormat(
            "data.train: %d of its token shards have the tokens of an earlier one (%s%s), which are read once more in "
            "each epoch; the weight of a data set says how often it is read",
            again.size(), again.front(), again.size() > 1 ? ", ..." : "");
}

// Empty unless a token shard has nothing to learn, as prompts.
std::string no_target_warning(const std::vector<const data::Shard*>& shards) {
  const auto has_target = [](const data::Shard* shard) {
    int64_t token = 0;
    while (token < shard->tokens() && !shard->has_target(token)) {
      ++token;
    }
    return token < shard->tokens();
  };
  const auto without = std::find_if_not(shards.begin(), shards.end(), has_target);
  return without == shards.end() ? ""
                                 : absl::StrCat(
                                       "data.train: ", (*without)->path(),
                                       ": no token is in the loss, so that nothing is learned from this token shard ",
                                       "(prompts are given to onpolicy.prompts)");
}

// Empty unless a folder lacks a token shard before one that it has: scripts/tokenize.py numbers them from 0.
std::string missing_shard_warning(
    const std::vector<config::DataSet>& sets, const std::vector<const data::Shard*>& shards) {
  namespace fs = std::filesystem;
  const auto name = [](int number) { return absl::StrFormat("shard-%05d%s", number, data::kShardExtension); };
  std::error_code error;
  for (const data::Shard* shard : shards) {
    const fs::path path = shard->path(), folder = path.parent_path();
    int number = 0;
    const bool is_numbered =
        std::sscanf(path.filename().c_str(), "shard-%d", &number) == 1 && number > 0 && path.filename() == name(number);
    const bool in_folder = is_numbered && std::any_of(sets.begin(), sets.end(), [&](const config::DataSet& set) {
                             return fs::equivalent(set.path, folder, error);
                           });
    if (in_folder && !fs::exists(folder / name(number - 1), error)) {
      return absl::StrCat(
          "data.train: ", folder.string(), " has ", name(number), " and not ", name(number - 1),
          ": the run reads those that are there; was the folder copied as a whole?");
    }
  }
  return "";
}

// Empty unless an adapter is trained further with another dropout than its folder has.
std::string adapter_dropout_warning(const config::Config& config) {
  const std::string& folder = config.student.adapter;
  const auto peft = folder.empty() ? absl::StatusOr<hf::PeftConfig>() : hf::read_peft_config(folder);
  return !peft.ok() || peft->dropout == config.lora.dropout
      ? ""
      : absl::StrFormat(
            "student.adapter: the lora_dropout of %s, %g, is not used: student.lora.dropout is %g", folder,
            peft->dropout, config.lora.dropout);
}

// Empty unless a run evaluates on token shards that it also trains on.
std::string trained_on_warning(const config::Config& config, const Inputs& inputs) {
  if (!inputs.train_data || !inputs.eval_data || !config.eval.during_training()) {
    return "";
  }
  std::set<base::Digest> trained;
  for (const data::Shard* shard : inputs.train_data->shards()) {
    trained.insert(hash_of(shard));
  }
  std::vector<std::string> same;
  const std::vector<const data::Shard*> shards = inputs.eval_data->shards();
  for (const data::Shard* shard : shards) {
    if (trained.contains(hash_of(shard))) {
      same.push_back(shard->path());
    }
  }
  return same.empty()
      ? ""
      : absl::StrFormat(
            "data.eval: %d of its %d token shards are in data.train, too (%s%s): evaluations measure what "
            "the student was trained on",
            same.size(), shards.size(), same.front(), same.size() > 1 ? ", ..." : "");
}

} // namespace

std::vector<std::string> input_warnings(const config::Config& config, const Inputs& inputs) {
  // Without data.train, the prompts of an on-policy run.
  const std::vector<const data::Shard*> trained =
      config.data.train.empty() ? std::vector<const data::Shard*>() : inputs.train_data->shards();
  std::vector<std::string> warnings{
      teacher_length_warning(config, inputs),
      epochs_warning(config, *inputs.train_data),
      adapter_dropout_warning(config),
      missing_shard_warning(config.data.train, trained),
      no_target_warning(trained),
      twice_warning(config, trained),
      trained_on_warning(config, inputs),
      boundaries_warning("data.train", inputs.train_data),
      boundaries_warning("data.eval", inputs.eval_data)};
  warnings.erase(std::remove(warnings.begin(), warnings.end(), ""), warnings.end());
  return warnings;
}

} // namespace distill::trainer
