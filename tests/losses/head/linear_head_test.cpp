// The head against the naive fp64 computation: values, gradients, shapes and options.
#include <gtest/gtest.h>

#include "losses/head/linear_head.h"
#include "tests/losses/cases.h"
#include "tests/losses/naive.h"

namespace distill::losses::testing {
namespace {

using Case = HeadCase;

void expect_matches_naive(
    const LinearHeadInputs& in, const LossOptions& options, const ChunkOptions& chunks, double tolerance) {
  constexpr double kScale = 0.37;
  expect_near(run_head(in, options, chunks, kScale), naive_head(in, options, kScale), tolerance, tolerance);
}

std::vector<Case> cases() {
  using D = Divergence;
  const ProblemSpec plain;
  ProblemSpec bias = plain;
  bias.biases = true;
  bias.token_weights = true;
  ProblemSpec padded = plain;
  padded.vocab = 120;
  padded.teacher_vocab = 113;
  padded.vocab_size = 101;
  ProblemSpec wider_teacher = plain;
  wider_teacher.teacher_vocab = 128;
  ProblemSpec no_teacher = plain;
  no_teacher.teacher_hidden = 0;
  ProblemSpec no_targets = plain;
  no_targets.targets = false;
  std::vector<Case> all;
  for (const auto& [name, divergence] : soft_divergences()) {
    all.push_back({name, {.divergence = divergence}, plain});
    all.push_back({name + "_hot", {.divergence = divergence, .temperature = 2.5}, plain});
    all.push_back(
        {name + "_squared",
         {.divergence = divergence, .temperature = 2.5, .scale_by_temperature_squared = true, .soft_weight = 0.7},
         plain});
    all.push_back({name + "_everything", every_option(divergence), bias});
  }
  all.push_back({"jsd_beta_0", {.beta = 0}, plain});
  all.push_back({"jsd_beta_1", {.beta = 1}, plain});
  all.push_back({"jsd_beta_0_1", {.beta = 0.1}, plain});
  all.push_back({"jsd_beta_0_9", {.beta = 0.9}, plain});
  all.push_back({"skew_forward_alpha_0", {.divergence = D::kSkewForwardKl, .skew_alpha = 0}, plain});
  all.push_back({"skew_reverse_alpha_0", {.divergence = D::kSkewReverseKl, .skew_alpha = 0}, plain});
  all.push_back({"hard_only", {.divergence = D::kNone, .hard_weight = 1, .soft_weight = 0}, no_teacher});
  all.push_back({"hard_only_with_teacher", {.divergence = D::kNone, .hard_weight = 1, .soft_weight = 0}, plain});
  all.push_back(
      {"hard_smooth_z",
       {.divergence = D::kNone, .hard_weight = 0.8, .label_smoothing = 0.2, .z_loss = 0.05},
       no_teacher});
  all.push_back({"hard_softcap", {.divergence = D::kNone, .hard_weight = 1, .student_softcap = 4}, no_teacher});
  all.push_back({"mix_hot", {.temperature = 3, .hard_weight = 0.5, .soft_weight = 0.5}, plain});
  all.push_back({"mix_padded", {.hard_weight = 0.5, .label_smoothing = 0.1}, padded});
  all.push_back({"wider_teacher", {.hard_weight = 0.5}, wider_teacher});
  all.push_back({"no_targets", {.divergence = D::kReverseKl}, no_targets});
  all.push_back({"weights", {.hard_weight = 1}, bias});
  return all;
}

class Head : public ::testing::TestWithParam<Case> {};

TEST_P(Head, MatchesNaiveInFp64) {
  for (const int64_t chunk : {1, 4, 13, 64}) {
    SCOPED_TRACE(chunk);
    expect_matches_naive(make_problem(GetParam().problem), GetParam().options, {.chunk_size = chunk}, 1e-10);
  }
}

TEST_P(Head, MatchesNaiveInFp32) {
  ProblemSpec spec = GetParam().problem;
  spec.dtype = at::kFloat;
  expect_matches_naive(make_problem(spec), GetParam().options, {.chunk_size = 4}, 2e-5);
}

TEST_P(Head, CompactionChangesNothing) {
  LinearHeadInputs in = make_problem(GetParam().problem);
  if (!in.targets_N.defined()) {
    GTEST_SKIP() << "every token counts";
  }
  const HeadResult all = run_head(in, GetParam().options, {.chunk_size = 4});
  set_known(in, true);
  const HeadResult compact = run_head(in, GetParam().options, {.chunk_size = 4});
  EXPECT_LT(relative_error(compact.metrics_MN, all.metrics_MN), 1e-12);
  EXPECT_LT(relative_error(compact.grads.hidden_NH, all.grads.hidden_NH), 1e-12);
  EXPECT_LT(relative_error(compact.grads.weight_VH, all.grads.weight_VH), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Options, Head, ::testing::ValuesIn(cases()), [](const auto& c) { return c.param.name; });

// Each head is computed in its own dtype: what the inputs hold is exact, so only the products' rounding may differ from
// fp64, and that is fp32's on both sides.
class HeadDtypes : public ::testing::TestWithParam<std::tuple<at::ScalarType, at::ScalarType>> {};

TEST_P(HeadDtypes, OfTeacherAndStudentMayDiffer) {
  const auto [student, teacher] = GetParam();
  for (const bool biases : {false, true}) {
    LinearHeadInputs in = make_problem({.ignored = 0.4, .biases = biases, .dtype = student});
    take_teacher(in, make_problem({.ignored = 0.4, .biases = biases, .dtype = teacher}));
    for (const bool known : {false, true}) {
      set_known(in, known);
      const HeadResult ours = run_head(in, {.hard_weight = 0.3}, {.chunk_size = 4});
      const NaiveResult naive = naive_head(in, {.hard_weight = 0.3});
      EXPECT_LT(relative_error(ours.metrics_MN[kSoft], naive.soft_N), 1e-5) << biases << known;
      EXPECT_LT(relative_error(ours.metrics_MN[kTeacherLse], naive.teacher_lse_N), 1e-6);
      EXPECT_LT(relative_error(ours.metrics_MN[kTeacherCe], naive.teacher_ce_N), 1e-5);
      const double rounding = student == at::kBFloat16 ? 4e-3 : 1e-5; // of the logits' gradient, which has that dtype
      EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), rounding);
      EXPECT_LT(relative_error(ours.grads.hidden_NH, naive.d_hidden_NH), rounding);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, HeadDtypes,
    ::testing::Values(
        std::tuple{at::kFloat, at::kBFloat16}, std::tuple{at::kBFloat16, at::kFloat},
        std::tuple{at::kBFloat16, at::kBFloat16}));

// bf16 logits are for two bf16 heads: an fp32 teacher's would be rounded.
TEST(HeadDtypes, LogitsAreRoundedOnlyWhereBothSidesAreBf16) {
  LinearHeadInputs in = make_problem({.dtype = at::kBFloat16});
  const LossOptions rounded{.logits_dtype = LogitsDtype::kBFloat16};
  EXPECT_FALSE(
      at::equal(linear_head(in, rounded, {}, nullptr).metrics_MN, linear_head(in, {}, {}, nullptr).metrics_MN));
  take_teacher(in, make_problem({.dtype = at::kFloat}));
  EXPECT_TRUE(at::equal(linear_head(in, rounded, {}, nullptr).metrics_MN, linear_head(in, {}, {}, nullptr).metrics_MN));
}

class HeadShapes : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(HeadShapes, MatchNaive) {
  const auto [tokens, vocab] = GetParam();
  expect_matches_naive(
      make_problem({.tokens = tokens, .vocab = vocab, .ignored = 0.2}), {.hard_weight = 0.5}, {.chunk_size = 3}, 1e-10);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, HeadShapes,
    ::testing::Combine(::testing::Values(1, 2, 3, 7), ::testing::Values(1, 2, 3, 31, 257, 1023, 4099)));

// The gradient of hidden is a sum over the vocabulary in fp32: some machines' products add its terms one after the
// other, at a random walk of sqrt(151665) roundings of 6e-8 each.
TEST(HeadLargeVocabulary, OddWidthsOfRealModels) {
  for (const int64_t vocab : {50257, 151665}) {
    expect_matches_naive(
        make_problem({.tokens = 3, .vocab = vocab, .hidden = 4, .teacher_hidden = 4, .dtype = at::kFloat}),
        {.hard_weight = 0.5}, {.chunk_size = 2}, 1e-4);
  }
}

TEST(HeadEdges, NoTokens) {
  for (const bool known : {false, true}) {
    LinearHeadInputs in = make_problem({.tokens = 0});
    in.valid_tokens = known ? 0 : -1;
    const HeadResult result = run_head(in, {.hard_weight = 1});
    EXPECT_EQ(result.metrics_MN.sizes(), at::IntArrayRef({kNumTokenMetrics, 0}));
    EXPECT_EQ(result.grads.weight_VH.abs().max().item<double>(), 0);
  }
}

TEST(HeadEdges, AllTokensIgnored) {
  for (const bool known : {false, true}) {
    LinearHeadInputs in = make_problem({.ignored = 1.0, .dtype = at::kFloat});
    in.valid_tokens = known ? 0 : -1;
    const HeadResult result = run_head(in, {.hard_weight = 1, .z_loss = 0.1});
    EXPECT_EQ(result.metrics_MN.abs().max().item<double>(), 0);
    EXPECT_EQ(result.grads.hidden_NH.abs().max().item<double>(), 0);
    EXPECT_EQ(result.grads.weight_VH.abs().max().item<double>(), 0);
  }
}

TEST(HeadEdges, WrongCountOfValidTokensIsAnError) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "a device-side assertion there, which ends the process's use of the device";
  }
  LinearHeadInputs in = make_problem({});
  const int64_t valid = in.targets_N.ne(kIgnoreIndex).sum().item<int64_t>();
  in.valid_tokens = valid - 1;
  EXPECT_THROW(run_head(in, {}), c10::Error);
  in.valid_tokens = valid + 1;
  EXPECT_THROW(run_head(in, {}), c10::Error);
}

TEST(HeadEdges, StridedInputs) {
  LinearHeadInputs in = make_problem({});
  const NaiveResult naive = naive_head(in, {.hard_weight = 1});
  const auto interleave = [](const at::Tensor& t) { return at::stack({t, t}, -1).select(-1, 1); };
  const auto column_major = [](const at::Tensor& t) { return t.t().contiguous().t(); };
  in.hidden_NH = column_major(in.hidden_NH);
  in.weight_VH = column_major(in.weight_VH);
  in.teacher_hidden_NG = interleave(in.teacher_hidden_NG);
  in.teacher_weight_VG = interleave(in.teacher_weight_VG);
  in.targets_N = interleave(in.targets_N);
  const HeadResult ours = run_head(in, {.hard_weight = 1}, {.chunk_size = 4});
  EXPECT_LT(relative_error(ours.metrics_MN[kLoss], naive.loss_N), 1e-10);
  EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), 1e-10);
}

TEST(HeadGradients, WeightIsAccumulatedHiddenIsWritten) {
  const LinearHeadInputs in = make_problem({});
  LinearHeadGrads grads = make_grads(in);
  linear_head(in, {.hard_weight = 1}, {}, &grads);
  const at::Tensor once = grads.weight_VH.clone();
  const at::Tensor hidden_once = grads.hidden_NH.clone();
  linear_head(in, {.hard_weight = 1}, {}, &grads);
  EXPECT_LT(relative_error(grads.weight_VH, 2 * once), 1e-12);
  EXPECT_TRUE(at::equal(grads.hidden_NH, hidden_once));
}

// The old contents of the buffers are never read: here they are NaN.
TEST(HeadGradients, AreWrittenWhereTheyDoNotAccumulate) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
    for (const double ignored : {0.3, 1.0}) {
      LinearHeadInputs in =
          make_problem({.vocab = 120, .vocab_size = 101, .ignored = ignored, .biases = true, .dtype = dtype});
      set_known(in, true);
      const HeadResult added = run_head(in, {.hard_weight = 1}, {.chunk_size = 4}, 0.37);
      LinearHeadGrads written = make_grads(in, 0.37);
      written.weight_VH.fill_(NAN);
      written.bias_V.fill_(NAN);
      written.accumulate = false;
      expect_same({linear_head(in, {.hard_weight = 1}, {.chunk_size = 4}, &written).metrics_MN, written}, added);
    }
  }
}

TEST(HeadGradients, PaddedWeightRowsGetNone) {
  const LinearHeadInputs in = make_problem({.vocab = 120, .vocab_size = 101});
  const HeadResult ours = run_head(in, {.hard_weight = 1, .label_smoothing = 0.1});
  EXPECT_EQ(ours.grads.weight_VH.narrow(0, 101, 19).abs().max().item<double>(), 0);
}

TEST(HeadGradients, FrozenLmHeadAndNoGradGiveTheSameLoss) {
  const LinearHeadInputs in = make_problem({});
  const HeadResult full = run_head(in, {.hard_weight = 1});
  LinearHeadGrads frozen = make_grads(in);
  frozen.weight_VH = at::Tensor();
  const at::Tensor metrics_frozen = linear_head(in, {.hard_weight = 1}, {}, &frozen).metrics_MN;
  const at::Tensor metrics_no_grad = linear_head(in, {.hard_weight = 1}, {}, nullptr).metrics_MN;
  EXPECT_TRUE(at::equal(metrics_frozen, full.metrics_MN));
  EXPECT_TRUE(at::equal(metrics_no_grad, full.metrics_MN));
  EXPECT_TRUE(at::equal(frozen.hidden_NH, full.grads.hidden_NH));
}

// n micro-batches with one global token count equal one big batch, however ragged the masks.
TEST(HeadGradients, MicroBatchesWithAGlobalCountEqualOneBatch) {
  const LinearHeadInputs all = make_problem({.tokens = 24, .ignored = 0.6});
  const double valid = all.targets_N.ne(kIgnoreIndex).sum().item<double>();
  const HeadResult one = run_head(all, {.hard_weight = 0.3}, {}, 1 / valid);
  LinearHeadGrads grads = make_grads(all, 1 / valid);
  at::Tensor loss = at::zeros({}, all.hidden_NH.options());
  for (const auto& [begin, count] : std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 1}, {6, 18}}) {
    LinearHeadInputs part = all;
    part.hidden_NH = all.hidden_NH.narrow(0, begin, count);
    part.teacher_hidden_NG = all.teacher_hidden_NG.narrow(0, begin, count);
    part.targets_N = all.targets_N.narrow(0, begin, count);
    LinearHeadGrads part_grads = grads;
    part_grads.hidden_NH = grads.hidden_NH.narrow(0, begin, count);
    loss += linear_head(part, {.hard_weight = 0.3}, {}, &part_grads).metrics_MN[kLoss].sum();
  }
  EXPECT_LT(relative_error(loss, one.metrics_MN[kLoss].sum()), 1e-12);
  EXPECT_LT(relative_error(grads.hidden_NH, one.grads.hidden_NH), 1e-12);
  EXPECT_LT(relative_error(grads.weight_VH, one.grads.weight_VH), 1e-12);
}

// Reduction none needs any incoming gradient, as token weights.
TEST(HeadGradients, TokenWeightsAreIncomingGradients) {
  LinearHeadInputs in = make_problem({});
  const at::Tensor incoming = at::randn({in.hidden_NH.size(0)}, at::TensorOptions(at::kDouble)).to(test_device());
  in.token_weights_N = incoming;
  const HeadResult ours = run_head(in, {.hard_weight = 0.3});
  const NaiveResult naive = naive_head(in, {.hard_weight = 0.3});
  EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), 1e-10);
  EXPECT_LT(relative_error(ours.metrics_MN[kLoss], naive.loss_N), 1e-10);
}

// A frozen body below a trained lm_head.
TEST(HeadGradients, ThatOfTheHiddenStatesMayBeLeftOut) {
  for (const bool known : {false, true}) {
    LinearHeadInputs in = make_problem({.tokens = 40, .biases = true, .dtype = at::kBFloat16});
    set_known(in, known);
    const ChunkOptions chunks{.chunk_size = 8};
    const HeadResult whole = run_head(in, {.hard_weight = 0.5}, chunks);
    LinearHeadGrads grads = make_grads(in);
    grads.hidden_NH.reset();
    const at::Tensor metrics = linear_head(in, {.hard_weight = 0.5}, chunks, &grads).metrics_MN;
    EXPECT_FALSE(grads.hidden_NH.defined());
    grads.hidden_NH = whole.grads.hidden_NH;
    expect_same({metrics, grads}, whole);
  }
}

TEST(HeadScratch, ArenaOfTheCallerGivesTheSameResult) {
  LinearHeadInputs in = make_problem({.tokens = 40, .dtype = at::kBFloat16});
  for (const bool known : {false, true}) {
    set_known(in, known);
    const ChunkOptions chunks{.chunk_size = 8};
    const int64_t bytes = linear_head_plan(in, {}, chunks, /*needs_grad=*/true)->arena_bytes;
    const at::Tensor arena = at::full({bytes}, 255, in.hidden_NH.options().dtype(at::kByte));
    const HeadResult own = run_head(in, {}, chunks);
    LinearHeadGrads grads = make_grads(in);
    const at::Tensor metrics = linear_head(in, {}, chunks, &grads, arena).metrics_MN;
    expect_same({metrics, grads}, own);
    EXPECT_THROW(linear_head(in, {}, chunks, &grads, arena.narrow(0, 0, 100)), c10::Error);
  }
}

TEST(HeadScratch, PlanOfMetaTensorsIsThatOfTheDevice) {
  LinearHeadInputs in = make_problem({.tokens = 40, .dtype = at::kBFloat16});
  const auto plan = linear_head_plan(in, {}, {}, /*needs_grad=*/true);
  for (at::Tensor* tensor : {&in.hidden_NH, &in.weight_VH, &in.teacher_hidden_NG, &in.teacher_weight_VG}) {
    *tensor = tensor->to(at::kMeta);
  }
  in.meta_device = test_device().type();
  const auto meta = linear_head_plan(in, {}, {}, /*needs_grad=*/true);
  EXPECT_EQ(meta->bytes, plan->bytes);
  EXPECT_EQ(meta->arena_bytes, plan->arena_bytes);
  in.meta_device = at::kCUDA;
  const auto cuda = linear_head_plan(in, {}, {}, /*needs_grad=*/true);
  EXPECT_EQ(cuda->bytes, cuda->arena_bytes);
}

TEST(HeadRuns, AreDeterministic) {
  const LinearHeadInputs in = make_problem({.tokens = 64, .vocab = 3001, .dtype = at::kBFloat16});
  const HeadResult a = run_head(in, {.hard_weight = 1}, {.chunk_size = 16});
  const HeadResult b = run_head(in, {.hard_weight = 1}, {.chunk_size = 16});
  expect_same(a, b);
}

} // namespace
} // namespace distill::losses::testing
