#include "trainer/teacher_cache/row_conversion.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "tests/trainer/teacher_cache/cache_fixture.h"
#include "trainer/teacher_cache/sparse_format.h"

namespace distill::teacher_cache {
namespace {

using losses::TeacherKind;
using testing::HasSubstr;

RowFormat topk_format(int64_t entries, int64_t columns, Encoding encoding = Encoding::kFloat32) {
  RowFormat format;
  format.encoding = encoding;
  format.kind = TeacherKind::kTopK;
  format.entries = entries;
  format.columns = columns;
  return format;
}

RowFormat sampled_format(int64_t entries, int64_t columns, double exponent) {
  RowFormat format = topk_format(entries, columns);
  format.kind = TeacherKind::kSampled;
  format.exponent = exponent;
  return format;
}

RowSource source(int64_t rows, int64_t vocab, int64_t hidden = 24) {
  at::manual_seed(7);
  RowSource source;
  source.hidden_RG = at::randn({rows, hidden}) * 2;
  source.lm_head_VG = at::randn({vocab, hidden});
  source.keys_R = at::arange(rows).mul(1000003);
  return source;
}

losses::LinearHeadInputs given(const RowFormat& format, const at::Tensor& rows_RW) {
  losses::LinearHeadInputs inputs;
  give_teacher(format, rows_RW, inputs);
  return inputs;
}

TEST(RowConversion, ASingleRowReadsBack) {
  const RowFormat format = topk_format(3, 70000);
  const at::Tensor ids = at::tensor({4, 69999, -1}, at::kInt).view({1, 3});
  const SparseRows back =
      decode_sparse(format, encode_sparse(format, {ids, at::full({1, 3}, -2.f), at::tensor({0.5f})}));
  EXPECT_TRUE(at::equal(back.ids_RK, ids));
  EXPECT_TRUE(at::equal(back.values_RK, at::full({1, 3}, -2.f)));
}

// The vocabularies at which an id takes another byte, and the last id of each.
TEST(RowConversion, IdsOfEverySizeReadBack) {
  for (const int64_t columns : {int64_t{50}, int64_t{65534}, int64_t{65535}, int64_t{16777214}, int64_t{16777215}}) {
    const RowFormat format = topk_format(3, columns);
    const int64_t bytes = columns < 65535 ? 2 : columns < 16777215 ? 3 : 4;
    EXPECT_EQ(format.row_bytes(), 3 * (bytes + 4) + 4) << columns;
    const auto last = static_cast<int32_t>(columns - 1);
    const at::Tensor ids = at::tensor({0, last, -1, last, 7, 1}, at::kInt).view({2, 3});
    const at::Tensor values = at::tensor({-0.5f, -1.5f, -9.f, -0.25f, -2.f, -3.f}).view({2, 3});
    const at::Tensor rows_RW = encode_sparse(format, {ids, values, at::tensor({0.125f, 0.5f})});
    EXPECT_EQ(rows_RW.sizes(), (std::vector<int64_t>{2, format.row_bytes()}));
    const losses::LinearHeadInputs inputs = given(format, rows_RW);
    EXPECT_TRUE(at::equal(inputs.topk_ids_NK, ids)) << inputs.topk_ids_NK;
    EXPECT_TRUE(at::equal(inputs.topk_log_probs_NK, values));
    EXPECT_TRUE(at::equal(inputs.tail_N, at::tensor({0.125f, 0.5f})));
    EXPECT_EQ(inputs.columns, (losses::ColumnRanges{{0, columns}}));
  }
}

TEST(RowConversion, TopKOfHiddenStatesAreThoseOfTheirDistribution) {
  const RowSource in = source(37, 90);
  RowFormat format = topk_format(11, 80); // the last ten columns are padding
  format.temperature = 1.5;
  format.softcap = 20;
  const losses::LinearHeadInputs inputs = given(format, make_rows(format, in, {}));
  const at::Tensor logits = in.hidden_RG.to(at::kDouble).matmul(in.lm_head_VG.to(at::kDouble).t()).narrow(1, 0, 80);
  const at::Tensor log_p = (at::tanh(logits / 20) * 20 / 1.5).log_softmax(1);
  const auto [values, ids] = log_p.topk(11, 1);
  EXPECT_TRUE(at::equal(inputs.topk_ids_NK.to(at::kLong), ids));
  EXPECT_TRUE(at::allclose(inputs.topk_log_probs_NK.to(at::kDouble), values, 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(inputs.tail_N.to(at::kDouble), 1 - values.exp().sum(1), 1e-4, 1e-6));
  EXPECT_EQ(inputs.teacher_temperature, 1.5);
}

TEST(RowConversion, ARowIsTheSameWhateverIsBesideIt) {
  const RowSource all = source(100, 211);
  RowSource some = all;
  some.hidden_RG = all.hidden_RG.slice(0, 17, 30);
  some.keys_R = all.keys_R.slice(0, 17, 30);
  for (const RowFormat& format : {topk_format(9, 211), sampled_format(9, 211, 1), sampled_format(9, 211, 0.6)}) {
    EXPECT_TRUE(at::equal(make_rows(format, all, {}).slice(0, 17, 30), make_rows(format, some, {})));
    EXPECT_TRUE(at::equal(make_rows(format, all, {.chunk_size = 32}), make_rows(format, all, {})));
  }
}

TEST(RowConversion, DrawsWeighWhatMakesThemUnbiased) {
  const RowSource one = source(1, 30);
  const at::Tensor p = one.hidden_RG.to(at::kDouble).matmul(one.lm_head_VG.to(at::kDouble).t()).softmax(1)[0];
  for (const double exponent : {1.0, 0.5}) {
    RowFormat format = sampled_format(16, 30, exponent);
    RowSource many = one;
    many.hidden_RG = one.hidden_RG.expand({4000, -1});
    many.keys_R = at::arange(4000);
    const losses::LinearHeadInputs inputs = given(format, make_rows(format, many, {}));
    EXPECT_EQ(format.row_bytes(), 16 * (exponent == 1 ? 2 : 6));
    const at::Tensor mean =
        at::zeros({30}, at::kDouble)
            .index_add(
                0, inputs.sample_ids_NS.flatten().to(at::kLong), inputs.sample_weights_NS.flatten().to(at::kDouble))
            .div(4000);
    EXPECT_LT((mean - p).abs().max().item<double>(), 0.01) << exponent;
    format.seed = 1;
    EXPECT_FALSE(at::equal(given(format, make_rows(format, many, {})).sample_ids_NS, inputs.sample_ids_NS));
  }
}

TEST(RowConversion, ShapesAreTheSameOnMetaTensors) {
  RowSource meta = source(40, 211);
  for (at::Tensor* tensor : {&meta.hidden_RG, &meta.lm_head_VG, &meta.keys_R}) {
    *tensor = at::empty(tensor->sizes(), tensor->options().device(at::kMeta));
  }
  for (const RowFormat& format :
       {topk_format(9, 211, Encoding::kFloat16), sampled_format(9, 211, 1), sampled_format(9, 70000, 0.6)}) {
    if (format.columns > 211) {
      meta.lm_head_VG = at::empty({70000, 24}, meta.lm_head_VG.options());
    }
    const at::Tensor rows_RW = make_rows(format, meta, {});
    EXPECT_EQ(rows_RW.sizes(), (std::vector<int64_t>{40, format.row_bytes()}));
    const losses::LinearHeadInputs inputs = given(format, rows_RW);
    const at::Tensor& ids = inputs.topk_ids_NK.defined() ? inputs.topk_ids_NK : inputs.sample_ids_NS;
    EXPECT_EQ(ids.sizes(), (std::vector<int64_t>{40, 9}));
  }
}

TEST(RowConversion, WhatATeacherWritesIsFineAndAnyOtherNumberIsNamed) {
  const RowFormat format = topk_format(3, 50, Encoding::kFloat16);
  const auto check = [&](const at::Tensor& ids, const std::vector<float>& values, float tail) {
    const at::Tensor rows =
        encode_sparse(format, {ids.view({1, 3}), at::tensor(values).view({1, 3}), at::tensor({tail})});
    return std::string(check_rows(format, rows.const_data_ptr<uint8_t>(), 1).message());
  };
  const at::Tensor ids = at::tensor({4, 49, -1}, at::kInt);
  const std::vector<float> fine = {std::log(0.5f), std::log(0.25f), 0};
  EXPECT_EQ(check(ids, fine, 0.25f), "");
  EXPECT_EQ(check(ids, fine, -1e-4f), ""); // what rounding leaves
  EXPECT_EQ(check(ids, {-INFINITY, std::log(0.25f), 0}, 0.75f), "");
  EXPECT_THAT(check(ids, fine, 0.5f), HasSubstr("expected probabilities whose sum is 1"));
  EXPECT_THAT(check(ids, fine, NAN), HasSubstr("expected probabilities whose sum is 1"));
  EXPECT_THAT(check(ids, {NAN, -1, 0}, 0.1f), HasSubstr("expected log-probabilities, found nan"));
  EXPECT_THAT(check(at::tensor({4, 50, 1}, at::kInt), fine, 0), HasSubstr("expected tokens below 50, found 50"));
  EXPECT_THAT(check(at::tensor({4, 9, 4}, at::kInt), fine, 0), HasSubstr("expected every token once, found 4 twice"));
  const RowSource in = source(64, 50);
  for (const RowFormat& made : {format, topk_format(50, 50), sampled_format(5, 50, 1), sampled_format(5, 50, 0.3)}) {
    const at::Tensor rows = make_rows(made, in, {});
    EXPECT_TRUE(check_rows(made, rows.const_data_ptr<uint8_t>(), 64).ok());
  }
}

// Rows with exponent 1 store no weight that could be NaN.
TEST(RowConversion, ATeacherThatIsNotFiniteIsSeenInItsRows) {
  for (const float wrong : {NAN, INFINITY}) {
    RowSource in = source(5, 50);
    in.hidden_RG[2][3] = wrong;
    for (const RowFormat& made :
         {topk_format(4, 50, Encoding::kFloat16), topk_format(50, 50), sampled_format(5, 50, 1),
          sampled_format(5, 50, 0.3)}) {
      const at::Tensor rows = make_rows(made, in, {});
      const absl::Status status = check_rows(made, rows.const_data_ptr<uint8_t>(), 5);
      EXPECT_TRUE(absl::IsDataLoss(status)) << describe(made);
      EXPECT_THAT(std::string(status.message()), HasSubstr("row 2: expected "));
      EXPECT_TRUE(check_rows(made, rows.const_data_ptr<uint8_t>(), 2).ok());
      EXPECT_EQ(new_row_problem(made, rows[3].const_data_ptr<uint8_t>()), "");
    }
  }
}

class TokenKeysTest : public CacheTest {};

TEST_F(TokenKeysTest, AreThoseOfTheTokenInAnyBatch) {
  const auto keys_by_token = [&](int64_t count, bool shuffle, int64_t seq_len) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    open_data({5, 20, 1, 9, 8, 3, 17}, {.seq_len = seq_len, .shuffle = shuffle});
    std::map<int64_t, int64_t> keys; // ids of these documents are distinct
    for (int64_t first = 0; first < data_->num_samples(); first += count) {
      const data::Batch batch = data::testing::get(*data_, first, count);
      const at::Tensor ids = batch.tokens_BS.flatten().masked_select(batch.targets_BS.flatten().ne(-100));
      const at::Tensor own = token_keys(batch);
      EXPECT_EQ(own.numel(), ids.numel());
      for (int64_t i = 0; i < ids.numel(); ++i) {
        keys[ids[i].item<int64_t>()] = own[i].item<int64_t>();
      }
    }
    return keys;
  };
  const auto expected = keys_by_token(1, false, 8);
  EXPECT_EQ(expected.size(), 56u); // 63 tokens of 7 documents
  std::set<int64_t> distinct;
  for (const auto& [token, key] : expected) {
    distinct.insert(key);
  }
  EXPECT_EQ(distinct.size(), expected.size());
  EXPECT_EQ(keys_by_token(3, true, 8), expected);
  EXPECT_EQ(keys_by_token(2, true, 32), expected);
}

} // namespace
} // namespace distill::teacher_cache
