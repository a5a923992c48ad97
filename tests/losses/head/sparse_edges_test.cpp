// Teachers of top-k and of samples: bounds, edges, exactness, and what they promise about runs.
#include <gtest/gtest.h>

#include "losses/head/linear_head.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

// Nothing is lost where the entries are the whole vocabulary, whatever rounding left in the tail.
TEST(SparseTeacher, TopKOfAllColumnsIsTheWholeDistribution) {
  for (const auto& [name, divergence] : soft_divergences()) {
    const LossOptions options{.divergence = divergence, .temperature = 1.3, .hard_weight = 0.5};
    const LinearHeadInputs whole = make_problem({});
    const HeadResult expected = run_head(whole, options);
    for (const double tail : {0.0, 1e-7, -1e-7}) {
      LinearHeadInputs in = with_topk(whole, options, 101);
      in.tail_N = at::full_like(in.tail_N, tail);
      const HeadResult ours = run_head(in, options);
      EXPECT_LT(relative_error(ours.metrics_MN[kLoss], expected.metrics_MN[kLoss]), 1e-10) << name << tail;
      EXPECT_LT(relative_error(ours.metrics_MN[kTeacherEntropy], expected.metrics_MN[kTeacherEntropy]), 1e-10);
      EXPECT_LT(relative_error(ours.grads.hidden_NH, expected.grads.hidden_NH), 1e-9) << name << tail;
      EXPECT_LT(relative_error(ours.grads.weight_VH, expected.grads.weight_VH), 1e-9) << name << tail;
    }
  }
}

// Joining outcomes loses information, never gains any: the more entries, the closer to the whole divergence from below.
TEST(SparseTeacher, TopKIsALowerBoundThatGrowsWithK) {
  for (const auto& [name, divergence] : soft_divergences()) {
    const LossOptions options{.divergence = divergence, .beta = 0.3};
    const LinearHeadInputs whole = make_problem({.tokens = 40, .targets = false});
    at::Tensor before = at::zeros({40}, whole.hidden_NH.options());
    at::Tensor entropy = before;
    for (const int64_t k : {1, 4, 16, 64, 100, 101}) {
      const at::Tensor metrics = linear_head(with_topk(whole, options, k), options, {}, nullptr).metrics_MN;
      EXPECT_GE((metrics[kSoft] - before).min().item<double>(), -1e-12) << name << ' ' << k;
      EXPECT_GE((metrics[kTeacherEntropy] - entropy).min().item<double>(), -1e-12) << name << ' ' << k;
      before = metrics[kSoft];
      entropy = metrics[kTeacherEntropy];
    }
    const at::Tensor all = linear_head(whole, options, {}, nullptr).metrics_MN;
    EXPECT_LT(relative_error(before, all[kSoft]), 1e-10) << name;
  }
}

// 1 - sum of the entries' probabilities would leave nothing of the student's tail in fp32.
TEST(SparseTeacher, ATinyTailOfTheStudentKeepsItsDigits) {
  for (const Divergence divergence : {Divergence::kForwardKl, Divergence::kReverseKl, Divergence::kJsd}) {
    const LossOptions options{.divergence = divergence};
    LinearHeadInputs in =
        with_topk(make_problem({.ignored = 0, .biases = true, .dtype = at::kFloat}), options, 8, at::kFloat);
    in.hidden_NH = in.hidden_NH.narrow(0, 0, 1).contiguous();
    in.targets_N = in.targets_N.narrow(0, 0, 1);
    in.topk_ids_NK = in.topk_ids_NK.narrow(0, 0, 1);
    in.topk_log_probs_NK = in.topk_log_probs_NK.narrow(0, 0, 1);
    in.tail_N = at::full_like(in.tail_N.narrow(0, 0, 1), 0.1);
    in.bias_V.index_put_({in.topk_ids_NK[0].to(at::kLong)}, at::full({}, 40.0, in.bias_V.options()));
    const HeadResult ours = run_head(in, options);
    const NaiveResult naive = naive_sparse(in, options);
    EXPECT_LT(relative_error(ours.metrics_MN[kSoft], naive.soft_N), 1e-5) << static_cast<int>(divergence);
    const at::Tensor columns =
        at::ones({101}, in.topk_ids_NK.options().dtype(at::kBool))
            .index_put({in.topk_ids_NK[0].to(at::kLong)}, at::zeros({}, in.topk_ids_NK.options().dtype(at::kBool)));
    const at::Tensor tail = ours.grads.bias_V.masked_select(columns);
    EXPECT_LT(relative_error(tail, naive.d_bias_V.masked_select(columns)), 1e-4) << static_cast<int>(divergence);
  }
}

// What rounding left below 0. The student's tail has probability where the teacher has none: reverse KL is infinite.
TEST(SparseTeacher, TailsBelowZeroCountAsNone) {
  for (const Divergence divergence : {Divergence::kForwardKl, Divergence::kJsd, Divergence::kTotalVariation}) {
    const LossOptions options{.divergence = divergence, .hard_weight = 0.3};
    LinearHeadInputs in = with_topk(make_problem({.dtype = at::kFloat}), options, 8, at::kFloat);
    in.tail_N.zero_();
    const HeadResult zero = run_head(in, options);
    const NaiveResult naive = naive_sparse(in, options);
    EXPECT_LT(relative_error(zero.metrics_MN[kLoss], naive.loss_N), 3e-5);
    EXPECT_LT(relative_error(zero.metrics_MN[kForwardKl], naive.forward_kl_N), 3e-5);
    EXPECT_LT(relative_error(zero.grads.weight_VH, naive.d_weight_VH), 3e-5);
    const at::Tensor valid = in.targets_N.ne(kIgnoreIndex);
    EXPECT_TRUE(at::isinf(zero.metrics_MN[kReverseKl]).eq(valid).all().item<bool>());
    in.tail_N.fill_(-3e-8F);
    const HeadResult below = run_head(in, options);
    expect_same(below, zero);
  }
}

TEST(SparseTeacher, EntriesThatAreNotThereCountForNothing) {
  const LossOptions options{.divergence = Divergence::kReverseKl, .hard_weight = 0.3};
  LinearHeadInputs in = with_topk(make_problem({}), options, 8);
  const HeadResult eight = run_head(in, options);
  const at::Tensor hole = at::full({13, 2}, -1, in.topk_ids_NK.options());
  const at::Tensor nan = at::full({13, 2}, NAN, in.topk_log_probs_NK.options());
  in.topk_ids_NK = at::cat({in.topk_ids_NK.narrow(1, 0, 3), hole, in.topk_ids_NK.narrow(1, 3, 5)}, 1);
  in.topk_log_probs_NK = at::cat({in.topk_log_probs_NK.narrow(1, 0, 3), nan, in.topk_log_probs_NK.narrow(1, 3, 5)}, 1);
  const HeadResult ten = run_head(in, options);
  EXPECT_LT(relative_error(ten.metrics_MN, eight.metrics_MN), 1e-12);
  EXPECT_LT(relative_error(ten.grads.weight_VH, eight.grads.weight_VH), 1e-12);

  const LossOptions forward{.divergence = Divergence::kForwardKl};
  LinearHeadInputs drawn = with_samples(make_problem({}), forward, 5);
  drawn.sample_ids_NS.select(1, 2).fill_(-1);
  drawn.sample_weights_NS.select(1, 2).fill_(NAN);
  const HeadResult five = run_head(drawn, forward);
  drawn.sample_ids_NS = drawn.sample_ids_NS.index_select(1, at::tensor({0, 1, 3, 4}).to(test_device()));
  drawn.sample_weights_NS = drawn.sample_weights_NS.index_select(1, at::tensor({0, 1, 3, 4}).to(test_device()));
  const HeadResult four = run_head(drawn, forward);
  EXPECT_LT(relative_error(five.metrics_MN, four.metrics_MN), 1e-12);
  EXPECT_LT(relative_error(five.grads.weight_VH, four.grads.weight_VH), 1e-12);
}

// Equal maxima: the first column is the most probable token, within the entries, the tail or across both.
TEST(SparseTeacher, AgreementBreaksTiesByColumn) {
  for (const auto& [first, second] : {std::pair{2, 5}, std::pair{5, 2}, std::pair{0, 9}, std::pair{9, 0}}) {
    LinearHeadInputs in;
    const auto on = at::TensorOptions(at::kFloat).device(test_device());
    in.hidden_NH = at::ones({1, 1}, on);
    in.weight_VH = at::zeros({10, 1}, on);
    in.weight_VH[first][0] = 3;
    in.weight_VH[second][0] = 3;
    in.targets_N = at::full({1}, std::min(first, second), on.dtype(at::kLong));
    in.tail_N = at::full({1}, 0.2, on);
    const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 1};
    for (const int entries : {1, 2}) {
      const std::vector<int> ids = entries == 1 ? std::vector<int>{first} : std::vector<int>{first, second};
      in.topk_ids_NK = at::tensor(ids, at::TensorOptions(at::kInt)).view({1, entries}).to(test_device());
      in.topk_log_probs_NK = at::full({1, entries}, std::log(0.8 / entries), on);
      in.topk_log_probs_NK[0][0] += 0.1;
      const at::Tensor metrics = linear_head(in, options, {}, nullptr).metrics_MN;
      EXPECT_EQ(metrics[kAgreement][0].item<double>(), first < second ? 1 : 0) << first << second << entries;
      EXPECT_EQ(metrics[kAccuracy][0].item<double>(), 1) << first << second << entries;
    }
  }
}

// The student's most probable token is no entry: it may be the label, and the teacher's it is not.
TEST(SparseTeacher, TheStudentsBestMayLieInTheTail) {
  const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 1};
  LinearHeadInputs in = make_problem({.gap = 0, .ignored = 0});
  const at::Tensor best = at::matmul(in.hidden_NH, in.weight_VH.t()).argmax(1);
  in = with_topk(in, options, 5);
  in.topk_ids_NK = in.topk_ids_NK.narrow(1, 1, 4); // the first is the student's best, too
  in.topk_log_probs_NK = in.topk_log_probs_NK.narrow(1, 1, 4);
  in.targets_N = best.clone();
  in.targets_N[3] = at::remainder(best[3] + 1, 101);
  const at::Tensor metrics = linear_head(in, options, {}, nullptr).metrics_MN;
  EXPECT_EQ(metrics[kAgreement].sum().item<double>(), 0);
  EXPECT_TRUE(at::equal(metrics[kAccuracy], in.targets_N.eq(best).to(at::kDouble)));
}

TEST(SparseTeacher, NanIsNotHidden) {
  const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 1};
  const ProblemSpec spec{.tokens = 4, .ignored = 0, .dtype = at::kFloat};
  const auto expect_nan_in_row_1 = [&](const LinearHeadInputs& in) {
    const HeadResult ours = run_head(in, options);
    EXPECT_TRUE(std::isnan(ours.metrics_MN[kLoss][1].item<double>()));
    EXPECT_TRUE(at::isnan(ours.grads.hidden_NH[1]).all().item<bool>());
    EXPECT_TRUE(std::isfinite(ours.metrics_MN[kLoss][0].item<double>()));
    EXPECT_TRUE(at::isfinite(ours.grads.hidden_NH[0]).all().item<bool>());
  };
  for (const bool topk : {true, false}) {
    const LinearHeadInputs good =
        topk ? with_topk(make_problem(spec), options, 9) : with_samples(make_problem(spec), options, 9);
    LinearHeadInputs in = good;
    in.hidden_NH = good.hidden_NH.clone();
    in.hidden_NH[1][0] = NAN;
    expect_nan_in_row_1(in);
    in = good;
    at::Tensor& values = topk ? in.topk_log_probs_NK : in.sample_weights_NS;
    values = values.clone();
    values[1][3] = NAN;
    expect_nan_in_row_1(in);
    values[1].fill_(NAN);
    expect_nan_in_row_1(in);
    if (topk) {
      in = good;
      in.tail_N = in.tail_N.clone();
      in.tail_N[1] = NAN;
      expect_nan_in_row_1(in);
    }
  }
}

// Rows of ignored tokens are never read: a cache has none for them.
TEST(SparseTeacher, IgnoredRowsMayHoldAnything) {
  const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 1};
  for (const bool known : {false, true}) {
    for (const bool topk : {true, false}) {
      LinearHeadInputs in = topk ? with_topk(make_problem({}), options, 9) : with_samples(make_problem({}), options, 9);
      set_known(in, known);
      const HeadResult good = run_head(in, options);
      const at::Tensor ignored = in.targets_N.eq(kIgnoreIndex).unsqueeze(1);
      at::Tensor& ids = topk ? in.topk_ids_NK : in.sample_ids_NS;
      at::Tensor& values = topk ? in.topk_log_probs_NK : in.sample_weights_NS;
      ids = ids.masked_fill(ignored, 1 << 30);
      values = values.masked_fill(ignored, NAN);
      const HeadResult bad = run_head(in, options);
      expect_same(bad, good);
      EXPECT_EQ(bad.metrics_MN.masked_select(ignored.squeeze(1)).abs().max().item<double>(), 0);
    }
  }
}

TEST(SparseTeacher, IdsThatCannotBeAreErrors) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "the kernel ends there, which ends the process's use of the device";
  }
  const LossOptions options{.divergence = Divergence::kForwardKl};
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const int64_t id : {101, -2}) {
      LinearHeadInputs in = with_topk(make_problem({.targets = false, .dtype = dtype}), options, 9);
      in.topk_ids_NK[3][2] = id;
      EXPECT_THROW(run_head(in, options), c10::Error);
      LinearHeadInputs drawn = with_samples(make_problem({.targets = false, .dtype = dtype}), options, 9);
      drawn.sample_ids_NS[3][2] = id;
      EXPECT_THROW(run_head(drawn, options), c10::Error);
    }
    LinearHeadInputs twice = with_topk(make_problem({.targets = false, .dtype = dtype}), options, 9);
    EXPECT_NO_THROW(run_head(twice, options));
    twice.topk_ids_NK[3][2] = twice.topk_ids_NK[3][7];
    EXPECT_THROW(run_head(twice, options), c10::Error);
    EXPECT_THROW(
        run_head(twice, {.divergence = Divergence::kForwardKl, .logits_dtype = LogitsDtype::kBFloat16}), c10::Error);
  }
}

TEST(SparseTeacher, LogitsMayBeBf16) {
  for (const bool topk : {true, false}) {
    const LossOptions rounded{.divergence = Divergence::kForwardKl, .logits_dtype = LogitsDtype::kBFloat16};
    const LinearHeadInputs whole = make_problem({.biases = true, .dtype = at::kBFloat16});
    const LinearHeadInputs in = topk ? with_topk(whole, rounded, 9) : with_samples(whole, rounded, 9);
    const HeadResult ours = run_head(in, rounded);
    const NaiveResult naive = naive_sparse(in, rounded);
    EXPECT_LT(relative_error(ours.metrics_MN[kSoft], naive.soft_N), 2e-2);
    EXPECT_LT(relative_error(ours.grads.weight_VH, naive.d_weight_VH), 5e-2);
    EXPECT_FALSE(at::equal(ours.metrics_MN, run_head(in, {.divergence = Divergence::kForwardKl}).metrics_MN));
  }
}

// The same to the last bit in every run, and whatever the chunk where the products are the same.
TEST(SparseTeacher, RunsAreDeterministic) {
  const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 1};
  for (const bool topk : {true, false}) {
    const LinearHeadInputs whole = make_problem({.tokens = 64, .vocab = 3001, .dtype = at::kBFloat16});
    const LinearHeadInputs in =
        topk ? with_topk(whole, options, 128, at::kBFloat16) : with_samples(whole, options, 256, 1, at::kFloat);
    const HeadResult a = run_head(in, options, {.chunk_size = 16});
    const HeadResult b = run_head(in, options, {.chunk_size = 16});
    expect_same(a, b);
    const HeadResult other = run_head(in, options, {.chunk_size = 5});
    EXPECT_LT(relative_error(other.metrics_MN, a.metrics_MN), 1e-5);
    EXPECT_LT(relative_error(other.grads.hidden_NH, a.grads.hidden_NH), 4e-3);
  }
}

// The mean gradient over independent draws against the exact one: within what the spread of the draws allows.
TEST(SparseTeacher, SamplesGiveAnUnbiasedGradientAndLoss) {
  const LossOptions options{.divergence = Divergence::kForwardKl};
  const LinearHeadInputs whole = make_problem({.tokens = 4, .targets = false});
  const HeadResult exact = run_head(whole, options);
  const at::Tensor entropy = exact.metrics_MN[kTeacherEntropy];
  for (const double exponent : {1.0, 0.5}) {
    constexpr int kDraws = 600;
    std::vector<at::Tensor> gradients;
    std::vector<at::Tensor> losses;
    for (int i = 0; i < kDraws; ++i) {
      const LinearHeadInputs in = with_samples(whole, options, 6, exponent, at::kDouble, static_cast<uint64_t>(i) + 1);
      const HeadResult ours = run_head(in, options);
      gradients.push_back(ours.grads.hidden_NH);
      losses.push_back(ours.metrics_MN[kSoft] - entropy);
    }
    const auto expect_mean = [&](const std::vector<at::Tensor>& draws, const at::Tensor& expected) {
      const at::Tensor all = at::stack(draws);
      const double error = (all.mean(0) - expected).norm().item<double>();
      const double standard_error = (all.var(0).sum() / kDraws).sqrt().item<double>();
      EXPECT_LT(error, 2 * standard_error) << exponent;
      EXPECT_LT(standard_error, 0.2 * expected.norm().item<double>()) << "too few draws to tell";
    };
    expect_mean(gradients, exact.grads.hidden_NH);
    expect_mean(losses, exact.metrics_MN[kForwardKl]);
  }
}

TEST(SparseTeacher, InfiniteLossesAreInfiniteNotNan) {
  LinearHeadInputs in;
  const auto on = at::TensorOptions(at::kFloat).device(test_device());
  in.hidden_NH = at::ones({1, 1}, on);
  in.weight_VH = at::zeros({10, 1}, on);
  in.bias_V = at::zeros({10}, on);
  in.bias_V[4] = -INFINITY; // the student rules out an entry of the teacher
  in.sample_ids_NS = at::tensor({4, 5}, at::TensorOptions(at::kInt)).view({1, 2}).to(test_device());
  in.sample_weights_NS = at::full({1, 2}, 0.5, on);
  const LossOptions options{.divergence = Divergence::kForwardKl};
  EXPECT_TRUE(std::isinf(run_head(in, options).metrics_MN[kLoss][0].item<double>()));
  in.topk_ids_NK = in.sample_ids_NS;
  in.topk_log_probs_NK = at::full({1, 2}, std::log(0.4), on);
  in.tail_N = at::full({1}, 0.2, on);
  in.sample_ids_NS = in.sample_weights_NS = at::Tensor();
  const HeadResult topk = run_head(in, options);
  EXPECT_TRUE(std::isinf(topk.metrics_MN[kLoss][0].item<double>()));
  EXPECT_FALSE(at::isnan(topk.grads.bias_V).any().item<bool>());
  EXPECT_TRUE(std::isfinite(run_head(in, {}).metrics_MN[kLoss][0].item<double>())) << "JSD is bounded";
}

} // namespace
} // namespace distill::losses::testing
