#include "trainer/config/suggest.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "trainer/config/field.h"

namespace distill::config {

namespace {

// Names that other trainers have for a key, each with our key.
constexpr std::pair<std::string_view, std::string_view> kElsewhere[] = {
    {"learning_rate", "optimizer.lr"},
    {"max_lr", "optimizer.lr"},
    {"clip_grad", "optimizer.max_grad_norm"},
    {"grad_clip", "optimizer.max_grad_norm"},
    {"gradient_clipping", "optimizer.max_grad_norm"},
    {"epsilon", "optimizer.eps"},
    {"adam_epsilon", "optimizer.eps"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"betas", "optimizer.beta1"},
    {"batch_size", "train.global_batch_size"},
    {"train_batch_size", "train.global_batch_size"},
    {"per_device_train_batch_size", "train.micro_batch_size"},
    {"local_batch_size", "train.micro_batch_size"},
    {"gradient_accumulation_steps", "train.global_batch_size"},
    {"accumulation", "train.global_batch_size"},
    {"max_steps", "train.steps"},
    {"train_iters", "train.steps"},
    {"iterations", "train.steps"},
    {"num_train_epochs", "train.epochs"},
    {"num_epochs", "train.epochs"},
    {"max_epochs", "train.epochs"},
    {"max_tokens", "train.tokens"},
    {"precision", "train.dtype"},
    {"bf16", "train.dtype"},
    {"max_length", "data.seq_len"},
    {"max_seq_len", "data.seq_len"},
    {"max_seq_length", "data.seq_len"},
    {"sequence_length", "data.seq_len"},
    {"context_length", "data.seq_len"},
    {"dataset", "data.train"},
    {"validation", "data.eval"},
    {"model", "student.path"},
    {"model_name_or_path", "student.path"},
    {"student_model", "student.path"},
    {"teacher_model", "teacher.path"},
    {"teacher_model_name_or_path", "teacher.path"},
    {"type", "scheduler.type"},
    {"lr_scheduler_type", "scheduler.type"},
    {"warmup", "scheduler.warmup_steps"},
    {"warmup_ratio", "scheduler.warmup_steps"},
    {"min_lr", "scheduler.min_lr_ratio"},
    {"output_dir", "run.dir"},
    {"logging_steps", "run.log_every"},
    {"save_steps", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"eval_steps", "eval.every"},
    {"activation_checkpointing", "memory.activation"},
    {"gradient_checkpointing", "memory.activation"},
    {"alpha", "loss.soft_weight"},
    {"kd_ratio", "loss.soft_weight"},
    {"kd_weight", "loss.soft_weight"},
    {"ce_weight", "loss.hard_weight"},
    {"kl_type", "loss.divergence"},
    {"temp", "loss.temperature"},
    {"chunk", "loss.chunk_size"},
    // Other trainers have these names for values of a choice; ours follow.
    {"kl", "forward_kl"},
    {"fkl", "forward_kl"},
    {"rkl", "reverse_kl"},
    {"js", "jsd"},
    {"tvd", "total_variation"},
    {"tv", "total_variation"},
    {"ce", "none"},
    {"bf16", "bfloat16"},
    {"fp32", "float32"},
    {"float", "float32"},
    {"gpu", "cuda"},
    {"cosine_with_warmup", "cosine"},
    {"packed", "pack"},
    {"packing", "pack"},
    {"full", "recompute"},
    {"checkpoint", "recompute"},
};

// The edit distance up to which a name of this length is suggested.
size_t tolerance(std::string_view name) {
  return std::max<size_t>(1, name.size() / 3);
}

// The set of characters of a name, as bits.
uint64_t letters(std::string_view name) {
  uint64_t bits = 0;
  for (const char c : name) {
    bits |= uint64_t{1} << (static_cast<unsigned char>(c) % 64);
  }
  return bits;
}

} // namespace

size_t edit_distance(std::string_view a, std::string_view b, size_t limit) {
  const uint64_t in_a = letters(a), in_b = letters(b);
  // A lower bound: every character that only one of the names has costs an edit, as does every difference in length.
  const auto least = static_cast<size_t>(std::max(std::popcount(in_a & ~in_b), std::popcount(in_b & ~in_a)));
  if (std::max(least, std::max(a.size(), b.size()) - std::min(a.size(), b.size())) > limit) {
    return limit + 1;
  }
  const size_t width = b.size() + 1;
  std::vector<size_t> rows(3 * width); // of the table [a.size() + 1, b.size() + 1]
  size_t* before = rows.data();
  size_t* last = before + width;
  size_t* row = last + width;
  std::iota(row, row + width, size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, last);
    std::swap(last, row);
    row[0] = i;
    size_t best = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
      best = std::min(best, row[j]);
    }
    if (best > limit + 1) { // + 1: a swap continues from the row before the last
      return limit + 1;
    }
  }
  return row[b.size()];
}

std::string closest_key(const std::string& section, const std::string& raw_name) {
  if (raw_name.size() > 64) {
    return "";
  }
  const std::string name = absl::StrReplaceAll(absl::AsciiStrToLower(raw_name), {{"-", "_"}});
  if (find_section(name) != nullptr && section.empty()) {
    return name;
  }
  std::string best;
  size_t best_distance = std::numeric_limits<size_t>::max();
  // Takes the key if its name is closer to what was `written` than all names so far.
  const auto offer = [&](const std::string& written, const std::string& name_there, const std::string& key,
                         size_t limit) {
    if (best_distance == 0) {
      return;
    }
    const size_t closer = std::min(limit, best_distance - 1);
    const size_t distance = edit_distance(written, name_there, closer);
    if (distance <= closer) {
      best = key;
      best_distance = distance;
    }
  };
  const std::string whole = absl::StrCat(section, ".", name);
  // Keys of the same section first, so that they win ties; in other sections only an almost exact name is suggested.
  for (const Section& candidate : sections()) {
    for (const Field& field : candidate.fields) {
      if (candidate.name == section) {
        offer(name, field.name, field.key(), tolerance(name));
      }
    }
  }
  if (best.empty()) {
    for (const auto& [other, key] : kElsewhere) {
      if (name == other && find_field(std::string(key)) != nullptr) {
        return std::string(key);
      }
    }
  }
  const size_t limit_elsewhere = section.empty() ? tolerance(name) : name.size() / 4;
  for (const Section& candidate : sections()) {
    if (section.empty()) {
      offer(name, candidate.name, candidate.name, tolerance(name));
    }
    for (const Field& field : candidate.fields) {
      const std::string key = field.key();
      offer(name, field.name, key, limit_elsewhere);
      offer(whole, key, key, name.size() / 4);
    }
  }
  return best;
}

std::string closest_name(const std::string& raw_name, absl::Span<const std::string> names) {
  if (raw_name.size() > 64) {
    return "";
  }
  const std::string name = absl::StrReplaceAll(absl::AsciiStrToLower(raw_name), {{"-", "_"}});
  for (const auto& [other, value] : kElsewhere) {
    if (name == other && std::find(names.begin(), names.end(), value) != names.end()) {
      return std::string(value);
    }
  }
  std::string best;
  size_t best_distance = tolerance(name) + 1;
  for (const std::string& candidate : names) {
    const size_t distance = edit_distance(name, candidate, best_distance);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

} // namespace distill::config
