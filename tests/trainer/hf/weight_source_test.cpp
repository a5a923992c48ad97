#include "trainer/models/weight_source.h"

#include <unistd.h>

#include <fstream>

#include "tests/trainer/hf/weights_fixture.h"

namespace distill::hf {
namespace {

TEST_F(WeightsTest, RandomWeightsHaveTheirScaleAndNormsAreOne) {
  const auto random = models::random_weights(config_, 3);
  const models::UnitLayout& block = layouts_[1];
  const at::Tensor flat = load(*random, block);
  EXPECT_NEAR(block.view(flat, "gate_up").std().item<float>(), 0.05, 0.005);
  EXPECT_NEAR(block.view(flat, "gate_up").mean().item<float>(), 0.0, 0.01);
  EXPECT_TRUE(at::equal(block.view(flat, "attn_norm"), at::ones({16})));
  EXPECT_TRUE(at::equal(block.view(flat, "qkv_bias"), at::zeros({32})));
  const at::Tensor sample = load(*random, layouts_[0]).narrow(0, 0, 29 * 16) / 0.05;
  EXPECT_NEAR(sample.pow(4).mean().item<float>(), 3.0, 1.5) << "kurtosis of a normal distribution";
}

TEST_F(WeightsTest, RandomWeightsDependOnSeedAndNameAlone) {
  const auto first = models::random_weights(config_, 3);
  const auto same = models::random_weights(config_, 3);
  const auto other = models::random_weights(config_, 4);
  EXPECT_TRUE(at::equal(load(*first, layouts_[2]), load(*same, layouts_[2])));
  EXPECT_FALSE(at::equal(load(*first, layouts_[2]), load(*other, layouts_[2])));
  const auto down = [&](size_t unit) { return layouts_[unit].view(load(*first, layouts_[unit]), "down"); };
  EXPECT_FALSE(at::equal(down(1), down(2)));
}

TEST_F(WeightsTest, RangesEqualTheWhole) {
  ASSERT_TRUE(save("m", fp32()).ok());
  const auto folder = open_weights(path("m"), config_).value();
  const auto random = models::random_weights(config_, 11);
  for (const models::WeightSource* source : {folder.get(), random.get()}) {
    for (const models::UnitLayout& unit : layouts_) {
      const at::Tensor whole = load(*source, unit);
      for (const int64_t shard : {1, 61, 64, 500}) {
        if (shard == 1 && unit.kind != models::UnitKind::kHead) {
          continue;
        }
        at::Tensor pieces = at::full({unit.numel}, 7.0);
        for (int64_t begin = 0; begin < unit.numel; begin += shard) {
          source->copy_range(unit, begin, pieces.narrow(0, begin, std::min(shard, unit.numel - begin)));
        }
        EXPECT_TRUE(at::equal(pieces, whole)) << unit.name << " in shards of " << shard;
      }
    }
  }
}

TEST_F(WeightsTest, GapsAndTheTailAreZero) {
  const auto random = models::random_weights(config_, 3);
  const models::UnitLayout& block = layouts_[1];
  at::Tensor flat = at::full({block.numel + 100}, 7.0);
  random->copy_range(block, 0, flat);
  at::Tensor used = at::zeros_like(flat);
  for (const models::ParamLayout& param : block.params) {
    used.narrow(0, param.offset, param.numel()).fill_(1);
  }
  EXPECT_EQ(flat.mul(1 - used).abs().sum().item<float>(), 0);
}

TEST_F(WeightsTest, WeightsThatAreNotFiniteAreNamed) {
  constexpr int64_t kElements = int64_t{1} << 20; // several chunks
  for (const at::ScalarType stored : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::Tensor values = at::ones({kElements}, stored);
    values[kElements - 1] = std::nan("");
    values[kElements / 2] = -std::numeric_limits<double>::infinity();
    ASSERT_TRUE(write_safetensors(path("bad"), {{"w", values}}).ok());
    const auto file = SafetensorsFile::open(path("bad")).value();
    for (const at::ScalarType wanted : {at::kFloat, at::kBFloat16}) {
      NonFinite bad;
      at::Tensor copy = at::empty({kElements - 1}, wanted);
      file.copy_elements(*file.find("w"), 1, copy, &bad);
      EXPECT_EQ(bad.count, 2);
      EXPECT_EQ(bad.first, kElements / 2);
    }
  }
}

TEST_F(WeightsTest, LargeAndTinyFiniteWeightsAreNoError) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const double largest = type == at::kHalf ? 65504.0 : 3.3e38;
    NonFinite bad;
    add_non_finite(at::tensor({largest, -largest, 0.0, -0.0, 1e-45}, at::kDouble).to(type), 0, bad);
    EXPECT_EQ(bad.count, 0) << type;
    add_non_finite(at::full({3}, std::numeric_limits<double>::infinity(), type), 7, bad);
    EXPECT_EQ(bad.count, 3) << type;
    EXPECT_EQ(bad.first, 7) << type;
  }
}

// Bytes of file pages resident in this process.
int64_t resident_file_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0, shared = 0;
  statm >> size >> resident >> shared;
  return shared * ::sysconf(_SC_PAGESIZE);
}

TEST_F(WeightsTest, LoadingLeavesNoPagesOfTheFileResident) {
  constexpr int64_t kElements = int64_t{16} << 20;
  ASSERT_TRUE(write_safetensors(path("big"), {{"w", at::ones({kElements})}}).ok());
  const auto file = SafetensorsFile::open(path("big")).value();
  const int64_t before = resident_file_bytes();
  at::Tensor copy = at::empty({kElements}, at::kBFloat16);
  file.copy_elements(*file.find("w"), 0, copy);
  EXPECT_LT(resident_file_bytes() - before, int64_t{20} << 20) << "of a file of 64 MiB";
  EXPECT_EQ(copy.sum().item<float>(), static_cast<float>(kElements));
}

} // namespace
} // namespace distill::hf
