#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/evaluator.h"
#include "trainer/run_folder/journal.h"
#include "trainer/setup/sample_inputs.h"

namespace distill::trainer {

// How a model continues a prompt. The ids end with the one that ended the text, if one did.
struct Continuation {
  std::vector<int64_t> ids;
  std::string text;
};

// A held-out prompt, what follows it in its document, and how the models continue it.
struct Sample {
  const data::Prompt* prompt = nullptr;
  std::string prompt_text, target_text;
  Continuation student;
  std::optional<Continuation> teacher; // nullopt: the run has no teacher that can continue a text
};

// The greedy continuations of held-out prompts (eval.samples). There is no cache of keys and values: every new token is
// a forward pass over the whole window. All ranks take part, each with its share of the prompts; a pass has no more
// tokens than a micro-batch, and one token's logits exist at a time, so that memory stays below an evaluation's.
class SampleGenerator {
 public:
  // All arguments must outlive this object.
  SampleGenerator(
      const config::Config& config, SampleInputs inputs, MicroBatchRunner& micro, const sharding::Mesh& mesh)
      : config_(config), inputs_(std::move(inputs)), micro_(micro), mesh_(mesh) {}

  // Returns a sample for each prompt, the same ones on every rank; none if a rank was asked to stop. The teacher's
  // continuations never change and are computed the first time.
  std::vector<Sample> generate(const EvaluationHooks& hooks);

  // Text that is equal on two ranks if they continue the same prompts.
  std::string fingerprint() const {
    return inputs_.fingerprint();
  }

 private:
  using Ids = std::vector<int64_t>;
  std::optional<std::vector<Ids>> continuations(WhichModel model, const EvaluationHooks& hooks);
  bool continue_group(
      WhichModel model, int64_t first, int64_t share, const EvaluationHooks& hooks,
      const std::function<void(int64_t tokens)>& progress, std::vector<Ids>& all);
  std::vector<int64_t> exchange(const std::vector<int64_t>& own) const;
  Continuation with_text(const data::Prompt& prompt, Ids ids) const;

  const config::Config& config_;
  SampleInputs inputs_;
  MicroBatchRunner& micro_;
  const sharding::Mesh& mesh_;
  std::optional<std::vector<Ids>> teacher_;
};

// The sample's line of samples.jsonl, and a short one for the log.
std::string sample_json(int64_t step, int64_t index, const Sample& sample);
std::string sample_line(int64_t step, int64_t index, const Sample& sample);
// For TensorBoard.
std::string sample_markdown(const Sample& sample);

// Writes the samples of the evaluation after `step` steps to samples.jsonl, the event file and, the first one, the log.
absl::Status record_samples(RunJournal& journal, int64_t step, const std::vector<Sample>& samples, double seconds);

} // namespace distill::trainer
