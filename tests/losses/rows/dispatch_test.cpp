// The row kernels against the reference rows, on every launch that this device has.
#include <gtest/gtest.h>

#include "losses/rows/cuda/cluster/choose_mode.h"
#include "losses/rows/cuda/cluster/choose_size.h"
#include "losses/rows/dispatch.h"
#include "tests/losses/cases.h"
#include "tests/losses/device.h"
#include "tests/losses/rows/row_cases.h"

namespace distill::losses::testing {
namespace {

// Every kernel, and every size of cluster that holds the row.
std::vector<RowLaunch> launches(const RowSpec& spec, const LossOptions& options) {
  if (test_device().is_cpu()) {
    return {{}};
  }
  // Streaming: as chosen; with several blocks to a row; and with so little shared memory that a row does not fit.
  constexpr RowStrategy kStreaming = RowStrategy::kStreaming;
  std::vector<RowLaunch> all{
      {},
      {.strategy = kStreaming},
      {.strategy = kStreaming, .cluster_size = 3},
      {.strategy = kStreaming, .cluster_size = 1, .shared_bytes = 36 << 10},
      {.strategy = kStreaming, .cluster_size = 2, .shared_bytes = 68 << 10}};
  const RowArgs args = make_rows(spec, options).args;
  if (!has_cluster_kernel(args)) {
    return all;
  }
  const int most = cluster::most_tiles(cluster_mode(args));
  for (const int size : {2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    if (cluster_plan(spec.vocab, size).tiles <= most) {
      all.push_back({.strategy = RowStrategy::kCluster, .cluster_size = size});
    }
  }
  return all;
}

void expect_each_matches(
    const RowSpec& spec, const LossOptions& options, double tolerance, const std::vector<RowLaunch>& launches) {
  const Rows expected = reference_of(spec, options);
  for (const RowLaunch& launch : launches) {
    SCOPED_TRACE(
        ::testing::Message() << "V " << spec.vocab << " metrics " << static_cast<int>(options.metrics) << " strategy "
                             << static_cast<int>(launch.strategy) << " cluster " << launch.cluster_size << " shared "
                             << launch.shared_bytes);
    Rows ours = make_rows(spec, options);
    run_rows(ours.args, test_device(), launch);
    expect_equal_rows(spec, ours, expected, tolerance);
  }
}

// With all metrics, and with the loss alone: by every launch where that has kernels of its own. With bf16 logits only
// the streaming kernel has.
void expect_matches_reference(const RowSpec& spec, const LossOptions& options, double tolerance) {
  const std::vector<RowLaunch> all = launches(spec, options);
  expect_each_matches(spec, options, tolerance, all);
  const LossOptions alone = loss_alone(options);
  const bool own_kernels = spec.logits == at::kBFloat16 ||
      cluster_mode(make_rows(spec, alone).args) != cluster_mode(make_rows(spec, options).args);
  expect_each_matches(spec, alone, tolerance, own_kernels ? all : std::vector<RowLaunch>{{}});
}

struct Options {
  std::string name;
  LossOptions options;
};

void PrintTo(const Options& o, std::ostream* out) {
  *out << o.name;
}

std::vector<Options> all_options() {
  std::vector<Options> all;
  std::vector<std::pair<std::string, Divergence>> divergences = soft_divergences();
  divergences.emplace_back("none", Divergence::kNone);
  for (const auto& [name, divergence] : divergences) {
    all.push_back({name, {.divergence = divergence, .beta = 0.3, .hard_weight = 0.5}});
    all.push_back({name + "_soft", {.divergence = divergence, .beta = 0.3}});
    all.push_back(
        {name + "_capped", {.divergence = divergence, .hard_weight = 0.5, .student_softcap = 6, .teacher_softcap = 5}});
    all.push_back({name + "_teacher_capped", {.divergence = divergence, .hard_weight = 0.5, .teacher_softcap = 5}});
    all.push_back(
        {name + "_smooth_z", {.divergence = divergence, .hard_weight = 0.5, .label_smoothing = 0.1, .z_loss = 1e-3}});
    all.push_back(
        {name + "_cold_student_capped",
         {.divergence = divergence, .temperature = 0.7, .hard_weight = 0.5, .student_softcap = 6}});
    all.push_back(
        {name + "_hot_capped",
         {.divergence = divergence,
          .temperature = 2,
          .scale_by_temperature_squared = true,
          .hard_weight = 0.5,
          .label_smoothing = 0.1,
          .z_loss = 1e-3,
          .student_softcap = 6,
          .teacher_softcap = 5}});
  }
  return all;
}

class RowKernels : public ::testing::TestWithParam<Options> {};

TEST_P(RowKernels, MatchTheReference) {
  const LossOptions& options = GetParam().options;
  expect_matches_reference({}, options, 1e-5);
  expect_matches_reference({.logits = at::kDouble, .gradient = at::kDouble}, options, 1e-11);
  expect_matches_reference({.logits = at::kBFloat16, .gradient = at::kBFloat16}, options, 1e-4);
  expect_matches_reference({.gradient = at::kBFloat16, .biases = true}, options, 1e-5);
  if (options.label_smoothing == 0) { // which has a part in every column
    for (const at::ScalarType bias : {at::kFloat, at::kBFloat16}) {
      expect_matches_reference({.gradient = bias, .biases = true, .excludes = true}, options, 1e-5);
    }
  }
  expect_matches_reference({.in_place = true}, options, 1e-5);
  expect_matches_reference({.no_gradient = true}, options, 1e-5);
  expect_matches_reference({.rows = 3, .vocab = 16389, .padding = 11, .weights = false}, options, 2e-5);
}

TEST_P(RowKernels, WithoutATeacherOrTargets) {
  LossOptions options = GetParam().options;
  expect_matches_reference({.teacher = false, .weights = false}, options, 1e-5);
  options.hard_weight = 0;
  expect_matches_reference({.targets = false, .weights = false}, options, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Options, RowKernels, ::testing::ValuesIn(all_options()), [](const auto& c) {
  return c.param.name;
});

TEST(RowKernelShapes, AnyWidthAndAlignment) {
  for (const int64_t vocab : {1, 2, 3, 4, 5, 15, 16, 17, 255, 2047, 2048, 2049, 4100, 32000, 50257}) {
    for (const int64_t padding : {0, 1, 7}) {
      expect_matches_reference({.vocab = vocab, .padding = padding}, {.hard_weight = 0.5}, 2e-5);
    }
    const int64_t to_aligned = (vocab + 63) / 64 * 64 - vocab;
    expect_matches_reference({.vocab = vocab, .padding = to_aligned}, {.hard_weight = 0.5}, 2e-5);
    expect_matches_reference(
        {.vocab = vocab, .padding = to_aligned, .gradient = at::kBFloat16, .teacher = false}, {.hard_weight = 0.5},
        2e-5);
  }
}

TEST(RowKernelShapes, WideVocabularies) {
  for (const int64_t vocab : {128256, 151665, 151936, 200064, 256000, 262143, 262208, 299009, 327680, 327744, 425984}) {
    if (test_device().is_cpu() && vocab != 151665) {
      continue; // the CPU kernel has one path for all widths
    }
    const int64_t padding = (vocab + 63) / 64 * 64 - vocab;
    expect_matches_reference(
        {.vocab = vocab, .padding = padding, .gradient = at::kBFloat16}, {.hard_weight = 0.5}, 5e-5);
    expect_matches_reference({.vocab = vocab, .padding = padding, .teacher = false}, {.hard_weight = 0.5}, 5e-5);
    expect_matches_reference(
        {.vocab = vocab, .padding = padding, .gradient = at::kBFloat16},
        {.hard_weight = 0.5, .student_softcap = 30, .teacher_softcap = 30}, 5e-5);
    expect_matches_reference(
        {.vocab = vocab, .padding = padding, .logits = at::kBFloat16, .gradient = at::kBFloat16}, {.hard_weight = 0.5},
        1e-4);
  }
}

// Where the student gives a token a probability that fp32 cannot hold, and the teacher does not.
TEST(RowKernelShapes, LogitsHundredsApart) {
  for (const int64_t vocab : {20000, 151665}) {
    if (test_device().is_cpu() && vocab == 151665) {
      continue;
    }
    for (const double beta : {0.5, 0.9}) {
      expect_matches_reference({.vocab = vocab, .padding = 15, .scale = 16}, {.beta = beta, .hard_weight = 0.5}, 5e-5);
    }
  }
}

// What corrects the normalisers' rounding errors must not itself be fused into other operations, as only a compiler for
// GPUs does.
TEST(RowKernelShapes, LogitsFarFromZero) {
  for (const Divergence divergence :
       {Divergence::kJsd, Divergence::kForwardKl, Divergence::kReverseKl, Divergence::kNone}) {
    for (const MetricSet metrics : {MetricSet::kAll, MetricSet::kLoss}) {
      const LossOptions options{.divergence = divergence, .hard_weight = 0.5, .metrics = metrics};
      const RowSpec spec{.vocab = 9003, .padding = 5, .teacher = divergence != Divergence::kNone};
      for (const RowLaunch& launch : launches(spec, options)) {
        const auto [ours, expected] = rows_far_from_zero(spec, options);
        run_rows(ours.args, test_device(), launch);
        SCOPED_TRACE(
            ::testing::Message() << "divergence " << static_cast<int>(divergence) << " metrics "
                                 << static_cast<int>(metrics) << " strategy " << static_cast<int>(launch.strategy)
                                 << " cluster " << launch.cluster_size);
        expect_equal_rows(spec, ours, expected, 2e-5);
      }
    }
  }
}

// Clusters that take one row after the other, so that copies, workers and reducer are at work on several rows at once.
TEST(RowKernelShapes, ManyRowsToACluster) {
  const RowLaunch launch =
      test_device().is_cpu() ? RowLaunch{} : RowLaunch{.strategy = RowStrategy::kCluster, .cluster_size = kMaxCluster};
  for (const int64_t vocab : {40000, 262208, 400000}) { // slices of 2, 9 and 13 tiles
    if (test_device().is_cpu() && vocab != 40000) {
      continue;
    }
    for (const Divergence divergence : {Divergence::kJsd, Divergence::kNone}) {
      SCOPED_TRACE(::testing::Message() << "V " << vocab << " divergence " << static_cast<int>(divergence));
      const LossOptions options{.divergence = divergence, .hard_weight = 0.5};
      const RowSpec spec{
          .rows = 40,
          .vocab = vocab,
          .padding = 0,
          .gradient = at::kBFloat16,
          .teacher = divergence != Divergence::kNone};
      expect_each_matches(spec, options, 2e-5, {launch});
      expect_each_matches(spec, loss_alone(options), 2e-5, {launch});
    }
  }
}

// Rows without padding, which begin at any multiple of their elements' size, as a caller's own logits do.
TEST(RowKernelShapes, WideVocabulariesWithoutPadding) {
  const LossOptions capped{.hard_weight = 0.5, .student_softcap = 30, .teacher_softcap = 30};
  for (const int64_t vocab : {50257, 50258, 151665, 262143, 327681, 400001}) {
    if (test_device().is_cpu() && vocab > 50258) {
      continue; // the CPU kernel has one path for all widths
    }
    expect_matches_reference({.vocab = vocab, .padding = 0, .in_place = true}, {.hard_weight = 0.5}, 5e-5);
    expect_matches_reference({.vocab = vocab, .padding = 0, .in_place = true}, capped, 5e-5);
    expect_matches_reference({.vocab = vocab, .padding = 0, .teacher = false}, {.hard_weight = 0.5}, 5e-5);
    expect_matches_reference(
        {.vocab = vocab, .padding = 0, .logits = at::kBFloat16, .gradient = at::kBFloat16, .in_place = true},
        {.hard_weight = 0.5}, 1e-4);
    expect_matches_reference(
        {.vocab = vocab, .padding = 0, .logits = at::kBFloat16, .gradient = at::kFloat, .teacher = false},
        {.hard_weight = 0.5, .label_smoothing = 0.1}, 1e-4);
  }
}

TEST(RowKernelShapes, ManyRows) {
  expect_matches_reference({.rows = 1000, .vocab = 320, .padding = 0}, {.hard_weight = 0.5}, 2e-5);
  expect_matches_reference(
      {.rows = test_device().is_cpu() ? 20 : 700, .vocab = 16640, .padding = 0}, {.hard_weight = 0.5}, 2e-5);
}

TEST(RowKernels, NoRowsDoNothing) {
  Rows r = make_rows({.rows = 1}, {});
  r.args.num_rows = 0;
  run_rows(r.args, test_device());
  EXPECT_TRUE(at::isnan(r.metrics).all().item<bool>());
}

TEST(RowKernels, AreDeterministic) {
  const RowSpec spec{.rows = 33, .vocab = 32000, .padding = 0, .gradient = at::kBFloat16};
  const LossOptions all{.hard_weight = 0.5};
  for (const LossOptions& options : {all, loss_alone(all)}) {
    for (const RowLaunch& launch : launches(spec, options)) {
      Rows a = make_rows(spec, options);
      Rows b = make_rows(spec, options);
      run_rows(a.args, test_device(), launch);
      run_rows(b.args, test_device(), launch);
      EXPECT_TRUE(at::equal(a.gradient, b.gradient));
      EXPECT_TRUE(at::equal(a.metrics.narrow(1, 0, 33), b.metrics.narrow(1, 0, 33)));
    }
  }
}

} // namespace
} // namespace distill::losses::testing
