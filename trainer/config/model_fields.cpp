#include "trainer/config/model_fields.h"

#include <absl/strings/str_cat.h>

#include "losses/rows/sparse_args.h"
#include "trainer/config/field_kinds.h"

namespace distill::config {
namespace {

const Condition kCached = {
    [](const Config& c) { return c.teacher.reads_cache(); }, "teacher.source is cache", "teacher.source"};
const Condition kAligned = {
    [](const Config& c) { return c.teacher.alignment == Alignment::kBytes; }, "teacher.alignment is bytes",
    "teacher.alignment"};
const Condition kTopKCache = {
    [](const Config& c) { return c.cache.kind == CacheKind::kTopK; }, "cache.kind is topk", "cache.kind"};
const Condition kSampledCache = {
    [](const Config& c) { return c.cache.kind == CacheKind::kSampled; }, "cache.kind is sampled", "cache.kind"};
const Condition kFloat8Teacher = {
    [](const Config& c) { return c.teacher.dtype == ComputeDtype::kFloat8; }, "teacher.dtype is float8",
    "teacher.dtype"};
const Condition kFloat8Student = {
    [](const Config& c) { return c.student.dtype == ComputeDtype::kFloat8; }, "student.dtype is float8",
    "student.dtype"};

const Condition kFrozenFloat8 = {
    [](const Config& c) {
      return c.teacher.dtype == ComputeDtype::kFloat8 ||
          (c.student.dtype == ComputeDtype::kFloat8 && c.trains_adapter());
    },
    "teacher.dtype is float8, or student.dtype is and adapters are trained", "teacher.dtype"};
const Condition kLora = {
    [](const Config& c) { return c.lora.rank > 0; }, "student.lora.rank is not 0", "student.lora.rank"};
const Condition kAdapter = {
    [](const Config& c) { return c.trains_adapter(); }, "student.lora.rank is not 0 or student.adapter is given",
    "student.lora.rank"};
const Condition kTrainedFloat8Student = {
    [](const Config& c) { return c.student.dtype == ComputeDtype::kFloat8 && !c.trains_adapter(); },
    "student.dtype is float8 and all of the student is trained", "student.dtype"};

template <auto kModel>
std::vector<Field> model_fields(const std::string& section, Condition condition) {
  return {
      {section, "path", Text{member<kModel, &ModelSection::path>}, "folder",
       section == "student"
           ? "Hugging Face folder of the model that is trained. Required."
           : "Hugging Face folder of the frozen teacher. May be empty with teacher.source: cache, with "
             "loss.divergence: none, and in `distill eval`."},
      {section, "tokenizer", Text{member<kModel, &ModelSection::tokenizer>}, "path",
       "Folder that holds tokenizer.json, or that file itself. Empty: the model's folder.", condition},
      {section, "init", one_of<kModel, &ModelSection::init>(), "",
       "pretrained: the weights of the folder. random: config.json alone is read, and the weights are drawn at random "
       "from train.seed.",
       condition},
      {section, "dtype", one_of<kModel, &ModelSection::dtype>(), "",
       absl::StrCat(
           "Dtype that the model computes in. auto: train.dtype. float8: the matrix products of the decoder blocks in "
           "e4m3 with a scale for each row, everything else in train.dtype",
           section == "student" ? ", and the gradients of weights, unless float8.weight_gradients is true; master "
                                  "weights and moments are fp32 as always. With adapters the frozen weights are "
                                  "rounded once, as a teacher's are"
                                : "",
           " (docs/float8.md)."),
       condition},
      {section, "ignore_config_keys", Texts{member<kModel, &ModelSection::ignore_config_keys>}, "",
       "Keys of the model's config.json that distill does not know and that do not change the mathematics, a list. An "
       "unknown key that is not listed is an error.",
       condition},
      {section, "adapter", Text{member<kModel, &ModelSection::adapter>}, "folder",
       section == "student"
           ? "Folder of an adapter as peft writes it, of the model in student.path: training goes on from it, with its "
             "rank and targets (docs/lora.md)."
           : "Folder of an adapter as peft writes it: the teacher is the model in teacher.path with it (docs/lora.md).",
       condition},
  };
}

} // namespace

std::vector<Field> student_fields() {
  std::vector<Field> fields = model_fields<&Config::student>("student", {});
  fields.push_back(
      {"student", "float8_exceptions", Texts{member<&Config::student, &ModelSection::float8_exceptions>}, "",
       "Decoder blocks that stay in train.dtype, a list of blocks and ranges of blocks: 0, 0-3. With adapters also "
       "products, as of teacher.float8_exceptions.",
       kFloat8Student});
  Real aux_loss{member<&Config::student, &ModelSection::router_aux_loss>, 0, kMost};
  aux_loss.or_auto = true;
  fields.push_back(
      {"student", "router_aux_loss", aux_loss, "",
       "Coefficient of the loss that asks the routers of a student with experts to share the tokens evenly "
       "(docs/models.md). It is added to the gradients, and not to the loss that is reported. 0: none. auto: "
       "router_aux_loss_coef of config.json if output_router_logits is true there, else 0."});
  return fields;
}

std::vector<Field> lora_fields() {
  constexpr auto kSection = &Config::lora;
  constexpr int64_t kMaxRank = 1 << 16;
  Real alpha{member<kSection, &LoraSection::alpha>, 0, kMost, /*min_excluded=*/true};
  alpha.or_auto = true;
  return {
      {"student.lora", "rank", Integer{member<kSection, &LoraSection::rank>, 0, kMaxRank}, "",
       "Rank of the adapters. 0: all of the student is trained, or the adapter of student.adapter."},
      {"student.lora", "alpha", alpha, "", "An adapter's product is multiplied by alpha / rank. auto: the rank.",
       kLora},
      {"student.lora", "targets", Texts{member<kSection, &LoraSection::targets>}, "",
       "Modules that have an adapter: a list of names (q_proj, or layers.3.mlp.down_proj), or one regular expression that "
       "matches a module's whole name, or all-linear: every matrix of the blocks; of experts what peft means by it "
       "(docs/lora.md). May be empty with target_parameters.",
       kLora},
      {"student.lora", "target_parameters", Texts{member<kSection, &LoraSection::target_parameters>}, "",
       "Parameters of transformers' model that have an adapter, by whole names or their endings, as peft's key of this "
       "name: mlp.experts.gate_up_proj and mlp.experts.down_proj for experts, mlp.gate.weight for routers. dropout is 0 "
       "with them.",
       kLora},
      {"student.lora", "rslora", Boolean{member<kSection, &LoraSection::rslora>}, "",
       "Multiply by alpha / sqrt(rank) instead.", kLora},
      {"student.lora", "dropout", Real{member<kSection, &LoraSection::dropout>, 0, 1, false, /*max_excluded=*/true}, "",
       "Probability with which an element of a product's input is left out of the adapters' product. What is left out "
       "follows from train.seed, the step and the token.",
       kAdapter},
      {"student.lora", "modules_to_save", Texts{member<kSection, &LoraSection::modules_to_save>}, "",
       "Modules that are trained as they are, beside the adapters: embed_tokens, lm_head, and norms, a list of endings of "
       "names.",
       kLora},
      {"student.lora", "merge", Boolean{member<kSection, &LoraSection::merge>}, "",
       "Write the trained model whole, with the adapters added to its weights, instead of the adapters alone.",
       kAdapter},
  };
}

namespace {

std::vector<Field> alignment_fields() {
  return {
      {"teacher", "alignment", one_of<&Config::teacher, &ModelSection::alignment>(), "",
       "How the tokens of both models are brought together. tokens: both make the same tokens of a text, but for added "
       "tokens and ids. bytes: the teacher's tokenizer splits texts in another way; it reads the data's teacher stream "
       "(scripts/tokenize.py --teacher-tokenizer), and the two are compared where both have a boundary in the text "
       "(docs/vocabulary.md).",
       kTeacher},
      {"teacher", "token_pairs", Texts{member<&Config::teacher, &ModelSection::token_pairs>}, "",
       "Special tokens that stand for the same in both tokenizers, a list of STUDENT=TEACHER: <|im_end|>=<|eot_id|>. Those "
       "with the same text are pairs without being listed; others are compared with nothing.",
       kAligned},
  };
}

} // namespace

std::vector<Field> teacher_fields() {
  std::vector<Field> fields = model_fields<&Config::teacher>("teacher", kTeacher);
  fields.push_back(
      {"teacher", "float8_exceptions", Texts{member<&Config::teacher, &ModelSection::float8_exceptions>}, "",
       "Products that stay in train.dtype, a list: a product in every block (qkv, o, gate_up, down; of a gated delta "
       "rule qkvz, delta_out), a block or a range of blocks (0, 0-3), or both (3.down, 0-3.qkv). `distill quantize` "
       "finds them.",
       kFloat8Teacher});
  fields.push_back(
      {"teacher", "source",
       one_of<&Config::teacher, &ModelSection::source>(
           {{"capture",
             "a run no longer writes a cache: set teacher.source: cache; `distill capture --config FILE` then writes "
             "teacher.cache, and `distill --config FILE` trains from it"}}),
       "",
       "Where the teacher's predictions come from. model: the teacher runs. cache: they are read from teacher.cache, which "
       "`distill capture` has written, and no teacher is loaded."});
  fields.push_back(
      {"teacher", "cache", Text{member<&Config::teacher, &ModelSection::cache>}, "folder",
       "Folder of the teacher's stored predictions (docs/teacher_cache.md), for teacher.source: cache and for "
       "`distill capture`."});
  fields.push_back(
      {"teacher", "missing_tokens", one_of<&Config::teacher, &ModelSection::missing_tokens>(), "",
       "What to do with a document that has a token which the teacher's tokenizer lacks. refuse: an error that names the "
       "first one. mask: that token and all that follow it in the document have no target; the start counts them "
       "(docs/vocabulary.md). Needs data.packing: pack.",
       kTeacher});
  fields.push_back(
      {"teacher", "max_dropped_mass", Real{member<&Config::teacher, &ModelSection::max_dropped_mass>, 0, 1}, "",
       "Largest mean probability that the teacher may give to tokens of its own that the student lacks, over the first "
       "tokens of data.eval, or of data.train without it. The loss knows nothing of these tokens (docs/vocabulary.md). It is an "
       "error before the first step. With teacher.alignment: bytes it is reported and has no limit.",
       kTeacher});
  for (Field& field : alignment_fields()) {
    fields.push_back(std::move(field));
  }
  return fields;
}

std::vector<Field> teacher_list_fields() {
  return {
      {"", "teachers", TeacherList{[](Config& config) -> std::vector<NamedTeacher>& { return config.teachers; }}, "",
       "A list of teachers, each a mapping with a name, the keys of teacher, and in mappings of their own what of loss, "
       "cache, float8 and parallel.shard_teacher holds for it alone: {name: math, path: DIR, loss: {temperature: 2}}; "
       "cache may also be the folder. Every row of the data has one of them: the one that its document names (the key "
       "teacher of a record, scripts/tokenize.py), or the one of its data set (data.train)."},
  };
}

std::vector<Field> cache_fields() {
  constexpr auto kCache = &Config::cache;
  return {
      {"cache", "kind", one_of<kCache, &CacheSection::kind>(), "",
       "What a cache has of each token; a run that reads it names the same kind. hidden: the teacher's hidden state, of "
       "which the loss head makes the logits of the whole vocabulary. topk: the most probable tokens, and the "
       "probability of all others as one number; divergences are lower bounds. sampled: draws from the teacher's "
       "distribution; the loss and its gradient are unbiased estimates, of forward_kl only. topk and sampled hold at the "
       "loss.temperature at which they were captured."},
      {"cache", "dtype",
       one_of<kCache, &CacheSection::dtype>(
           {{"float8",
             "int8 is nearer to the teacher at 3 % more bytes; a cache in float8 is read as before: remove the key"}}),
       "",
       "Dtype that is stored. Of hidden states, auto: the one that the teacher computes in, which is exact; int8: groups "
       "of 64 with a scale each. Of the log-probabilities of topk: auto or float16, or float32, which is exact. The "
       "weights of sampled are float32."},
      {"cache", "topk", Integer{member<kCache, &CacheSection::topk>, 1, losses::kMaxEntries}, "tokens",
       "How many of the most probable tokens `distill capture` stores.", kTopKCache},
      {"cache", "samples", Integer{member<kCache, &CacheSection::samples>, 1, losses::kMaxEntries}, "draws",
       "How many draws `distill capture` stores for a token, with repetitions.", kSampledCache},
      {"cache", "exponent", Real{member<kCache, &CacheSection::exponent>, 0, 1, true}, "",
       "Draws are taken from the teacher's probabilities to this power. Below 1 rare tokens are drawn more often and "
       "weigh less, and the weights are stored; 1: all weights are equal, and none is stored.",
       kSampledCache},
      {"cache", "seed", Integer{member<kCache, &CacheSection::seed>, 0, kMaxInt}, "",
       "Of the draws, which follow from it and from the token's shard, document and place alone.", kSampledCache},
      {"cache", "part_tokens", Integer{member<kCache, &CacheSection::part_tokens>, 1, kMaxTokens}, "tokens",
       "Tokens that a file of the cache covers, rounded up to whole micro-batches. A capture that is killed loses at most "
       "one unfinished file of each rank."},
      {"cache", "other_contexts", one_of<kCache, &CacheSection::other_contexts>(), "",
       "What to do if a document is cut at other places than it was when the cache was written, so that some tokens have "
       "another left context. refuse: an error that names the first such document. allow: their stored predictions are "
       "used; `distill verify --cache` measures how far they are from those of a run. Of concatenated documents only "
       "equal contexts are used.",
       kCached},
  };
}

std::vector<Field> float8_fields() {
  constexpr auto kFloat8 = &Config::float8;
  return {
      {"float8", "gate", Boolean{member<kFloat8, &Float8Section::gate>}, "",
       "Before the run, measure what float8 changes in the teacher's predictions, and refuse the run above the limits. Of a "
       "student with adapters, what it changes in those of its base is measured, too, without limits.",
       kFrozenFloat8},
      {"float8", "gate_tokens", Integer{member<kFloat8, &Float8Section::gate_tokens>, 0, kMaxTokens}, "tokens",
       "How much text is measured, the first of data.eval, or of data.train without it. 0: 65536 on a GPU, 4096 on a "
       "CPU.",
       kFrozenFloat8},
      {"float8", "max_mean_kl", Real{member<kFloat8, &Float8Section::max_mean_kl>, 0, kInf, true}, "nats",
       "Largest mean of KL(teacher || float8 teacher) over the measured tokens. What it means depends on how far the "
       "student is from the teacher: a hundredth of that distance is negligible.",
       kFloat8Teacher},
      {"float8", "max_p99_kl", Real{member<kFloat8, &Float8Section::max_p99_kl>, 0, kInf}, "nats",
       "Largest 99th percentile of the same over the tokens. 0: not limited.", kFloat8Teacher},
      {"float8", "shadow_every", Integer{member<kFloat8, &Float8Section::shadow_every>, 0, kMaxSteps}, "steps",
       "Number of steps from one check of the student's gradients to the next; the first step has one. A check computes "
       "them once more in train.dtype and logs the cosine between the two, so that its step takes twice the time. 0: "
       "never.",
       kTrainedFloat8Student},
      {"float8", "weight_gradients", Boolean{member<kFloat8, &Float8Section::weight_gradients>}, "",
       "Compute the gradients of the student's weights in e4m3, too: dy^T x from what dy W has rounded already, added up "
       "in fp32. Faster and less exact; on a GPU it needs compute capability 9.0. A run can be resumed with the other "
       "value.",
       kTrainedFloat8Student},
  };
}

} // namespace distill::config
