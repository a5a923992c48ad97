// What is hard for fp32, with both row kernels on a CPU: logits far apart or infinite, and students near the teacher.
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tests/losses/cases.h"
#include "tests/losses/emulation/kernel_checks.h"
#include "tests/losses/naive.h"

namespace distill::losses::testing {
namespace {

// Both kernels.
void expect_changed_match(
    const RowSpec& spec, const LossOptions& options, double tolerance,
    const std::function<void(at::Tensor student, at::Tensor teacher)>& change) {
  expect_changed_matches(cluster_kernel(), spec, options, tolerance, change);
  SCOPED_TRACE("streaming");
  expect_changed_matches(streaming_kernel(), spec, options, tolerance, change);
}

// The first tile's maxima, to which the kept exponentials are relative, far below those of the row and far above most
// columns; with scale 60 the exponentials overflow, and the row is kept again. Log-probabilities are of hundreds, which
// have 3e-5 as their unit in the last place.
TEST(EmulatedKernels, TheLossAloneWhereExponentialsDoNotFit) {
  for (const double scale : {16, 60}) {
    for (const Divergence divergence :
         {Divergence::kJsd, Divergence::kForwardKl, Divergence::kReverseKl, Divergence::kNone}) {
      for (const double softcap : {0, 200}) {
        const LossOptions options{
            .divergence = divergence, .hard_weight = 0.5, .student_softcap = softcap, .teacher_softcap = softcap};
        const bool with_teacher = divergence != Divergence::kNone;
        const RowSpec spec{.vocab = kFiveTiles, .padding = 5, .teacher = with_teacher, .scale = scale};
        expect_changed_match(spec, loss_alone(options), 5e-4, [](const auto&, const auto&) {});
        // One column decides the row, in another warp than most columns.
        expect_changed_match(
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

// Columns that are ruled out by a large number in the place of -inf, so many that some warps have no others.
TEST(EmulatedKernels, MaskedLogits) {
  const std::vector<LossOptions> calls{
      {.metrics = MetricSet::kLoss},
      {},
      {.divergence = Divergence::kForwardKl},
      {.divergence = Divergence::kForwardKl, .metrics = MetricSet::kLoss},
      {.temperature = 2}};
  for (const LossOptions& options : calls) {
    for (const float masked : {-1e9F, -1e10F, -1e20F, std::numeric_limits<float>::lowest()}) {
      SCOPED_TRACE(
          ::testing::Message() << masked << " divergence " << static_cast<int>(options.divergence) << " metrics "
                               << static_cast<int>(options.metrics) << " temperature " << options.temperature);
      const RowSpec spec{.vocab = kFiveTiles, .padding = 5, .targets = false};
      expect_changed_match(spec, options, 2e-5, [&](const at::Tensor& student, const at::Tensor& teacher) {
        student.narrow(1, 0, 8000).fill_(masked);
        teacher.narrow(1, 0, 8000).fill_(masked);
      });
    }
  }
}

// Columns that one side or both rule out, among them whole tiles of a warp. (Some of the other metrics are infinite.)
TEST(EmulatedKernels, TheLossAloneWithInfiniteLogits) {
  for (const Divergence divergence : {Divergence::kJsd, Divergence::kForwardKl, Divergence::kNone}) {
    const RowSpec spec{.vocab = kFiveTiles, .padding = 5, .teacher = divergence != Divergence::kNone, .targets = false};
    expect_changed_match(
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
TEST(EmulatedKernels, TheLossAloneWhereTheStudentRulesOutAWarp) {
  for (const float least : {-INFINITY, -1e9F, -1e4F}) {
    const RowSpec spec{.vocab = 9003, .padding = 5, .targets = false};
    expect_changed_match(spec, loss_alone({}), 2e-5, [&](const at::Tensor& student, const at::Tensor&) {
      student.narrow(1, 4504, 4499).fill_(least);
    });
  }
}

// A softcap of a teacher that there is not, and a column that is ruled out.
TEST(EmulatedKernels, AnInfiniteLogitWithoutASoftcapOfItsOwn) {
  const LossOptions options{.divergence = Divergence::kNone, .hard_weight = 1, .teacher_softcap = 5};
  const RowSpec spec{.vocab = kFiveTiles, .padding = 5, .teacher = false, .targets = false};
  for (const LossOptions& o : {options, loss_alone(options)}) {
    expect_changed_match(spec, o, 2e-5, [](const at::Tensor& student, const at::Tensor&) {
      student.narrow(1, 100, 300).fill_(-INFINITY);
    });
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
TEST(EmulatedKernels, ErrorsNearTheTeacherAreWithinTwiceThoseOfThePlainComputation) {
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
      // With few rows the ratio of the two errors depends on luck.
      const RowSpec spec{.rows = 8, .vocab = kFiveTiles, .padding = 21, .targets = false, .weights = false, .gap = gap};
      for (const bool streaming : {false, true}) {
        Rows ours = make_rows(spec, options);
        const at::Tensor exact = divergence_of(ours, spec, options, at::kDouble);
        const at::Tensor plain = divergence_of(ours, spec, options, at::kFloat);
        ASSERT_NO_THROW((streaming ? streaming_kernel() : cluster_kernel())(ours.args));
        const at::Tensor found = ours.metrics[kSoft].narrow(0, 0, spec.rows);
        EXPECT_LT(relative_error(found, exact), 1e-6 + 2 * relative_error(plain, exact))
            << static_cast<int>(options.divergence) << " T " << options.temperature << " gap " << gap << " metrics "
            << static_cast<int>(options.metrics) << (streaming ? " streaming" : " cluster");
      }
    }
  }
}

} // namespace
} // namespace distill::losses::testing
