#include "trainer/hf/save_model.h"

#include <sys/stat.h>

#include "data/base/durable_file.h"
#include "tests/trainer/hf/weights_fixture.h"
#include "trainer/hf/model_checksums.h"

namespace distill::hf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(WeightsTest, ASavedFolderGivesTheSameWeights) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const int64_t max_shard : {int64_t{5'000'000'000}, int64_t{3000}}) {
      SaveOptions options;
      options.dtype = dtype;
      options.max_shard_bytes = max_shard;
      options.replace = true;
      ASSERT_TRUE(save("m", options).ok());
      EXPECT_EQ(std::filesystem::exists(path("m/model.safetensors")), max_shard > 3000);
      const auto random = models::random_weights(config_, 11);
      const auto folder = open_weights(path("m"), config_).value();
      for (const models::UnitLayout& unit : layouts_) {
        const at::Tensor expected = load(*random, unit).to(dtype).to(at::kFloat);
        EXPECT_TRUE(at::equal(load(*folder, unit), expected)) << unit.name;
        EXPECT_TRUE(at::equal(load(*folder, unit, at::kDouble), expected.to(at::kDouble))) << unit.name;
      }
    }
  }
}

TEST_F(WeightsTest, SavingCopiesConfigurationAndTokenizer) {
  SaveOptions options;
  options.dtype = at::kHalf;
  ASSERT_TRUE(save("deep/er/m", options).ok());
  EXPECT_EQ(read("deep/er/m/tokenizer.json"), "{\"tokenizer\": 1}");
  EXPECT_FALSE(std::filesystem::exists(path("deep/er/m/README.md")));
  EXPECT_TRUE(std::filesystem::exists(path("deep/er/m/generation_config.json")));
  const std::string config = read("deep/er/m/config.json");
  EXPECT_THAT(
      config,
      AllOf(HasSubstr("\"torch_dtype\": \"float16\""), HasSubstr("Qwen2ForCausalLM"), Not(HasSubstr("/somewhere"))));
  EXPECT_TRUE(read_model_config(path("deep/er/m")).ok());
  EXPECT_FALSE(std::filesystem::exists(path("deep/er/m") + base::kUnfinishedFolder));
}

TEST_F(WeightsTest, AnExistingTargetIsKeptUnlessAskedFor) {
  for (const char* other : {"m/precious", "m.old/precious", "m.tmp/precious"}) {
    write(other, "data");
  }
  EXPECT_TRUE(absl::IsAlreadyExists(save("m")));
  EXPECT_EQ(read("m/precious"), "data");
  SaveOptions options;
  options.replace = true;
  ASSERT_TRUE(save("m", options).ok());
  EXPECT_FALSE(std::filesystem::exists(path("m/precious")));
  EXPECT_FALSE(std::filesystem::exists(path("m") + base::kReplacedFolder));
  EXPECT_EQ(read("m.old/precious") + read("m.tmp/precious"), "datadata") << "they are somebody else's";
}

TEST_F(WeightsTest, AFolderThatIsWrittenInPlaceKeepsItsFilesAndIsWholeAtTheEnd) {
  SaveOptions options;
  options.dtype = at::kFloat;
  options.in_place = true;
  ASSERT_TRUE(save("m", options).ok());
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(path("m/model.safetensors").c_str(), &before), 0);
  write("m/stale.txt", "of an earlier model");
  options.dtype = at::kBFloat16; // a shorter file
  ASSERT_TRUE(save("m", options).ok());
  ASSERT_EQ(::stat(path("m/model.safetensors").c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_LT(after.st_size, before.st_size);
  EXPECT_FALSE(std::filesystem::exists(path("m/stale.txt")));
  const auto random = models::random_weights(config_, 11);
  const auto folder = open_weights(path("m"), config_).value();
  for (const models::UnitLayout& unit : layouts_) {
    EXPECT_TRUE(at::equal(load(*folder, unit), load(*random, unit).to(at::kBFloat16).to(at::kFloat))) << unit.name;
  }
  EXPECT_TRUE(verify_model_folder(path("m")).ok());
  EXPECT_FALSE(std::filesystem::exists(path("m") + base::kUnfinishedFolder));

  options.config_folder = path("src");
  const auto fails = [](size_t) -> absl::StatusOr<at::Tensor> { return absl::UnavailableError("killed"); };
  EXPECT_TRUE(absl::IsUnavailable(save_model(path("m"), config_, fails, options)));
  EXPECT_FALSE(std::filesystem::exists(path("m/checksums.xxh3"))); // nobody takes it for whole
}

TEST_F(WeightsTest, AFailedSaveLeavesNothingBehind) {
  const std::vector<std::string> before = names();
  write("old/keep", "data");
  SaveOptions options;
  options.config_folder = path("src");
  options.replace = true;
  const auto random = models::random_weights(config_, 11);
  const absl::Status status = save_model(
      path("old"), config_,
      [&](size_t i) -> absl::StatusOr<at::Tensor> {
        if (i == 2) {
          return absl::UnavailableError("the other rank is gone");
        }
        return load(*random, layouts_[i]);
      },
      options);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(read("old/keep"), "data");
  std::filesystem::remove_all(path("old"));
  EXPECT_EQ(names(), before);

  options.config_folder = path("nowhere");
  EXPECT_FALSE(save("n", options).ok());
  options.config_folder = path("src");
  options.dtype = at::kInt;
  EXPECT_FALSE(save("n", options).ok());
  EXPECT_EQ(names(), before);
}

} // namespace
} // namespace distill::hf
