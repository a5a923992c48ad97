#include "trainer/sample_generator.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <nlohmann/json.hpp>

#include "data/base/status_macros.h"
#include "data/base/utf8.h"
#include "trainer/metrics/task_progress.h"

namespace distill::trainer {
namespace {

constexpr int64_t kShown = 60; // characters of each text in the log

// Rows of `length` tokens, each with its ids on the left.
data::Batch right_padded(const std::vector<std::vector<int64_t>>& rows, int64_t length) {
  const auto count = static_cast<int64_t>(rows.size());
  data::Batch batch;
  batch.tokens_BS = at::zeros({count, length}, at::kLong);
  for (int64_t row = 0; row < count; ++row) {
    const std::vector<int64_t>& ids = rows[static_cast<size_t>(row)];
    std::copy(ids.begin(), ids.end(), batch.tokens_BS.mutable_data_ptr<int64_t>() + row * length);
  }
  batch.positions_BS = at::arange(length, at::kLong).expand({count, length}).contiguous();
  batch.cu_seqlens = at::arange(0, (count + 1) * length, length, at::kInt);
  batch.max_seqlen = length;
  return batch;
}

// The last or the first characters of a text, as one line.
std::string shortened(const std::string& text, bool keep_end) {
  std::vector<size_t> starts; // of characters
  for (size_t at = 0; at < text.size(); at += base::utf8_step(text, at).bytes) {
    starts.push_back(at);
  }
  std::string shown = text;
  if (starts.size() > static_cast<size_t>(kShown)) {
    shown = keep_end ? "..." + text.substr(starts[starts.size() - kShown]) : text.substr(0, starts[kShown]) + "...";
  }
  return absl::StrCat("\"", absl::Utf8SafeCEscape(shown), "\"");
}

} // namespace

// Returns, on every rank, the numbers of all ranks in the order of the ranks.
std::vector<int64_t> SampleGenerator::exchange(const std::vector<int64_t>& own) const {
  const at::Tensor all = sharding::gather_parts(mesh_, at::tensor(own, at::kLong));
  return {all.const_data_ptr<int64_t>(), all.const_data_ptr<int64_t>() + all.numel()};
}

// Continues `share` prompts on each rank, from the prompt `first` on; false: a rank was asked to stop. What happens
// next depends on exchanged numbers alone, so that all ranks make the same passes.
bool SampleGenerator::continue_group(
    WhichModel model, int64_t first, int64_t share, const EvaluationHooks& hooks,
    const std::function<void(int64_t tokens)>& progress, std::vector<Ids>& all) {
  const auto count = static_cast<int64_t>(all.size());
  const auto prompt_of = [&](int64_t index) -> const Ids& {
    return inputs_.prompts[static_cast<size_t>(std::min(index, count - 1))].ids; // beyond the last: padding
  };
  std::vector<Ids> rows;
  size_t longest = 0;
  for (int64_t i = 0; i < share; ++i) {
    rows.push_back(prompt_of(mesh_.own_first(first, share) + i));
    longest = std::max(longest, rows.back().size());
  }
  const int64_t length = static_cast<int64_t>(longest) + config_.eval.sample_tokens;
  const int64_t in_group = std::min(mesh_.samples_together(share), count - first);
  std::vector<bool> ended(static_cast<size_t>(in_group), false);
  for (int64_t token = 0; token < config_.eval.sample_tokens; ++token) {
    hooks.before_batch();
    std::vector<int64_t> last; // of each row, among the flattened tokens
    last.reserve(rows.size());
    for (int64_t i = 0; i < share; ++i) {
      last.push_back(i * length + static_cast<int64_t>(rows[static_cast<size_t>(i)].size()) - 1);
    }
    std::vector<int64_t> own = micro_.next_tokens(right_padded(rows, length), last, model);
    for (int64_t i = 0; i < share; ++i) {
      rows[static_cast<size_t>(i)].push_back(own[static_cast<size_t>(i)]);
    }
    own.push_back(hooks.asked_to_stop() ? 1 : 0);
    const std::vector<int64_t> next = exchange(own);
    bool goes_on = false;
    for (int64_t i = 0; i < in_group; ++i) {
      const auto place = static_cast<size_t>(i);
      if (!ended[place]) {
        const int64_t id = next[static_cast<size_t>(i / share * (share + 1) + i % share)];
        all[static_cast<size_t>(first + i)].push_back(id);
        ended[place] = std::binary_search(inputs_.end_ids.begin(), inputs_.end_ids.end(), id);
      }
      goes_on = goes_on || !ended[place];
    }
    for (int64_t part = 0; part < mesh_.data_size(); ++part) {
      if (next[static_cast<size_t>(part * (share + 1) + share)] != 0) {
        return false;
      }
    }
    if (!goes_on) {
      break;
    }
    progress(token + 1);
  }
  return true;
}

// Returns nullopt if a rank was asked to stop.
std::optional<std::vector<SampleGenerator::Ids>> SampleGenerator::continuations(
    WhichModel model, const EvaluationHooks& hooks) {
  size_t longest = 0;
  for (const data::Prompt& prompt : inputs_.prompts) {
    longest = std::max(longest, prompt.ids.size());
  }
  const auto count = static_cast<int64_t>(inputs_.prompts.size());
  const int64_t length = static_cast<int64_t>(longest) + config_.eval.sample_tokens;
  const int64_t fit = std::max<int64_t>(1, config_.train.micro_batch_size * config_.data.seq_len / length);
  const int64_t share = std::min(fit, (count + mesh_.data_size() - 1) / mesh_.data_size());
  const int64_t group = mesh_.samples_together(share);
  const char* name = model == WhichModel::kTeacher ? "teacher's samples" : "student's samples";
  std::optional<metrics::TaskProgress> progress;
  if (mesh_.is_main()) {
    progress.emplace(name, (count + group - 1) / group * config_.eval.sample_tokens, "tokens", hooks.progress);
  }
  std::vector<Ids> all(inputs_.prompts.size());
  for (int64_t first = 0; first < count; first += group) {
    const auto update = [&](int64_t tokens) {
      if (progress) {
        progress->update(first / group * config_.eval.sample_tokens + tokens);
      }
    };
    if (!continue_group(model, first, share, hooks, update, all)) {
      return std::nullopt;
    }
  }
  return all;
}

// The text as it is after the prompt: some tokenizers decode the start of a text in another way.
Continuation SampleGenerator::with_text(const data::Prompt& prompt, Ids ids) const {
  Ids whole = prompt.ids;
  whole.insert(whole.end(), ids.begin(), ids.end());
  const std::vector<data::TokenPiece> pieces = inputs_.text.decode(whole);
  Continuation out{std::move(ids), ""};
  for (size_t i = prompt.ids.size(); i < pieces.size(); ++i) {
    out.text += pieces[i].text;
  }
  return out;
}

std::vector<Sample> SampleGenerator::generate(const EvaluationHooks& hooks) {
  if (micro_.teacher_continues_texts() && !teacher_) {
    teacher_ = continuations(WhichModel::kTeacher, hooks);
    if (!teacher_) {
      return {};
    }
  }
  auto student = continuations(WhichModel::kStudent, hooks);
  if (!student) {
    return {};
  }
  std::vector<Sample> samples;
  for (size_t i = 0; i < inputs_.prompts.size(); ++i) {
    const data::Prompt& prompt = inputs_.prompts[i];
    Sample& sample = samples.emplace_back();
    sample.prompt = &prompt;
    sample.prompt_text = inputs_.text.text(prompt.ids);
    sample.target_text = with_text(prompt, prompt.target).text;
    sample.student = with_text(prompt, std::move((*student)[i]));
    if (teacher_) {
      sample.teacher = with_text(prompt, (*teacher_)[i]);
    }
  }
  return samples;
}

std::string sample_json(int64_t step, int64_t index, const Sample& sample) {
  nlohmann::ordered_json json;
  json["step"] = step;
  json["index"] = index;
  json["prompt"] = sample.prompt_text;
  json["target"] = sample.target_text;
  json["student"] = sample.student.text;
  json["teacher"] = nullptr;
  json["document"] = sample.prompt->document;
  json["prompt_ids"] = sample.prompt->ids;
  json["target_ids"] = sample.prompt->target;
  json["student_ids"] = sample.student.ids;
  json["teacher_ids"] = nullptr;
  if (sample.teacher) {
    json["teacher"] = sample.teacher->text;
    json["teacher_ids"] = sample.teacher->ids;
  }
  return json.dump();
}

std::string sample_line(int64_t step, int64_t index, const Sample& sample) {
  return absl::StrCat(
      "sample ", index, " after step ", step, ": ", shortened(sample.prompt_text, /*keep_end=*/true), ": student ",
      shortened(sample.student.text, /*keep_end=*/false), ", target ",
      shortened(sample.target_text, /*keep_end=*/false),
      sample.teacher ? absl::StrCat(", teacher ", shortened(sample.teacher->text, /*keep_end=*/false)) : "");
}

std::string sample_markdown(const Sample& sample) {
  const auto quoted = [](const char* name, const std::string& text) {
    // With four spaces before each line Markdown shows the text as it is, in a block of its own.
    return absl::StrCat("**", name, "**\n\n    ", absl::StrReplaceAll(text, {{"\n", "\n    "}}), "\n\n");
  };
  return absl::StrCat(
      quoted("prompt", sample.prompt_text), quoted("target", sample.target_text),
      quoted("student", sample.student.text), sample.teacher ? quoted("teacher", sample.teacher->text) : "");
}

absl::Status record_samples(RunJournal& journal, int64_t step, const std::vector<Sample>& samples, double seconds) {
  if (samples.empty()) {
    return absl::OkStatus();
  }
  std::vector<std::string> lines;
  for (size_t i = 0; i < samples.size(); ++i) {
    lines.push_back(sample_json(step, static_cast<int64_t>(i), samples[i]));
    RETURN_IF_ERROR(journal.text(absl::StrCat("eval/sample_", i), step, sample_markdown(samples[i])));
  }
  journal.info(sample_line(step, 0, samples[0]));
  journal.info(absl::StrFormat(
      "%d samples after step %d took %.1f s; they are in samples.jsonl", samples.size(), step, seconds));
  return journal.samples(lines);
}

} // namespace distill::trainer
