#include "trainer/setup/start_report.h"

#include <absl/strings/escaping.h>

#include "trainer/config/run_length.h"
#include "trainer/device/device_info.h"
#include "trainer/setup/onpolicy_inputs.h"
#include "trainer/setup/read_model.h"

namespace distill::trainer {
namespace {

void add_data_lines(const char* name, const data::Dataset& data, std::vector<std::string>& lines) {
  for (const data::SourceStats& stats : data.stats()) {
    const auto percent = [&stats](int64_t padding, int64_t seq_len) {
      return 100.0 * static_cast<double>(padding) / static_cast<double>(std::max<int64_t>(1, stats.samples * seq_len));
    };
    lines.push_back(absl::StrFormat(
        "%s: %s%s%s, %d documents, %d tokens, %d sequences of %d (%.2f%% padding, %d documents cut)", name, stats.path,
        stats.teacher.empty() ? "" : ", teacher ", stats.teacher, stats.documents, stats.tokens, stats.samples,
        data.options().seq_len, percent(stats.padding, data.options().seq_len), stats.split_documents));
    if (stats.masked.documents > 0) {
      lines.push_back(absl::StrFormat(
          "%s: %d of these documents have a token that the teacher lacks: %d targets, those from it on, are left out",
          name, stats.masked.documents, stats.masked.targets));
    }
    if (stats.teacher_texts > 0) {
      lines.push_back(absl::StrFormat(
          "%s: the teacher reads a text of its own for %d of these documents, in sequences of %d (%.2f%% padding); %d "
          "are cut at the end, %d are left out since no target fits",
          name, stats.teacher_texts, data.teacher_seq_len(), percent(stats.teacher_padding, data.teacher_seq_len()),
          stats.cut_documents, stats.left_out_documents));
    }
    if (stats.alignment) {
      const std::vector<std::string> more = alignment_lines(name, *stats.alignment);
      lines.insert(lines.end(), more.begin(), more.end());
    }
  }
}

} // namespace

std::vector<std::string> alignment_lines(const std::string& name, const data::AlignmentStats& found) {
  std::vector<std::string> lines;
  const auto tokens = static_cast<double>(std::max<int64_t>(1, found.tokens));
  lines.push_back(absl::StrFormat(
      "%s: of %d documents, %d tokens of the student's and %d of the teacher's in the loss: both have a boundary at %.1f%% "
      "of the student's; %.1f%% are in %d spans, which the teacher splits in another way",
      name, found.documents, found.tokens, found.teacher_tokens, 100 * static_cast<double>(found.pieces) / tokens,
      100 * static_cast<double>(found.span_tokens) / tokens, found.spans));
  for (const auto& [whose, passed] :
       {std::pair("student", &found.student_passed), std::pair("teacher", &found.teacher_passed)}) {
    for (const auto& [text, count] : *passed) {
      lines.push_back(absl::StrFormat(
          "%s: %d special tokens \"%s\" of the %s's have no partner, and are compared with nothing (teacher.token_pairs)",
          name, count, absl::Utf8SafeCEscape(text), whose));
    }
  }
  return lines;
}

std::vector<std::string> start_report(
    const config::Config& config, const Environment& environment, const Inputs& inputs) {
  std::vector<std::string> lines;
  const device::DeviceInfo device = device::device_info(environment.device);
  lines.push_back(absl::StrFormat(
      "device: %s (%s), %.1f GiB", environment.device.str(), device.name,
      static_cast<double>(device.memory_bytes) / (1 << 30)));
  if (environment.device.is_cuda()) {
    const device::AllocatorSettings& allocator = environment.allocator;
    lines.push_back(absl::StrCat(
        "allocator: ", device::allocator_text(allocator.kind),
        allocator.note.empty() ? "" : absl::StrCat(" (", allocator.note, ")")));
  }
  lines.push_back(describe_model("student", config.student, inputs.student.config, environment.student_dtype));
  lines.insert(lines.end(), inputs.teacher_texts.begin(), inputs.teacher_texts.end());
  lines.insert(lines.end(), inputs.vocabulary_texts.begin(), inputs.vocabulary_texts.end());
  if (inputs.onpolicy) {
    lines.push_back(describe_rounds(config, *inputs.onpolicy));
  }
  if (inputs.train_data && !config.data.train.empty()) {
    add_data_lines("data.train", *inputs.train_data, lines);
  }
  if (inputs.eval_data) {
    add_data_lines("data.eval", *inputs.eval_data, lines);
  }
  if (inputs.train_data) {
    const int64_t steps = config::total_steps(config, inputs.train_data->num_samples());
    const int64_t tokens = config.train.global_batch_size * config.data.seq_len;
    const int64_t of_data = config.train.global_batch_size - config.onpolicy_sequences();
    lines.push_back(absl::StrFormat(
        "run: %d steps of %d tokens (%d micro-batches of %d x %d), %.1f M tokens, %.2f epochs", steps, tokens,
        config.train.global_batch_size / config.train.micro_batch_size, config.train.micro_batch_size,
        config.data.seq_len, static_cast<double>(steps * tokens) / 1e6,
        static_cast<double>(steps * of_data) /
            static_cast<double>(std::max<int64_t>(1, inputs.train_data->num_samples()))));
  }
  return lines;
}

} // namespace distill::trainer
