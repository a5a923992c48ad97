// The CUDA row kernels on a CPU against the reference rows: geometries, modes, alignments, ignored rows.
#include "tests/losses/emulation/rows.h"

#include <functional>

#include <gtest/gtest.h>

#include "losses/rows/cuda/cluster/choose_mode.h"
#include "tests/losses/cases.h"
#include "tests/losses/naive.h"
#include "tests/losses/reference.h"
#include "tests/losses/rows/row_cases.h"

namespace distill::losses::testing {
namespace {

// Five rows of which one is ignored and one has no weight; two blocks to a row.
constexpr int kClusterSize = 2;
constexpr int64_t kRows = 5;
constexpr int64_t kFiveTiles = 9003; // columns: a slice of two tiles and a rest, which runs as five
constexpr int64_t kNineTiles = 35003;
constexpr int64_t kTenTiles = 38003;
constexpr int64_t kElevenTiles = 44003; // runs as 13
constexpr int64_t kThirteenTiles = 53001;

// `change`: of both sides' logits.
void expect_changed_cluster_matches(
    RowSpec spec, const LossOptions& options, double tolerance,
    const std::function<void(at::Tensor student, at::Tensor teacher)>& change) {
  spec.rows = kRows;
  SCOPED_TRACE(
      ::testing::Message() << "V " << spec.vocab << " padding " << spec.padding << " T " << options.temperature
                           << " metrics " << static_cast<int>(options.metrics));
  Rows ours = make_rows(spec, options);
  Rows expected = make_rows(spec, options);
  for (const Rows& rows : {ours, expected}) {
    change(rows.owned[0], spec.teacher ? rows.owned[1] : at::Tensor());
  }
  reference_rows(expected.args, at::kCPU);
  ASSERT_NO_THROW(emulate_cluster_rows(ours.args, kClusterSize));
  expect_equal_rows(spec, ours, expected, tolerance);
}

// With all metrics, and with the loss alone where that has kernels of its own.
void expect_cluster_matches(const RowSpec& spec, const LossOptions& options, double tolerance) {
  const auto nothing = [](const at::Tensor& /*student*/, const at::Tensor& /*teacher*/) {};
  expect_changed_cluster_matches(spec, options, tolerance, nothing);
  const LossOptions alone = loss_alone(options);
  if (cluster_mode(make_rows(spec, alone).args) != cluster_mode(make_rows(spec, options).args)) {
    expect_changed_cluster_matches(spec, alone, tolerance, nothing);
  }
}

// Rows at multiples of 16 bytes, at multiples of 2 columns, and, for an odd vocabulary, at any column.
std::vector<int64_t> paddings(int64_t vocab) {
  return {(vocab + 63) / 64 * 64 - vocab, vocab % 2 == 0 ? 2 : 1, 0};
}

struct Call {
  std::string name;
  LossOptions options;
  bool teacher = true;
};

void PrintTo(const Call& call, std::ostream* out) {
  *out << call.name;
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

// The first tile's maxima, to which the kept exponentials are relative, far below those of the row and far above most
// columns; with scale 60 the exponentials overflow, and the row is kept again. Log-probabilities are of hundreds, which
// have 3e-5 as their unit in the last place.
TEST(EmulatedCluster, TheLossAloneWhereExponentialsDoNotFit) {
  for (const double scale : {16, 60}) {
    for (const Divergence divergence :
         {Divergence::kJsd, Divergence::kForwardKl, Divergence::kReverseKl, Divergence::kNone}) {
      for (const double softcap : {0, 200}) {
        const LossOptions options{
            .divergence = divergence, .hard_weight = 0.5, .student_softcap = softcap, .teacher_softcap = softcap};
        const bool with_teacher = divergence != Divergence::kNone;
        const RowSpec spec{.vocab = kFiveTiles, .padding = 5, .teacher = with_teacher, .scale = scale};
        expect_changed_cluster_matches(spec, loss_alone(options), 5e-4, [](const auto&, const auto&) {});
        // One column decides the row, in another warp than most columns.
        expect_changed_cluster_matches(
            spec, loss_alone(options), 5e-4, [&](const at::Tensor& student, const at::Tensor& teacher) {
              student.select(1, 700) += 300;
              if (with_teacher) {
                teacher.select(1, 4000) += 200;
              }
            });
      }
    }
  }
}

// Columns that one side or both rule out, among them whole tiles of a warp. (Some of the other metrics are infinite.)
TEST(EmulatedCluster, TheLossAloneWithInfiniteLogits) {
  for (const Divergence divergence : {Divergence::kJsd, Divergence::kForwardKl, Divergence::kNone}) {
    const RowSpec spec{.vocab = kFiveTiles, .padding = 5, .teacher = divergence != Divergence::kNone, .targets = false};
    expect_changed_cluster_matches(
        spec, loss_alone({.divergence = divergence}), 2e-5, [&](const at::Tensor& student, const at::Tensor& teacher) {
          student.narrow(1, 100, 300).fill_(-INFINITY);
          if (divergence != Divergence::kNone) {
            teacher.narrow(1, 50, 4000).fill_(-INFINITY);
          }
          if (divergence == Divergence::kJsd) { // infinite where the divergence is forward KL
            student.narrow(1, 5000, 7).fill_(-INFINITY);
          }
        });
  }
}

// All columns that a warp has of the student, and threads of it that have none: 4499 columns of the second block are
// two tiles and a part of the third.
TEST(EmulatedCluster, TheLossAloneWhereTheStudentRulesOutAWarp) {
  for (const float least : {-INFINITY, -1e9F, -1e4F}) {
    const RowSpec spec{.vocab = 9003, .padding = 5, .targets = false};
    expect_changed_cluster_matches(spec, loss_alone({}), 2e-5, [&](const at::Tensor& student, const at::Tensor&) {
      student.narrow(1, 4504, 4499).fill_(least);
    });
  }
}

// A softcap of a teacher that there is not, and a column that is ruled out.
TEST(EmulatedCluster, AnInfiniteLogitWithoutASoftcapOfItsOwn) {
  const LossOptions options{.divergence = Divergence::kNone, .hard_weight = 1, .teacher_softcap = 5};
  const RowSpec spec{.vocab = kFiveTiles, .padding = 5, .teacher = false, .targets = false};
  for (const LossOptions& o : {options, loss_alone(options)}) {
    expect_changed_cluster_matches(spec, o, 2e-5, [](const at::Tensor& student, const at::Tensor&) {
      student.narrow(1, 100, 300).fill_(-INFINITY);
    });
  }
}

TEST(EmulatedCluster, GeneralCallsMatchTheReference) {
  const LossOptions options{
      .temperature = 2, .hard_weight = 0.5, .label_smoothing = 0.1, .z_loss = 1e-3, .student_softcap = 6};
  for (const int64_t padding : paddings(kFiveTiles)) {
    expect_cluster_matches({.vocab = kFiveTiles, .padding = padding, .biases = true}, options, 2e-5);
  }
}

// The divergence of each row of these logits, computed in `type`.
at::Tensor divergence_of(const Rows& rows, const RowSpec& spec, const LossOptions& options, at::ScalarType type) {
  const auto log_probs = [&](int side) {
    const double cap = side == 0 ? options.student_softcap : options.teacher_softcap;
    at::Tensor logits = rows.owned[side].narrow(1, 0, spec.vocab).to(type);
    logits = cap > 0 ? cap * at::tanh(logits / cap) : logits;
    return at::log_softmax(logits / options.temperature, 1);
  };
  return naive_divergence(options, log_probs(1), log_probs(0));
}

// With the errors that a GPU's exp2 and log2 may have: at most twice those of the plain computation in fp32.
TEST(EmulatedCluster, ErrorsNearTheTeacherAreWithinTwiceThoseOfThePlainComputation) {
  const std::vector<LossOptions> calls{
      {},
      {.temperature = 2},
      {.temperature = 0.3},
      {.student_softcap = 30, .teacher_softcap = 30},
      {.temperature = 2, .student_softcap = 30, .teacher_softcap = 30},
      {.divergence = Divergence::kForwardKl},
      {.divergence = Divergence::kSkewForwardKl},
      {.divergence = Divergence::kSkewReverseKl},
      {.metrics = MetricSet::kLoss},
      {.student_softcap = 30, .teacher_softcap = 30, .metrics = MetricSet::kLoss},
      {.divergence = Divergence::kForwardKl, .metrics = MetricSet::kLoss},
      {.divergence = Divergence::kReverseKl, .metrics = MetricSet::kLoss}};
  for (const LossOptions& options : calls) {
    for (const double gap : {0.1, 0.01, 0.001}) {
      const RowSpec spec{
          .rows = kRows, .vocab = kFiveTiles, .padding = 21, .targets = false, .weights = false, .gap = gap};
      Rows ours = make_rows(spec, options);
      const at::Tensor exact = divergence_of(ours, spec, options, at::kDouble);
      const at::Tensor plain = divergence_of(ours, spec, options, at::kFloat);
      ASSERT_NO_THROW(emulate_cluster_rows(ours.args, kClusterSize));
      const at::Tensor found = ours.metrics[kSoft].narrow(0, 0, kRows);
      EXPECT_LT(relative_error(found, exact), 1e-6 + 2 * relative_error(plain, exact))
          << static_cast<int>(options.divergence) << " T " << options.temperature << " gap " << gap << " metrics "
          << static_cast<int>(options.metrics);
    }
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

// Blocks to a row and slots: a row that stays in shared memory, and rows of which a part does.
struct StreamingPlan {
  int blocks;
  int slots;
};
constexpr StreamingPlan kStreamingPlans[] = {{1, 8}, {1, 2}, {2, 1}, {3, 2}};

void expect_streaming_matches(const RowSpec& spec, const LossOptions& options, double tolerance) {
  const Rows expected = reference_of(spec, options);
  for (const auto& [blocks, slots] : kStreamingPlans) {
    SCOPED_TRACE(::testing::Message() << "blocks " << blocks << " slots " << slots);
    Rows ours = make_rows(spec, options);
    ASSERT_NO_THROW(emulate_streaming_rows(ours.args, blocks, slots));
    expect_equal_rows(spec, ours, expected, tolerance);
  }
}

class EmulatedStreaming : public ::testing::TestWithParam<Call> {};

TEST_P(EmulatedStreaming, MatchesTheReference) {
  const auto& [name, options, teacher] = GetParam();
  for (const auto& [type, tolerance] :
       {std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 1e-4}, std::pair{at::kDouble, 1e-11}}) {
    for (const auto& [padding, in_place] : {std::pair{0, false}, std::pair{1, true}, std::pair{5, true}}) {
      const RowSpec spec{
          .rows = 4,
          .vocab = 9003,
          .padding = padding,
          .logits = type,
          .gradient = type,
          .teacher = teacher,
          .in_place = in_place};
      SCOPED_TRACE(::testing::Message() << c10::toString(type) << " padding " << padding);
      expect_streaming_matches(spec, options, tolerance);
    }
  }
}

// Without a gradient the second pass is the last one.
TEST(EmulatedStreaming, MetricsWithoutAGradient) {
  expect_streaming_matches({.rows = 3, .vocab = 9003, .padding = 1, .no_gradient = true}, {.hard_weight = 0.5}, 2e-5);
}

// Logits far from each other: the running sums change their base, and some begin with columns that are ruled out.
TEST(EmulatedStreaming, LogitsFarApart) {
  const RowSpec spec{.rows = 3, .vocab = 9003, .padding = 5};
  for (const LossOptions& options :
       {LossOptions{.hard_weight = 0.5}, LossOptions{.temperature = 0.5, .hard_weight = 0.5}}) {
    Rows ours = make_rows(spec, options);
    Rows expected = make_rows(spec, options);
    for (const Rows& rows : {ours, expected}) {
      for (const int side : {0, 1}) {
        rows.owned[side].narrow(1, 0, 100).fill_(-INFINITY);
        rows.owned[side].narrow(1, 4000, 2000).add_(150 + side);
        rows.owned[side].narrow(1, 8000, 300).add_(300 + side);
      }
    }
    reference_rows(expected.args, at::kCPU);
    ASSERT_NO_THROW(emulate_streaming_rows(ours.args, 1, 2));
    expect_equal_rows(spec, ours, expected, 2e-5);
  }
}

// The teacher's rows again, one element behind a multiple of 16 bytes and with another stride. To be kept alive.
at::Tensor move_teacher(const RowSpec& spec, Rows& rows) {
  const int64_t stride = spec.vocab + spec.padding + 1;
  at::Tensor moved = at::full({spec.rows * stride}, NAN, at::TensorOptions(spec.logits));
  moved.view({spec.rows, stride}).narrow(1, 1, spec.vocab).copy_(rows.owned[1].narrow(1, 0, spec.vocab));
  rows.args.teacher = static_cast<const char*>(moved.data_ptr()) + moved.element_size();
  rows.args.teacher_stride = stride;
  return moved;
}

TEST(EmulatedStreaming, SidesOfDifferentAlignment) {
  const RowSpec spec{.rows = 5, .vocab = 4999, .padding = 25};
  const LossOptions options{.hard_weight = 0.5};
  Rows ours = make_rows(spec, options);
  const at::Tensor moved = move_teacher(spec, ours);
  ASSERT_NO_THROW(emulate_streaming_rows(ours.args, 2, 1));
  expect_equal_rows(spec, ours, reference_of(spec, options), 2e-5);
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

INSTANTIATE_TEST_SUITE_P(
    Calls, EmulatedStreaming,
    ::testing::Values(
        Call{"jsd", {.beta = 0.3, .hard_weight = 0.5}},
        Call{"jsd_alone", {.beta = 0.3, .hard_weight = 0.5, .metrics = MetricSet::kLoss}},
        Call{"reverse_kl", {.divergence = Divergence::kReverseKl, .hard_weight = 0.5}},
        Call{
            "reverse_kl_alone",
            {.divergence = Divergence::kReverseKl, .hard_weight = 0.5, .metrics = MetricSet::kLoss}},
        Call{
            "forward_kl_alone",
            {.divergence = Divergence::kForwardKl, .hard_weight = 0.5, .metrics = MetricSet::kLoss}},
        Call{"labels_alone", {.divergence = Divergence::kNone, .hard_weight = 1, .metrics = MetricSet::kLoss}, false},
        Call{
            "skew_hot_smooth_capped",
            {.divergence = Divergence::kSkewForwardKl,
             .temperature = 2,
             .hard_weight = 0.5,
             .label_smoothing = 0.1,
             .student_softcap = 6}},
        Call{"forward_kl", {.divergence = Divergence::kForwardKl, .hard_weight = 0.5}},
        Call{"forward_kl_hot", {.divergence = Divergence::kForwardKl, .temperature = 2, .hard_weight = 0.5}},
        Call{"labels", {.divergence = Divergence::kNone, .hard_weight = 1}, false},
        Call{"labels_smooth", {.divergence = Divergence::kNone, .hard_weight = 1, .label_smoothing = 0.1}, false}),
    [](const auto& call) { return call.param.name; });

} // namespace
} // namespace distill::losses::testing
