#include "trainer/config/onpolicy_fields.h"

#include "trainer/config/field_kinds.h"

namespace distill::config {

namespace {

const Condition kOnPolicy = {
    [](const Config& c) { return c.onpolicy.enabled(); }, "onpolicy.prompts is given", "onpolicy.prompts"};
const Condition kHeldOut = {
    [](const Config& c) { return c.onpolicy.enabled() && !c.onpolicy.eval_prompts.empty(); },
    "onpolicy.eval_prompts is given", "onpolicy.eval_prompts"};
const Condition kByBytes = {
    [](const Config& c) { return c.onpolicy.enabled() && c.any_teacher_by_bytes(); },
    "there are on-policy sequences and a teacher.alignment is bytes", "teacher.alignment"};
const Condition kJsd = {
    [](const Config& c) { return c.onpolicy.enabled() && c.onpolicy_loss.divergence == losses::Divergence::kJsd; },
    "there are on-policy sequences and onpolicy_loss.divergence is jsd", "onpolicy_loss.divergence"};
const Condition kSkew = {
    [](const Config& c) {
      return c.onpolicy.enabled() &&
          (c.onpolicy_loss.divergence == losses::Divergence::kSkewForwardKl ||
           c.onpolicy_loss.divergence == losses::Divergence::kSkewReverseKl);
    },
    "there are on-policy sequences and onpolicy_loss.divergence is skew_forward_kl or skew_reverse_kl",
    "onpolicy_loss.divergence"};

} // namespace

std::vector<Field> onpolicy_fields() {
  constexpr auto kOwn = &Config::onpolicy;
  using Own = OnPolicySection;
  return {
      {"onpolicy", "prompts", DataSets{member<kOwn, &Own::prompts>}, "",
       "Token shards with the prompts that the student continues; several data sets are mixed in proportion to their "
       "weights. The prompt of a conversation ends before its first token in the loss, that of a text is its first half, "
       "and a document without any token in the loss is a prompt as a whole (scripts/tokenize.py --prompts). Makes the "
       "run on-policy."},
      {"onpolicy", "eval_prompts", DataSets{member<kOwn, &Own::eval_prompts>}, "",
       "Token shards with held-out prompts, which the engine continues at the beginning of each round after an evaluation "
       "was due (eval.every; eval.at_start for the first round), with the same weights. Teacher and student are compared "
       "on these completions, and nothing is learned from them.",
       kOnPolicy},
      {"onpolicy", "eval_completions", Integer{member<kOwn, &Own::eval_completions>, 1, kMaxInt}, "completions",
       "Number of held-out prompts that are continued, always the same ones; fewer if there are not as many.",
       kHeldOut},
      {"onpolicy", "eval_temperature", Real{member<kOwn, &Own::eval_temperature>, 0, kMost}, "",
       "As onpolicy.temperature, for held-out prompts: 1 samples the student's own distribution, always with the same "
       "seeds; 0 takes the most probable tokens.",
       kHeldOut},
      {"onpolicy", "command", Text{member<kOwn, &Own::command>}, "",
       "Shell command that writes the completions of a round, with {model} (folder of the student's weights), {prompts} "
       "and {output} (JSONL files), {round} and {version} (docs/onpolicy.md). scripts/rollout_transformers.py is one.",
       kOnPolicy},
      {"onpolicy", "server", Text{member<kOwn, &Own::server>}, "",
       "Shell command of an inference server, with {model}, which is started before the first round, lives through all of "
       "them, and is ended with the run. Empty: onpolicy.command needs none, or the user starts it.",
       kOnPolicy},
      {"onpolicy", "retokenize", Text{member<kOwn, &Own::retokenize>}, "",
       "Shell command that writes the completions of a round in the tokens of a teacher with a tokenizer of its own, with "
       "{completions} and {output} (JSONL files; docs/onpolicy.md): scripts/retokenize_completions.py. Required there.",
       kByBytes},
      {"onpolicy", "every", Integer{member<kOwn, &Own::every>, 1, kMaxSteps}, "steps",
       "Length of a round: before it the student's weights are given to the engine, which writes the round's completions.",
       kOnPolicy},
      {"onpolicy", "fraction", Real{member<kOwn, &Own::fraction>, 0, 1, /*min_excluded=*/true}, "",
       "Share of on-policy sequences in a batch; the other sequences are those of data.train. 1: all.", kOnPolicy},
      {"onpolicy", "completions", Integer{member<kOwn, &Own::completions>, 0, kMaxInt}, "completions",
       "Number of completions in a round. They are distributed evenly over the round's on-policy sequences. 0: one for "
       "each of these, onpolicy.every x onpolicy.fraction x train.global_batch_size.",
       kOnPolicy},
      {"onpolicy", "samples", Integer{member<kOwn, &Own::samples>, 1, kMaxInt}, "completions",
       "Completions of one prompt.", kOnPolicy},
      {"onpolicy", "max_new_tokens", Integer{member<kOwn, &Own::max_new_tokens>, 1, kMaxSeqLen}, "tokens",
       "Largest length of a completion. Prompts have at most the rest of data.seq_len; longer ones are passed over, and "
       "texts are cut.",
       kOnPolicy},
      {"onpolicy", "temperature", Real{member<kOwn, &Own::temperature>, 0, kMost}, "",
       "Divisor of the student's logits when it writes. 0: the most probable token.", kOnPolicy},
      {"onpolicy", "top_p", Real{member<kOwn, &Own::top_p>, 0, 1, /*min_excluded=*/true}, "",
       "The student samples from the most probable tokens that have this much probability together. 1: all.",
       kOnPolicy},
      {"onpolicy", "stop", Texts{member<kOwn, &Own::stop>}, "",
       "Texts that end a completion, a list, beside the tokens that end a text for the student.", kOnPolicy},
      {"onpolicy", "seed", Integer{member<kOwn, &Own::seed>, 0, kMaxInt}, "",
       "Seed of the prompts' order and of the sampling.", kOnPolicy},
      {"onpolicy", "staleness", Integer{member<kOwn, &Own::staleness>, 0, 1}, "rounds",
       "0: training waits while a round is written. 1: each round is written while the one before it is trained on, by the "
       "student as it was at the beginning of that one.",
       kOnPolicy},
      {"onpolicy", "timeout_s", Integer{member<kOwn, &Own::timeout_s>, 1, 31536000}, "seconds",
       "Time in which the engine must write a round, and onpolicy.retokenize its completions in the teacher's tokens.",
       kOnPolicy},
      {"onpolicy", "max_logprob_gap", Real{member<kOwn, &Own::max_logprob_gap>, 0, kMost}, "nats",
       "Largest difference between the mean log-probability that the engine gives its completions and the student's own. "
       "Above it the run ends: the engine has other weights, or computes another model. 0: no limit.",
       kOnPolicy},
      {"onpolicy", "max_bad", Real{member<kOwn, &Own::max_bad>, 0, 1}, "",
       "Largest share of a round's completions that may be missing or unusable. Above it the run ends; below it these "
       "completions are left out, with a warning.",
       kOnPolicy},
      {"onpolicy", "keep_rounds", Integer{member<kOwn, &Own::keep_rounds>, 0, kMaxSteps}, "rounds",
       "Rounds that are kept in the run folder, beside those that a checkpoint needs. 0: all, as data for later runs.",
       kOnPolicy},
      {"onpolicy", "offload", one_of<kOwn, &Own::offload>(), "",
       "What the trainer does with its state (weights of both models, optimizer state) while the engine writes, where both "
       "use the same GPUs and onpolicy.staleness is 0. all: moves it to pinned host memory, and back. none: keeps it. "
       "auto: moves it if onpolicy.engine_gib does not fit beside it. `distill plan` says what the device holds then.",
       kOnPolicy},
      {"onpolicy", "engine_gib", Real{member<kOwn, &Own::engine_gib>, 0, kMost}, "GiB",
       "Memory that the engine takes on each of the trainer's GPUs while it writes: a plan in which it does not fit is "
       "refused. 0: the engine has GPUs of its own, or fits.",
       kOnPolicy},
      {"onpolicy", "weights_dir", Text{member<kOwn, &Own::weights_dir>}, "folder",
       "Folder in which the student's weights are written for the engine, such as /dev/shm. Empty: in the run folder.",
       kOnPolicy},
  };
}

std::vector<Field> onpolicy_loss_fields() {
  using losses::LossOptions;
  using losses::SpanOptions;
  constexpr auto kLoss = &Config::onpolicy_loss;
  constexpr auto kSpans = &Config::onpolicy_spans;
  return {
      {"onpolicy_loss", "divergence", one_of<kLoss, &LossOptions::divergence>(), "",
       "Divergence between teacher and student over the whole vocabulary, at each token that the student has written.",
       kOnPolicy},
      {"onpolicy_loss", "beta", real_of<kLoss, &LossOptions::beta>(), "", "As loss.beta.", kJsd},
      {"onpolicy_loss", "skew_alpha", real_of<kLoss, &LossOptions::skew_alpha>(), "", "As loss.skew_alpha.", kSkew},
      {"onpolicy_loss", "temperature", real_of<kLoss, &LossOptions::temperature>(), "",
       "Divisor of the logits of both models in the divergence.", kOnPolicy},
      {"onpolicy_loss", "soft_weight", real_of<kLoss, &LossOptions::soft_weight>(), "",
       "Weight of the divergence, relative to the losses of data.train in the same batch.", kOnPolicy},
      {"onpolicy_loss", "hard_weight", real_of<kLoss, &LossOptions::hard_weight>(), "",
       "Must be 0: cross-entropy on words that the student has written itself would teach it what it says already.",
       kOnPolicy},
      {"onpolicy_loss", "span_weight", Real{member<kSpans, &SpanOptions::weight>, 0, losses::kMost}, "",
       "As loss.span_weight.", kByBytes},
      {"onpolicy_loss", "span_starts", Boolean{member<kSpans, &SpanOptions::starts>}, "", "As loss.span_starts.",
       kByBytes},
      {"onpolicy_loss", "span_temperature", Real{member<kSpans, &SpanOptions::temperature>, 0.01, 1e6}, "",
       "As loss.span_temperature.", kByBytes},
  };
}

} // namespace distill::config
