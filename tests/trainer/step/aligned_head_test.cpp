// The loss of a teacher with a tokenizer of its own against the whole logits in fp64 with autograd.
#include "trainer/step/aligned_head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include "trainer/metrics/alignment_sums.h"
#include "trainer/teacher/aligned_teacher.h"

namespace distill::trainer {
namespace {

constexpr int64_t kTokens = 12, kRows = 19, kHidden = 6; // of the student
constexpr int64_t kTeacherTokens = 11, kTeacherRows = 23, kWidth = 5; // of the teacher
constexpr int64_t kColumns = 15; // rows [0, 15), of which some are no columns
const std::vector<int64_t> kExcluded = {2, 7, 11};
const std::vector<int64_t> kEmpty = {7, 20}; // rows of the teacher without a token

// The student's rows and the teacher's that predict the tokens of each piece, spans first.
struct TestPiece {
  std::vector<int64_t> rows, teacher_rows;
};
const std::vector<TestPiece> kPieces = {{{1, 2}, {0}}, {{6}, {3, 4, 5}}, {{7, 8}, {6, 7}}, {{0}, {8}}, {{10}, {9}}};
constexpr int64_t kSpans = 3;

at::Tensor ids(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

class AlignedHeadTest : public testing::TestWithParam<AlignedLoss> {
 protected:
  AlignedHeadTest() {
    at::manual_seed(5);
    const auto randn = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
    hidden_NH_ = randn({kTokens, kHidden});
    weight_VH_ = randn({kRows, kHidden});
    teacher_TG_ = randn({kTeacherTokens, kWidth});
    teacher_VG_ = randn({kTeacherRows, kWidth});
    targets_N_ = at::randint(0, kRows, {kTokens}, at::kLong);
    for (const int64_t row : {3, 9, 11}) { // no token of a piece
      targets_N_[row].fill_(losses::kIgnoreIndex);
    }
    std::vector<int64_t> rows, pieces, first, teacher_rows, teacher_pieces, teacher_targets;
    at::Tensor rows_N = at::zeros({kTokens}, at::kLong);
    for (size_t piece = 0; piece < kPieces.size(); ++piece) {
      for (const int64_t row : kPieces[piece].rows) {
        rows.push_back(row);
        pieces.push_back(static_cast<int64_t>(piece));
      }
      for (const int64_t row : kPieces[piece].teacher_rows) {
        teacher_rows.push_back(row);
        teacher_pieces.push_back(static_cast<int64_t>(piece));
        teacher_targets.push_back((5 * row + 1) % 6);
      }
      first.push_back(kPieces[piece].rows.front());
      rows_N[first.back()].fill_(kPieces[piece].teacher_rows.front());
    }
    data::AlignedPieces& aligned = batch_.aligned.emplace();
    aligned.rows_P = ids(rows);
    aligned.pieces_P = ids(pieces);
    aligned.first_rows_Z = ids(first);
    aligned.teacher_rows_Q = ids(teacher_rows);
    aligned.teacher_pieces_Q = ids(teacher_pieces);
    aligned.teacher_targets_Q = ids(teacher_targets);
    aligned.pieces = static_cast<int64_t>(kPieces.size());
    aligned.spans = kSpans;
    aligned.span_tokens = 5;
    aligned.teacher_span_tokens = 6;
    batch_.rows_BS = rows_N.view({1, kTokens});
  }

  Prediction predict() const {
    Vocabulary vocabulary;
    vocabulary.aligned = true;
    vocabulary.empty_rows = kEmpty;
    vocabulary.rows.assign(kTeacherRows, 0);
    const AlignedHead head(config::Config(), GetParam().loss.teacher_softcap, vocabulary, teacher_TG_.options());
    Prediction out{.tokens = kTokens};
    out.aligned = head.predict(batch_, teacher_TG_, teacher_VG_, batch_.rows_BS.flatten());
    out.head.targets_N = targets_N_;
    out.head.valid_tokens = targets_N_.ne(losses::kIgnoreIndex).sum().item<int64_t>();
    out.head.teacher_hidden_NG = teacher_TG_.index_select(0, batch_.rows_BS.flatten());
    out.head.teacher_weight_VG = teacher_VG_;
    out.head.columns = {{0, kColumns}};
    return out;
  }

  AlignedLoss loss() const {
    AlignedLoss loss = GetParam();
    loss.bias_V = excluding_biases(kExcluded, kRows, loss.loss.temperature, hidden_NH_.options());
    loss.teacher_bias_V = excluding_biases(kExcluded, kTeacherRows, loss.loss.temperature, hidden_NH_.options());
    return loss;
  }

  // The total loss over all tokens, from whole logits.
  at::Tensor plain(const at::Tensor& hidden_NH, const at::Tensor& weight_VH) const {
    const losses::LossOptions& options = GetParam().loss;
    const losses::SpanOptions& spans = GetParam().spans;
    const auto capped = [](const at::Tensor& logits, double cap) {
      return cap > 0 ? cap * (logits / cap).tanh() : logits;
    };
    const at::Tensor logits = capped(hidden_NH.matmul(weight_VH.t()), options.student_softcap);
    const at::Tensor log_q = logits.log_softmax(1);
    const at::Tensor its_logits = capped(teacher_TG_.matmul(teacher_VG_.t()), options.teacher_softcap)
                                      .index_fill(1, ids(kEmpty), -std::numeric_limits<double>::infinity());
    const at::Tensor log_p = its_logits.log_softmax(1);
    at::Tensor total = at::zeros({}, at::kDouble);
    for (int64_t row = 0; row < kTokens; ++row) {
      const auto target = targets_N_[row].item<int64_t>();
      if (target >= 0) {
        const at::Tensor smooth =
            (1 - options.label_smoothing) * log_q[row][target] + options.label_smoothing * log_q[row].mean();
        total = total + options.hard_weight * (options.z_loss * logits[row].logsumexp(0).square() - smooth);
      }
    }
    std::vector<int64_t> columns;
    for (int64_t column = 0; column < kColumns; ++column) {
      if (std::find(kExcluded.begin(), kExcluded.end(), column) == kExcluded.end()) {
        columns.push_back(column);
      }
    }
    for (size_t piece = 0; piece < kPieces.size(); ++piece) {
      const auto& [rows, teacher_rows] = kPieces[piece];
      const double t = options.temperature;
      const at::Tensor q = (logits[rows.front()].index_select(0, ids(columns)) / t).log_softmax(0);
      const at::Tensor p = (its_logits[teacher_rows.front()].index_select(0, ids(columns)) / t).log_softmax(0);
      const double scale = options.scale_by_temperature_squared ? t * t : 1;
      if (spans.starts || static_cast<int64_t>(piece) >= kSpans) {
        total = total + options.soft_weight * scale * divergence(p, q, options);
      }
      if (static_cast<int64_t>(piece) >= kSpans) {
        continue;
      }
      at::Tensor own = at::zeros({}, at::kDouble), its = at::zeros({}, at::kDouble);
      for (const int64_t row : rows) {
        own = own + log_q[row][targets_N_[row].item<int64_t>()];
      }
      for (const int64_t row : teacher_rows) {
        its = its + log_p[row][(5 * row + 1) % 6];
      }
      const auto both = [&](const at::Tensor& log) {
        const at::Tensor yes = (log / spans.temperature).exp();
        return at::stack({yes, 1 - yes}).log();
      };
      total =
          total + options.soft_weight * spans.weight * spans.temperature * divergence(both(its), both(own), options);
    }
    return total;
  }

  static at::Tensor divergence(const at::Tensor& p, const at::Tensor& q, const losses::LossOptions& options) {
    const auto kl = [](const at::Tensor& a, const at::Tensor& b) { return (a.exp() * (a - b)).sum(); };
    if (options.divergence == losses::Divergence::kForwardKl) {
      return kl(p, q);
    }
    if (options.divergence == losses::Divergence::kReverseKl) {
      return kl(q, p);
    }
    const auto mix = [](const at::Tensor& a, const at::Tensor& b, double share) {
      return at::logaddexp(a + std::log(share), b + std::log(1 - share));
    };
    if (options.divergence == losses::Divergence::kSkewForwardKl) {
      return kl(p, mix(p, q, options.skew_alpha));
    }
    if (options.divergence == losses::Divergence::kSkewReverseKl) {
      return kl(q, mix(q, p, options.skew_alpha));
    }
    if (options.divergence == losses::Divergence::kTotalVariation) {
      return 0.5 * (p.exp() - q.exp()).abs().sum();
    }
    const at::Tensor m = mix(p, q, options.beta);
    return options.beta * kl(p, m) + (1 - options.beta) * kl(q, m);
  }

  at::Tensor hidden_NH_, weight_VH_, teacher_TG_, teacher_VG_, targets_N_;
  data::TeacherBatch batch_;
};

TEST_P(AlignedHeadTest, LossAndGradientsAreThoseOfTheDefinition) {
  const at::Tensor hidden = hidden_NH_.clone().requires_grad_(true), weight = weight_VH_.clone().requires_grad_(true);
  const at::Tensor expected = plain(hidden, weight);
  const auto gradients = torch::autograd::grad({expected}, {hidden, weight});
  losses::LinearHeadGrads grads;
  grads.hidden_NH = at::full_like(hidden_NH_, 7.0);
  grads.weight_VH = at::full_like(weight_VH_, 7.0);
  grads.grad_scale = 0.25;
  for (const bool accumulate : {false, true}) {
    grads.accumulate = accumulate;
    const at::Tensor before = accumulate ? grads.weight_VH.clone() : at::zeros_like(weight_VH_);
    const AlignedResult found = run_aligned_head(predict(), hidden_NH_, weight_VH_, loss(), {}, &grads);
    EXPECT_NEAR(found.metrics_MN[losses::kLoss].sum().item<double>(), expected.item<double>(), 1e-9);
    EXPECT_TRUE(at::allclose(grads.hidden_NH, 0.25 * gradients[0], 1e-9, 1e-11));
    EXPECT_TRUE(at::allclose(grads.weight_VH - before, 0.25 * gradients[1], 1e-9, 1e-11));
  }
}

TEST_P(AlignedHeadTest, WithoutGradientsTheNumbersAreTheSame) {
  losses::LinearHeadGrads grads;
  grads.hidden_NH = at::empty_like(hidden_NH_);
  grads.weight_VH = at::zeros_like(weight_VH_);
  const AlignedResult trained = run_aligned_head(predict(), hidden_NH_, weight_VH_, loss(), {}, &grads);
  const AlignedResult evaluated = run_aligned_head(predict(), hidden_NH_, weight_VH_, loss(), {}, nullptr);
  EXPECT_TRUE(at::allclose(trained.metrics_MN, evaluated.metrics_MN, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(trained.alignment_A, evaluated.alignment_A, 1e-12, 1e-12));
  EXPECT_EQ(evaluated.alignment_A[metrics::kPieces].item<double>(), 5);
  EXPECT_EQ(evaluated.alignment_A[metrics::kSpans].item<double>(), 3);
  EXPECT_EQ(evaluated.alignment_A[metrics::kCompared].item<double>(), GetParam().spans.starts ? 5 : 2);
  EXPECT_EQ(evaluated.alignment_A[metrics::kSpanTokens].item<double>(), 5);
}

TEST_P(AlignedHeadTest, ABatchWithoutPiecesHasTheLabelsAlone) {
  data::AlignedPieces& aligned = *batch_.aligned;
  for (at::Tensor* list :
       {&aligned.rows_P, &aligned.pieces_P, &aligned.first_rows_Z, &aligned.teacher_rows_Q, &aligned.teacher_pieces_Q,
        &aligned.teacher_targets_Q}) {
    *list = at::empty({0}, at::kLong);
  }
  aligned.pieces = aligned.spans = aligned.span_tokens = aligned.teacher_span_tokens = 0;
  losses::LinearHeadGrads grads;
  grads.hidden_NH = at::full_like(hidden_NH_, 7.0);
  grads.weight_VH = at::full_like(weight_VH_, 7.0);
  grads.accumulate = false;
  const AlignedResult found = run_aligned_head(predict(), hidden_NH_, weight_VH_, loss(), {}, &grads);
  const at::Tensor hard = found.metrics_MN[losses::kHard] + GetParam().loss.z_loss * found.metrics_MN[losses::kZLoss];
  EXPECT_TRUE(at::allclose(found.metrics_MN[losses::kLoss], GetParam().loss.hard_weight * hard));
  EXPECT_TRUE(at::isfinite(grads.hidden_NH).all().item<bool>());
  EXPECT_EQ(grads.hidden_NH.abs().sum().item<double>() > 0, GetParam().loss.hard_weight > 0);
  EXPECT_EQ(found.alignment_A.abs().sum().item<double>(), 0);
}

std::vector<AlignedLoss> cases() {
  AlignedLoss plain, mixed, smooth, reverse, boundaries;
  plain.loss.divergence = losses::Divergence::kForwardKl;
  mixed.loss.beta = 0.3;
  mixed.loss.hard_weight = 0.4;
  mixed.loss.soft_weight = 0.6;
  mixed.spans = {.weight = 2, .temperature = 20};
  smooth = mixed;
  smooth.loss.label_smoothing = 0.1;
  smooth.loss.z_loss = 0.01;
  reverse.loss.divergence = losses::Divergence::kReverseKl;
  reverse.loss.temperature = 3;
  reverse.loss.scale_by_temperature_squared = true;
  boundaries = mixed;
  boundaries.spans = {.weight = 0, .starts = true};
  reverse.spans.starts = true;
  std::vector<AlignedLoss> all{plain, mixed, smooth, reverse, boundaries};
  // Softcaps of either side, of both, and with every divergence.
  const std::pair<double, double> caps[] = {{1.5, 0}, {0, 1.2}, {2, 1}};
  for (const auto& [own, its] : caps) {
    for (AlignedLoss loss : {plain, mixed, smooth, reverse, boundaries}) {
      loss.loss.student_softcap = own;
      loss.loss.teacher_softcap = its;
      all.push_back(loss);
    }
  }
  for (const losses::Divergence divergence :
       {losses::Divergence::kJsd, losses::Divergence::kForwardKl, losses::Divergence::kReverseKl,
        losses::Divergence::kSkewForwardKl, losses::Divergence::kSkewReverseKl, losses::Divergence::kTotalVariation}) {
    for (const double temperature : {0.5, 1.0, 4.0}) {
      AlignedLoss loss = mixed;
      loss.loss.divergence = divergence;
      loss.loss.temperature = temperature;
      loss.loss.skew_alpha = 0.2;
      loss.loss.student_softcap = 1.7;
      loss.loss.teacher_softcap = 2.5;
      all.push_back(loss);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Losses, AlignedHeadTest, testing::ValuesIn(cases()));

TEST(ExcludingBiasTest, ExcludesAtEveryTemperatureInEveryDtype) {
  for (const double temperature : {0.1, 1.0, 7.0, 1e6}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::Tensor bias = excluding_biases({1}, 3, temperature, at::TensorOptions().dtype(dtype));
      EXPECT_EQ(bias[1].item<double>(), excluding_bias(temperature));
      const at::Tensor p = ((bias.to(at::kFloat) + at::tensor({1.0F, 50.0F, -20.0F})) / temperature).softmax(0);
      EXPECT_EQ(p[1].item<float>(), 0);
    }
  }
  EXPECT_FALSE(excluding_biases({}, 3, 1, at::TensorOptions()).defined());
}

} // namespace
} // namespace distill::trainer
