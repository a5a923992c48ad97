#include <ATen/ATen.h>
#include <ATen/core/PhiloxRNGEngine.h>

#include "tests/trainer/models/llama_like.h"
#include "tests/trainer/models/test_device.h"
#include "trainer/models/ops/normal_math.h"
#include "trainer/models/random_weights.h"
#include "trainer/models/weight_source.h"

namespace distill::models {
namespace {

ModelConfig small_config() {
  ModelConfig config = llama_like( // a vocabulary that is a multiple of nothing
      {.vocab = 1031, .hidden = 36, .ffn = 52, .layers = 1, .heads = 3, .kv_heads = 1, .head_dim = 12});
  config.initializer_range = 0.05;
  return config;
}

class RandomWeightsTest : public DeviceTest {
 protected:
  static at::Tensor load(const UnitLayout& unit, int64_t begin, int64_t count, at::TensorOptions options) {
    at::Tensor flat = at::full({count}, 7.0, options);
    random_weights(small_config(), /*seed=*/5)->copy_range(unit, begin, flat);
    return flat;
  }
};

TEST_F(RandomWeightsTest, WordsAreThoseOfPhilox) {
  const uint64_t key = 0x0123456789abcdefULL;
  for (const uint64_t stream : {uint64_t{0}, uint64_t{77}, uint64_t{1} << 40}) {
    at::Philox4_32 engine(key, stream, /*offset=*/0);
    uint32_t words[kNormalGroup];
    philox(key, stream, words);
    for (const uint32_t word : words) {
      EXPECT_EQ(word, engine()) << stream;
    }
  }
}

TEST_F(RandomWeightsTest, EveryDeviceMakesTheSameToRounding) {
  for (const UnitLayout& unit : unit_layouts(small_config())) {
    const at::Tensor expected = load(unit, 0, unit.numel, at::kFloat);
    EXPECT_LT(relative_error(load(unit, 0, unit.numel, options(at::kFloat)).cpu(), expected), 1e-6) << unit.name;
    EXPECT_LT(relative_error(load(unit, 0, unit.numel, options(at::kBFloat16)).cpu(), expected), 1.0 / 256);
  }
}

TEST_F(RandomWeightsTest, RangesEqualTheWholeOnEveryDevice) {
  const UnitLayout unit = unit_layouts(small_config())[0];
  const at::Tensor whole = load(unit, 0, unit.numel, options(at::kBFloat16));
  at::Tensor pieces = at::empty_like(whole);
  for (int64_t begin = 0; begin < unit.numel; begin += 1237) {
    const int64_t count = std::min<int64_t>(1237, unit.numel - begin);
    pieces.narrow(0, begin, count).copy_(load(unit, begin, count, options(at::kBFloat16)));
  }
  EXPECT_TRUE(at::equal(pieces, whole));
}

} // namespace
} // namespace distill::models
