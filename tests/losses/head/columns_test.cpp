// A head whose columns are some of the rows of both lm_heads, against the naive fp64 computation on these rows alone.
#include "losses/head/columns.h"

#include <gtest/gtest.h>

#include "losses/head/capture.h"
#include "losses/head/linear_head.h"
#include "tests/losses/sparse_cases.h"

namespace distill::losses::testing {
namespace {

const ColumnRanges kRanges{{3, 40}, {41, 42}, {57, 98}}; // of 101 rows

at::Tensor rows_of(const ColumnRanges& ranges, at::Device device) {
  std::vector<at::Tensor> parts;
  for (const auto& [begin, end] : ranges) {
    parts.push_back(at::arange(begin, end, at::TensorOptions(at::kLong).device(device)));
  }
  return at::cat(parts);
}

at::Tensor select(const at::Tensor& tensor, const at::Tensor& rows) {
  return tensor.defined() ? tensor.index_select(0, rows) : tensor;
}

// The problem with only the rows that are columns, whose ids are those of columns.
LinearHeadInputs compact(LinearHeadInputs in) {
  const at::Tensor rows = rows_of(in.columns, in.hidden_NH.device());
  for (at::Tensor* tensor : {&in.weight_VH, &in.bias_V, &in.teacher_weight_VG, &in.teacher_bias_V}) {
    *tensor = select(*tensor, rows);
  }
  const at::Tensor column_of =
      at::full({101}, -1, rows.options()).index_put_({rows}, at::arange(rows.numel(), rows.options()));
  if (in.targets_N.defined()) {
    in.targets_N = at::where(in.targets_N.ge(0), column_of.index_select(0, in.targets_N.clamp_min(0)), in.targets_N);
  }
  in.columns.clear();
  return in;
}

// A problem whose targets are columns.
LinearHeadInputs make(ProblemSpec spec) {
  LinearHeadInputs in = make_problem(spec);
  in.columns = kRanges;
  if (in.targets_N.defined()) {
    const at::Tensor rows = rows_of(kRanges, in.targets_N.device());
    in.targets_N = at::where(
        in.targets_N.ge(0), rows.index_select(0, in.targets_N.clamp_min(0).remainder(rows.numel())), in.targets_N);
  }
  return in;
}

std::vector<HeadCase> cases() {
  ProblemSpec plain;
  ProblemSpec everything = plain;
  everything.biases = everything.token_weights = true;
  everything.teacher_vocab = 120; // the teacher's table has other rows behind
  ProblemSpec alone = plain;
  alone.teacher_hidden = 0;
  std::vector<HeadCase> all;
  for (const auto& [name, divergence] : soft_divergences()) {
    all.push_back({name, {.divergence = divergence, .temperature = 1.5, .hard_weight = 0.4}, plain});
  }
  all.push_back(
      {"everything",
       {.beta = 0.3,
        .temperature = 1.7,
        .hard_weight = 0.6,
        .label_smoothing = 0.1,
        .z_loss = 1e-2,
        .student_softcap = 8,
        .teacher_softcap = 5},
       everything});
  all.push_back({"labels", {.divergence = Divergence::kNone, .hard_weight = 1, .label_smoothing = 0.1}, alone});
  return all;
}

// The gradients of the rows that are columns, and zeros elsewhere.
void expect_rows(const at::Tensor& found_V, const at::Tensor& expected_C, double tolerance) {
  if (!found_V.defined()) {
    return;
  }
  const at::Tensor rows = rows_of(kRanges, found_V.device());
  EXPECT_LT(relative_error(found_V.index_select(0, rows), expected_C), tolerance);
  at::Tensor others = found_V.clone();
  others.index_fill_(0, rows, 0);
  EXPECT_EQ(others.abs().max().item<double>(), 0);
}

class Columns : public ::testing::TestWithParam<HeadCase> {};

TEST_P(Columns, TheLossIsThatOfTheseRowsAlone) {
  constexpr double kScale = 0.37;
  for (const auto& [dtype, tolerance, gradients] :
       {std::tuple(at::kDouble, 1e-10, 1e-10), {at::kFloat, 3e-5, 3e-5}, {at::kBFloat16, 3e-5, 1.5e-2}}) {
    ProblemSpec spec = GetParam().problem;
    spec.dtype = dtype;
    const LinearHeadInputs in = make(spec);
    const NaiveResult naive = naive_head(compact(in), GetParam().options, kScale);
    for (const int64_t chunk : {1, 4, 64}) {
      for (const bool known : {false, true}) {
        SCOPED_TRACE(::testing::Message() << at::toString(dtype) << ' ' << chunk << ' ' << known);
        LinearHeadInputs own = in;
        set_known(own, known);
        HeadResult found = run_head(own, GetParam().options, {.chunk_size = chunk}, kScale);
        expect_rows(found.grads.weight_VH, naive.d_weight_VH, gradients);
        expect_rows(found.grads.bias_V, naive.d_bias_V, gradients);
        const at::Tensor rows = rows_of(kRanges, in.hidden_NH.device());
        found.grads.weight_VH = select(found.grads.weight_VH, rows);
        found.grads.bias_V = select(found.grads.bias_V, rows);
        expect_near(found, naive, tolerance, gradients);
      }
    }
  }
}

TEST_P(Columns, GradientsThatAreWrittenAreZeroElsewhere) {
  const LinearHeadInputs in = make(GetParam().problem);
  LinearHeadGrads sums = make_grads(in), written = make_grads(in);
  written.accumulate = false;
  for (at::Tensor* tensor : {&written.weight_VH, &written.bias_V}) {
    if (tensor->defined()) {
      tensor->fill_(7);
    }
  }
  linear_head(in, GetParam().options, {.chunk_size = 64}, &sums);
  linear_head(in, GetParam().options, {.chunk_size = 64}, &written);
  EXPECT_TRUE(at::equal(written.weight_VH, sums.weight_VH));
  EXPECT_TRUE(!sums.bias_V.defined() || at::equal(written.bias_V, sums.bias_V));
}

INSTANTIATE_TEST_SUITE_P(All, Columns, ::testing::ValuesIn(cases()), [](const auto& one) { return one.param.name; });

TEST(ColumnsOfSparseTeachers, TheirIdsAreThoseOfRows) {
  const LossOptions options{.divergence = Divergence::kForwardKl, .hard_weight = 0.3};
  for (const bool topk : {true, false}) {
    const LinearHeadInputs dense = make({});
    const LinearHeadInputs small =
        topk ? with_topk(compact(dense), options, 7) : with_samples(compact(dense), options, 9);
    const at::Tensor rows = rows_of(kRanges, dense.hidden_NH.device());
    LinearHeadInputs in = small;
    in.weight_VH = dense.weight_VH;
    in.targets_N = dense.targets_N;
    in.vocab_size = 0;
    in.columns = kRanges;
    at::Tensor& ids = topk ? in.topk_ids_NK : in.sample_ids_NS;
    const at::Tensor columns = ids;
    ids = rows.index_select(0, columns.flatten().to(at::kLong)).view(columns.sizes()).to(at::kInt);
    EXPECT_TRUE(at::equal(columns_of_ids(ids, kRanges), columns));
    EXPECT_TRUE(at::equal(ids_of_columns(columns, kRanges), ids));
    const HeadResult expected = run_head(small, options), found = run_head(in, options);
    EXPECT_LT(relative_error(found.metrics_MN, expected.metrics_MN), 1e-12);
    expect_rows(found.grads.weight_VH, expected.grads.weight_VH, 1e-12);
    EXPECT_LT(relative_error(found.grads.hidden_NH, expected.grads.hidden_NH), 1e-12);
  }
}

TEST(ColumnsOfCaptures, IdsAreThoseOfRowsAndTheMassThatOfTheColumns) {
  const LinearHeadInputs in = make({.biases = true});
  const at::Tensor rows = rows_of(kRanges, in.hidden_NH.device());
  CaptureInputs some, all;
  some.hidden_NG = all.hidden_NG = in.teacher_hidden_NG;
  some.weight_VG = in.teacher_weight_VG;
  some.bias_V = in.teacher_bias_V;
  some.columns = kRanges;
  all.weight_VG = select(in.teacher_weight_VG, rows);
  all.bias_V = select(in.teacher_bias_V, rows);
  const TopK found = capture_topk(some, 9, {.chunk_size = 4}), expected = capture_topk(all, 9, {.chunk_size = 4});
  EXPECT_LT(relative_error(found.log_probs_NK, expected.log_probs_NK), 1e-12);
  EXPECT_LT(relative_error(found.tail_N, expected.tail_N), 1e-12);
  EXPECT_TRUE(at::equal(found.ids_NK, ids_of_columns(expected.ids_NK, kRanges)));
  EXPECT_TRUE(at::equal(
      found.ids_NK.to(at::kLong),
      rows.index_select(0, expected.ids_NK.flatten().to(at::kLong)).view(expected.ids_NK.sizes())));
  const at::Tensor keys = at::arange(in.hidden_NH.size(0), rows.options());
  EXPECT_TRUE(at::equal(
      capture_samples(some, keys, {.samples = 5}, {}).ids_NS,
      ids_of_columns(capture_samples(all, keys, {.samples = 5}, {}).ids_NS, kRanges)));
}

TEST(ColumnsOfIds, AnIdWithoutAColumnIsNone) {
  const at::Tensor ids = at::tensor({-100, -1, 0, 2, 3, 39, 40, 41, 42, 57, 97, 98, 500}, at::kLong);
  EXPECT_TRUE(at::equal(
      columns_of_ids(ids, kRanges), at::tensor({-100, -1, 79, 79, 0, 36, 79, 37, 79, 38, 78, 79, 79}, at::kLong)));
  EXPECT_EQ(count_columns(kRanges), 79);
}

TEST(ProductParts, CoverEachColumnOnceInMultiplesOfEightAndAFew) {
  const std::vector<ColumnRanges> all{{{0, 1}},           {{0, 7}}, {{0, 8}},         {{0, 9}},
                                      {{0, 151669}},      kRanges,  {{5, 6}, {8, 9}}, {{0, 12}, {16, 17}, {20, 40}},
                                      {{3, 19}, {24, 32}}};
  for (const ColumnRanges& ranges : all) {
    SCOPED_TRACE(ranges.back().end);
    const std::vector<ProductPart> parts = product_parts(ranges);
    std::vector<int64_t> row_of(count_columns(ranges), -1);
    bool many = false; // once a part of a multiple of 8 has come
    for (const ProductPart& part : parts) {
      if (part.size() < 8) {
        EXPECT_FALSE(many) << "a part of a few columns comes after a large one";
      } else {
        EXPECT_EQ(part.size() % 8, 0);
        EXPECT_EQ(part.column % 8, 0);
        many = true;
      }
      for (int64_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(row_of.at(part.column + i), -1);
        row_of[part.column + i] = part.rows.begin + i;
      }
    }
    const at::Tensor rows = rows_of(ranges, at::kCPU);
    EXPECT_EQ(row_of, std::vector<int64_t>(rows.data_ptr<int64_t>(), rows.data_ptr<int64_t>() + rows.numel()));
  }
  EXPECT_EQ(product_parts({{0, 151936}}), (std::vector<ProductPart>{{{0, 151936}, 0}}));
  EXPECT_EQ(product_parts({{0, 151669}}), (std::vector<ProductPart>{{{151664, 151669}, 151664}, {{0, 151664}, 0}}));
}

TEST(ColumnsChecks, RangesThatAreNoneAreRefused) {
  for (const ColumnRanges& bad :
       {ColumnRanges{{0, 102}}, {{5, 5}}, {{5, 4}}, {{-1, 4}}, {{0, 5}, {4, 6}}, {{9, 12}, {0, 3}}}) {
    LinearHeadInputs in = make({});
    in.columns = bad;
    expect_error([&] { run_head(in, {}); }, "columns: expected ascending ranges of the rows of both lm_heads, 101");
  }
  LinearHeadInputs in = make({});
  in.vocab_size = 50;
  expect_error([&] { run_head(in, {}); }, "columns and vocab_size are both given");
}

TEST(ColumnsChecks, ATargetWithoutAColumnIsAnError) {
  if (test_device().is_cuda()) {
    GTEST_SKIP() << "a device-side assertion ends the process";
  }
  LinearHeadInputs in = make({.ignored = 0});
  in.targets_N[2] = 40;
  expect_error([&] { run_head(in, {.hard_weight = 1}); }, "a target is neither the ignore index");
}

} // namespace
} // namespace distill::losses::testing
