// The cluster row kernel on a CPU, and the backward kernel after it, against the reference rows: geometries, modes,
// alignments, ignored rows.
#include <gtest/gtest.h>

#include "losses/rows/cuda/cluster/choose_mode.h"
#include "tests/losses/emulation/kernel_checks.h"
#include "tests/losses/emulation/rows.h"

namespace distill::losses::testing {
namespace {

constexpr int64_t kNineTiles = 35003;
constexpr int64_t kTenTiles = 38003;
constexpr int64_t kElevenTiles = 44003; // runs as 13
constexpr int64_t kThirteenTiles = 53001;

// With all metrics, and with the loss alone where that has kernels of its own.
void expect_cluster_matches(const RowSpec& spec, const LossOptions& options, double tolerance) {
  const auto nothing = [](const at::Tensor& /*student*/, const at::Tensor& /*teacher*/) {};
  expect_changed_matches(cluster_kernel(), spec, options, tolerance, nothing);
  const LossOptions alone = loss_alone(options);
  if (cluster_mode(make_rows(spec, alone).args) != cluster_mode(make_rows(spec, options).args)) {
    expect_changed_matches(cluster_kernel(), spec, alone, tolerance, nothing);
  }
}

// Rows at multiples of 16 bytes, at multiples of 2 columns, and, for an odd vocabulary, at any column.
std::vector<int64_t> paddings(int64_t vocab) {
  return {(vocab + 63) / 64 * 64 - vocab, vocab % 2 == 0 ? 2 : 1, 0};
}

class EmulatedCluster : public ::testing::TestWithParam<Call> {};

TEST_P(EmulatedCluster, MatchesTheReference) {
  const auto& [name, options, teacher] = GetParam();
  for (const int64_t vocab : {kFiveTiles, kNineTiles}) {
    for (const int64_t padding : paddings(vocab)) {
      const RowSpec spec{.vocab = vocab, .padding = padding, .teacher = teacher};
      expect_cluster_matches(spec, options, 2e-5);
      if (vocab == kFiveTiles) {
        RowSpec in_place = spec;
        in_place.in_place = true;
        expect_cluster_matches(in_place, options, 2e-5);
        RowSpec metrics = spec;
        metrics.no_gradient = true;
        expect_cluster_matches(metrics, options, 2e-5);
      }
      RowSpec bf16 = spec;
      bf16.logits = bf16.gradient = at::kBFloat16;
      if (has_cluster_kernel(make_rows(bf16, options).args)) {
        expect_cluster_matches(bf16, options, 1e-4);
        if (vocab == kFiveTiles) {
          bf16.in_place = true;
          expect_cluster_matches(bf16, options, 1e-4);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, EmulatedCluster,
    ::testing::Values(
        Call{"jsd", {.beta = 0.3, .hard_weight = 0.5}},
        Call{"jsd_hot", {.beta = 0.3, .temperature = 2, .hard_weight = 0.5}},
        Call{
            "jsd_cold",
            {.beta = 0.3,
             .temperature = 0.7,
             .scale_by_temperature_squared = true,
             .hard_weight = 0.5,
             .z_loss = 1e-3}},
        Call{"forward_kl", {.divergence = Divergence::kForwardKl, .hard_weight = 0.5}},
        Call{"forward_kl_hot", {.divergence = Divergence::kForwardKl, .temperature = 3, .hard_weight = 0.5}},
        Call{"skew_forward_kl", {.divergence = Divergence::kSkewForwardKl, .hard_weight = 0.5}},
        Call{"skew_reverse_kl", {.divergence = Divergence::kSkewReverseKl, .hard_weight = 0.5}},
        Call{"total_variation", {.divergence = Divergence::kTotalVariation, .hard_weight = 0.5}},
        Call{"labels", {.divergence = Divergence::kNone, .hard_weight = 1}, false},
        Call{"labels_hot", {.divergence = Divergence::kNone, .temperature = 2, .hard_weight = 1}, false},
        Call{"jsd_capped", {.beta = 0.3, .hard_weight = 0.5, .student_softcap = 6, .teacher_softcap = 5}},
        Call{
            "jsd_capped_hot",
            {.beta = 0.3, .temperature = 2, .hard_weight = 0.5, .student_softcap = 6, .teacher_softcap = 5}},
        Call{
            "forward_kl_capped_cold",
            {.divergence = Divergence::kForwardKl, .temperature = 0.7, .hard_weight = 0.5, .student_softcap = 6}},
        Call{
            "labels_capped_hot",
            {.divergence = Divergence::kNone, .temperature = 2, .hard_weight = 1, .student_softcap = 6},
            false}),
    [](const auto& call) { return call.param.name; });

// Slices that leave little room or none to copy ahead, or end within a tile that most warps have no part of.
TEST(EmulatedCluster, LongSlicesMatchTheReference) {
  for (const int64_t vocab : {kNineTiles - 2000, kTenTiles, kElevenTiles, kThirteenTiles}) {
    for (const Divergence divergence : {Divergence::kJsd, Divergence::kForwardKl, Divergence::kNone}) {
      const LossOptions options{.divergence = divergence, .hard_weight = 0.5};
      const bool teacher = divergence != Divergence::kNone;
      expect_cluster_matches({.vocab = vocab, .padding = 0, .teacher = teacher}, options, 2e-5);
      if (vocab == kThirteenTiles) {
        expect_cluster_matches(
            {.vocab = vocab, .padding = 7, .logits = at::kBFloat16, .gradient = at::kBFloat16, .teacher = teacher},
            options, 1e-4);
      }
    }
  }
}

// p is computed from q unless fp32 cannot hold q.
TEST(EmulatedCluster, LogitsHundredsApart) {
  for (const int64_t vocab : {kFiveTiles, kNineTiles}) {
    for (const double beta : {0.5, 0.9}) {
      expect_cluster_matches({.vocab = vocab, .padding = 5, .scale = 16}, {.beta = beta, .hard_weight = 0.5}, 1e-4);
    }
  }
}

TEST(EmulatedCluster, GeneralCallsMatchTheReference) {
  const LossOptions options{
      .temperature = 2, .hard_weight = 0.5, .label_smoothing = 0.1, .z_loss = 1e-3, .student_softcap = 6};
  for (const int64_t padding : paddings(kFiveTiles)) {
    expect_cluster_matches({.vocab = kFiveTiles, .padding = padding, .biases = true}, options, 2e-5);
  }
}

TEST(EmulatedCluster, BiasesThatExcludeColumnsMatchTheReference) {
  for (const LossOptions& options :
       {LossOptions{.hard_weight = 0.5, .student_softcap = 6, .teacher_softcap = 5},
        LossOptions{.temperature = 2, .hard_weight = 0.5, .student_softcap = 6},
        LossOptions{.temperature = 0.7, .teacher_softcap = 5}}) {
    for (const at::ScalarType bias : {at::kFloat, at::kBFloat16}) {
      const RowSpec spec{.vocab = kFiveTiles, .padding = 5, .gradient = bias, .biases = true, .excludes = true};
      expect_cluster_matches(spec, options, 2e-5);
    }
  }
}

TEST(EmulatedCluster, SidesOfDifferentAlignment) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const RowSpec spec{.rows = 5, .vocab = kFiveTiles, .padding = 21, .logits = type, .gradient = type};
    const LossOptions options{.hard_weight = 0.5};
    Rows ours = make_rows(spec, options);
    const at::Tensor moved = move_teacher(spec, ours);
    ASSERT_NO_THROW(emulate_cluster_rows(ours.args, kClusterSize));
    expect_equal_rows(spec, ours, reference_of(spec, options), type == at::kFloat ? 2e-5 : 1e-4);
  }
}

class EmulatedBackward : public ::testing::TestWithParam<Call> {};

// From the numbers that the forward pass has saved.
TEST_P(EmulatedBackward, MatchesTheReference) {
  const auto& [name, options, teacher] = GetParam();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t padding : paddings(kFiveTiles)) {
      for (const bool in_place : {false, true}) { // in place all rows begin equally far from a multiple of 16 bytes
        const RowSpec spec{
            .rows = kRows,
            .vocab = kFiveTiles,
            .padding = padding,
            .logits = type,
            .gradient = type,
            .teacher = teacher,
            .in_place = in_place};
        Rows ours = make_rows(spec, options);
        if (cluster_mode(ours.args) == cluster::Mode::kGeneral) {
          continue; // the forward pass is not compiled for it here
        }
        SCOPED_TRACE(::testing::Message() << c10::toString(type) << " padding " << padding << " in place " << in_place);
        const at::Tensor saved =
            at::full({kNumSavedValues, ours.args.metrics_stride}, NAN, at::TensorOptions(at::kFloat));
        ours.args.saved = saved.data_ptr();
        RowArgs forward = ours.args;
        forward.gradient = nullptr;
        ASSERT_NO_THROW(emulate_cluster_rows(forward, kClusterSize));
        ASSERT_NO_THROW(emulate_logits_backward(ours.args));
        expect_equal_rows(spec, ours, reference_of(spec, options), type == at::kFloat ? 2e-5 : 1e-4);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, EmulatedBackward,
    ::testing::Values(
        Call{"jsd", {.beta = 0.3, .hard_weight = 0.5}},
        Call{"jsd_hot", {.beta = 0.3, .temperature = 2, .hard_weight = 0.5}},
        Call{"jsd_capped", {.beta = 0.3, .hard_weight = 0.5, .student_softcap = 6, .teacher_softcap = 5}},
        Call{"skew_forward_kl", {.divergence = Divergence::kSkewForwardKl, .hard_weight = 0.5}},
        Call{"labels", {.divergence = Divergence::kNone, .hard_weight = 1, .z_loss = 1e-3}, false},
        Call{"jsd_alone", {.beta = 0.3, .hard_weight = 0.5, .metrics = MetricSet::kLoss}},
        Call{
            "jsd_capped_alone",
            {.beta = 0.3, .hard_weight = 0.5, .student_softcap = 6, .teacher_softcap = 5, .metrics = MetricSet::kLoss}},
        Call{
            "labels_alone",
            {.divergence = Divergence::kNone, .hard_weight = 1, .z_loss = 1e-3, .metrics = MetricSet::kLoss},
            false}),
    [](const auto& call) { return call.param.name; });

} // namespace
} // namespace distill::losses::testing
