#include "trainer/models/renumbered_weights.h"

#include <ATen/ATen.h>

#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/models/random_weights.h"

namespace distill::models {
namespace {

constexpr int64_t kRows = 103;

ModelConfig config_of(int64_t vocab, bool tied) {
  ModelConfig config =
      llama_like({.vocab = vocab, .hidden = 36, .ffn = 52, .layers = 1, .heads = 3, .kv_heads = 1, .head_dim = 12});
  config.tie_word_embeddings = tied;
  return config;
}

class RenumberedWeightsTest : public DeviceTest {
 protected:
  static at::Tensor load(const WeightSource& source, const UnitLayout& unit, int64_t begin, int64_t count) {
    at::Tensor flat = at::full({count}, 7.0, options(at::kFloat));
    source.copy_range(unit, begin, flat);
    return flat;
  }
};

// Runs of rows that follow each other, single ones, rows that are left out, one that is used twice, and none.
std::vector<int64_t> some_rows() {
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < 40; ++i) {
    rows.push_back(i + 50);
  }
  rows.insert(rows.end(), {-1, -1, 3, 102, 101, 100, 3, -1, 0, 1, 2});
  return rows;
}

TEST_F(RenumberedWeightsTest, RowsOfTablesAreInTheOtherOrderAndAllElseIsTheSame) {
  const std::vector<int64_t> rows = some_rows();
  const auto vocab = static_cast<int64_t>(rows.size());
  for (const bool tied : {false, true}) {
    const std::shared_ptr<const WeightSource> source = random_weights(config_of(kRows, tied), /*seed=*/5);
    const auto renumbered = renumbered_weights(source, rows, kRows);
    const std::vector<UnitLayout> units = unit_layouts(config_of(vocab, tied));
    const std::vector<UnitLayout> others = unit_layouts(config_of(kRows, tied));
    for (size_t i = 0; i < units.size(); ++i) {
      const at::Tensor found = load(*renumbered, units[i], 0, units[i].numel);
      const at::Tensor original = load(*source, others[i], 0, others[i].numel);
      for (const ParamLayout& param : units[i].params) {
        at::Tensor expected = others[i].view(original, param.name);
        if (param.name == "embedding" || param.name == "lm_head") {
          const at::Tensor index = at::tensor(rows, at::kLong).to(expected.device());
          expected = expected.index_select(0, index.clamp_min(0)).mul(index.ge(0).unsqueeze(1));
        }
        EXPECT_TRUE(at::equal(units[i].view(found, param.name), expected)) << param.name;
      }
      at::Tensor pieces = at::empty_like(found); // which begin and end within rows
      for (int64_t begin = 0; begin < units[i].numel; begin += 77) {
        const int64_t count = std::min<int64_t>(77, units[i].numel - begin);
        pieces.narrow(0, begin, count).copy_(load(*renumbered, units[i], begin, count));
      }
      EXPECT_TRUE(at::equal(pieces, found)) << units[i].name;
    }
  }
}

TEST(InSourceOrderTest, IsTheTableWithoutTheRowsThatWereNotRead) {
  const at::Tensor table = at::arange(12).view({6, 2}) + 1;
  const std::vector<int64_t> rows = {4, -1, 0, 1};
  const at::Tensor loaded = table.index_select(0, at::tensor({4, 0, 0, 1}));
  const at::Tensor found = in_source_order(loaded, rows, 6);
  EXPECT_TRUE(at::equal(found.index_select(0, at::tensor({0, 1, 4})), table.index_select(0, at::tensor({0, 1, 4}))));
  EXPECT_FALSE(found.index_select(0, at::tensor({2, 3, 5})).any().item<bool>());
}

} // namespace
} // namespace distill::models
