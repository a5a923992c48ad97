#include "trainer/models/weight_source.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/trainer/hf/temporary_folder.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/describe_model.h"
#include "trainer/hf/folder_weights.h"
#include "trainer/hf/safetensors.h"
#include "trainer/hf/save_model.h"
#include "trainer/models/random_weights.h"

namespace distill::hf {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::string config_json(bool tied) {
  return absl::StrCat(
      R"({"_name_or_path": "/somewhere", "model_type": "qwen2", "vocab_size": 29, "hidden_size": 16,
    "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "custom": null, "torch_dtype": "float32",
    "initializer_range": 0.05, "tie_word_embeddings": )",
      tied ? "true" : "false", "}");
}

class WeightsTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    make_source("src", /*tied=*/false);
  }

  void make_source(const std::string& name, bool tied) {
    write(name + "/config.json", config_json(tied));
    write(name + "/tokenizer.json", "{\"tokenizer\": 1}");
    write(name + "/generation_config.json", "{}");
    write(name + "/README.md", "not copied");
    const auto read = read_model_config(path(name));
    ASSERT_TRUE(read.ok()) << read.status();
    config_ = *read;
    layouts_ = models::unit_layouts(config_);
  }

  static at::Tensor load(
      const models::WeightSource& source, const models::UnitLayout& unit, at::ScalarType dtype = at::kFloat) {
    at::Tensor flat = at::full({unit.numel}, 7.0, dtype);
    source.copy_range(unit, 0, flat);
    return flat;
  }

  // Random weights, saved as a folder.
  absl::Status save(const std::string& name, SaveOptions options = {}) {
    const auto random = models::random_weights(config_, 11);
    options.config_folder = options.config_folder.empty() ? path("src") : options.config_folder;
    return save_model(
        path(name), config_, [&](size_t i) -> absl::StatusOr<at::Tensor> { return load(*random, layouts_[i]); },
        options);
  }

  static SaveOptions fp32() {
    SaveOptions options;
    options.dtype = at::kFloat;
    return options;
  }

  // Rewrites the single file of a saved folder with `edit` applied to its tensors.
  void edit_tensors(const std::string& name, const std::function<void(std::map<std::string, at::Tensor>&)>& edit) {
    auto contents = read_safetensors(path(name + "/model.safetensors"));
    ASSERT_TRUE(contents.ok()) << contents.status();
    edit(contents->tensors);
    ASSERT_TRUE(write_safetensors(path(name + "/model.safetensors"), contents->tensors).ok());
  }

  std::string open_error(const std::string& name, Notes* notes = nullptr) {
    const auto weights = open_weights(path(name), config_, notes);
    return weights.ok() ? "opened" : std::string(weights.status().message());
  }

  models::ModelConfig config_;
  std::vector<models::UnitLayout> layouts_;
};

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
  const auto folder = open_weights(path("m"), config_);
  ASSERT_TRUE(folder.ok()) << folder.status();
  const auto random = models::random_weights(config_, 11);
  for (const models::WeightSource* source : {folder->get(), random.get()}) {
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
    const auto file = SafetensorsFile::open(path("bad"));
    ASSERT_TRUE(file.ok()) << file.status();
    for (const at::ScalarType wanted : {at::kFloat, at::kBFloat16}) {
      NonFinite bad;
      at::Tensor copy = at::empty({kElements - 1}, wanted);
      file->copy_elements(*file->find("w"), 1, copy, &bad);
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
  const auto file = SafetensorsFile::open(path("big"));
  ASSERT_TRUE(file.ok()) << file.status();
  const int64_t before = resident_file_bytes();
  at::Tensor copy = at::empty({kElements}, at::kBFloat16);
  file->copy_elements(*file->find("w"), 0, copy);
  EXPECT_LT(resident_file_bytes() - before, int64_t{20} << 20) << "of a file of 64 MiB";
  EXPECT_EQ(copy.sum().item<float>(), static_cast<float>(kElements));
}

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
      const auto folder = open_weights(path("m"), config_);
      ASSERT_TRUE(folder.ok()) << folder.status();
      for (const models::UnitLayout& unit : layouts_) {
        const at::Tensor expected = load(*random, unit).to(dtype).to(at::kFloat);
        EXPECT_TRUE(at::equal(load(**folder, unit), expected)) << unit.name;
        EXPECT_TRUE(at::equal(load(**folder, unit, at::kDouble), expected.to(at::kDouble))) << unit.name;
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
  EXPECT_FALSE(std::filesystem::exists(path("deep/er/m.tmp")));
}

TEST_F(WeightsTest, AnExistingTargetIsKeptUnlessAskedFor) {
  write("m/precious", "data");
  EXPECT_TRUE(absl::IsAlreadyExists(save("m")));
  EXPECT_EQ(read("m/precious"), "data");
  SaveOptions options;
  options.replace = true;
  ASSERT_TRUE(save("m", options).ok());
  EXPECT_FALSE(std::filesystem::exists(path("m/precious")));
  EXPECT_FALSE(std::filesystem::exists(path("m.old")));
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

TEST_F(WeightsTest, MissingUnexpectedAndMisshapenTensorsAreListed) {
  ASSERT_TRUE(save("m", fp32()).ok());
  edit_tensors("m", [](auto& tensors) {
    tensors.erase("model.norm.weight");
    tensors["model.layers.0.mlp.extra.weight"] = at::zeros({2});
    tensors["lm_head.weight"] = at::zeros({16, 29});
    tensors["model.layers.1.self_attn.q_proj.bias"] = at::zeros({16}, at::kLong);
  });
  EXPECT_THAT(
      open_error("m"),
      AllOf(
          HasSubstr(path("m")), HasSubstr("missing (1): model.norm.weight"),
          HasSubstr("unexpected inside the model (1): model.layers.0.mlp.extra.weight"), HasSubstr("save_pretrained()"),
          HasSubstr("lm_head.weight ([29, 16] expected, [16, 29] found)"),
          HasSubstr("model.layers.1.self_attn.q_proj.bias (I64)")));
}

TEST_F(WeightsTest, LongListsAreCut) {
  ASSERT_TRUE(save("m", fp32()).ok());
  edit_tensors("m", [](auto& tensors) {
    for (int i = 0; i < 50; ++i) {
      tensors[absl::StrCat("lm_head.", i)] = at::zeros({1});
    }
  });
  EXPECT_THAT(open_error("m"), AllOf(HasSubstr("unexpected inside the model (50)"), HasSubstr("and 30 more")));
}

TEST_F(WeightsTest, AnUntiedModelWithoutAHeadIsTold) {
  ASSERT_TRUE(save("m", fp32()).ok());
  edit_tensors("m", [](auto& tensors) { tensors.erase("lm_head.weight"); });
  EXPECT_THAT(
      open_error("m"), AllOf(HasSubstr("missing (1): lm_head.weight"), HasSubstr("tie_word_embeddings: true in its")));
}

TEST_F(WeightsTest, TensorsOutsideTheModelAreLeftOutWithALine) {
  ASSERT_TRUE(save("m", fp32()).ok());
  edit_tensors("m", [](auto& tensors) {
    for (const char* name :
         {"model.mtp.weight", "mtp.layers.0.norm.weight", "score.weight", "model.layers.2.mlp.up_proj.weight",
          "layers.7.input_layernorm.weight", "model.visual.embed_tokens.weight"}) {
      tensors[name] = at::zeros({3}, at::kLong);
    }
  });
  Notes notes;
  EXPECT_EQ(open_error("m", &notes), "opened");
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_TRUE(notes[0].is_warning);
  EXPECT_THAT(
      notes[0].text,
      AllOf(HasSubstr(path("m")), HasSubstr("left out"), HasSubstr("(6): layers.7."), HasSubstr("score.weight")));
}

TEST_F(WeightsTest, AHeadOfOtherValuesUntiesTheModel) {
  make_source("src", /*tied=*/true);
  ASSERT_TRUE(save("m", fp32()).ok());
  const auto with_head = [&](const std::function<at::Tensor(at::Tensor)>& head) {
    edit_tensors("m", [&](auto& tensors) {
      tensors["lm_head.weight"] = head(tensors["model.embed_tokens.weight"].clone()).contiguous();
    });
    Notes notes;
    const auto config = read_model_config(path("m"), {}, &notes);
    EXPECT_TRUE(config.ok()) << config.status();
    config_ = *config;
    layouts_ = models::unit_layouts(config_);
    EXPECT_EQ(notes.size(), config->tie_word_embeddings ? 0U : 1U);
    return config->tie_word_embeddings ? std::string("tied") : notes.at(0).text;
  };
  EXPECT_EQ(with_head([](at::Tensor table) { return table; }), "tied");
  EXPECT_THAT(with_head([](at::Tensor table) { return table.to(at::kBFloat16).to(at::kFloat); }), HasSubstr("untied"));
  edit_tensors("m", [](auto& tensors) {
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].to(at::kBFloat16).to(at::kFloat);
  });
  EXPECT_EQ(with_head([](at::Tensor table) { return table.to(at::kBFloat16); }), "tied") << "the same values";

  const std::string note = with_head([](at::Tensor table) {
    table[28][15] += 1;
    return table;
  });
  EXPECT_THAT(note, AllOf(HasSubstr("untied"), HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings: true")));
  const auto weights = open_weights(path("m"), config_);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const at::Tensor head = load(**weights, layouts_.back()), embedding = load(**weights, layouts_.front());
  const at::Tensor table = layouts_.front().view(embedding, "embedding");
  EXPECT_EQ((layouts_.back().view(head, "lm_head") != table).sum().item<int64_t>(), 1);

  ConfigOptions random;
  random.with_weights = false; // random weights have the ties of config.json
  EXPECT_TRUE(read_model_config(path("m"), random)->tie_word_embeddings);

  SaveOptions options = fp32();
  options.config_folder = path("m");
  ASSERT_TRUE(save("again", options).ok());
  EXPECT_THAT(read("again/config.json"), HasSubstr("\"tie_word_embeddings\": false"));
  EXPECT_EQ(open_error("again"), "opened");
}

TEST_F(WeightsTest, WithoutADtypeTheTensorsSayIt) {
  SaveOptions options;
  options.dtype = at::kBFloat16;
  ASSERT_TRUE(save("m", options).ok());
  for (const char* key : {"\"torch_dtype\": \"auto\"", "\"torch_dtype\": null"}) {
    std::string config = read("m/config.json");
    config.replace(
        config.find("\"torch_dtype\""),
        config.find(',', config.find("\"torch_dtype\"")) - config.find("\"torch_dtype\""), key);
    write("m/config.json", config);
    EXPECT_EQ(read_model_config(path("m"))->dtype, "bfloat16") << key;
  }
}

TEST_F(WeightsTest, HarmlessExtrasAreNoted) {
  make_source("src", /*tied=*/true);
  ASSERT_TRUE(save("m", fp32()).ok());
  edit_tensors("m", [](auto& tensors) {
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::zeros({2});
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone();
  });
  Notes notes;
  EXPECT_EQ(open_error("m", &notes), "opened");
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_FALSE(notes[0].is_warning || notes[1].is_warning);

  // Some writers keep the head's name of the shared tensor.
  const auto before = open_weights(path("m"), config_);
  const at::Tensor expected = load(**before, layouts_[0]);
  edit_tensors("m", [](auto& tensors) { tensors.erase("model.embed_tokens.weight"); });
  const auto after = open_weights(path("m"), config_);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_TRUE(at::equal(load(**after, layouts_[0]), expected));
}

TEST_F(WeightsTest, AFolderWithoutWeightsSaysWhatWasLookedFor) {
  EXPECT_THAT(open_error("src"), HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
  write("src/pytorch_model.bin", "pickle");
  EXPECT_THAT(open_error("src"), HasSubstr("save the model as safetensors first"));
}

TEST_F(WeightsTest, ShardsAreReadWhateverTheIndexListsThemFor) {
  SaveOptions options = fp32();
  options.max_shard_bytes = 3000;
  ASSERT_TRUE(save("m", options).ok());
  const std::string index_path = "m/model.safetensors.index.json";
  const auto weights = open_weights(path("m"), config_);
  const at::Tensor expected = load(**weights, layouts_.back());
  nlohmann::json index = nlohmann::json::parse(read(index_path));
  const std::string shard = index["weight_map"]["model.norm.weight"];
  const std::string other = index["weight_map"]["model.embed_tokens.weight"];
  ASSERT_NE(shard, other);
  const auto opened_with = [&](const char* note) {
    write(index_path, index.dump());
    Notes notes;
    EXPECT_EQ(open_error("m", &notes), "opened");
    ASSERT_EQ(notes.size(), 1U);
    EXPECT_THAT(notes[0].text, HasSubstr(note));
    EXPECT_TRUE(at::equal(load(**open_weights(path("m"), config_), layouts_.back()), expected));
  };
  index["weight_map"].erase("model.norm.weight");
  opened_with("does not list, and that are read all the same (1): model.norm.weight");
  index["weight_map"]["model.norm.weight"] = other;
  opened_with("read from another file than the index lists them for (1): model.norm.weight");
  index["weight_map"]["model.norm.weight"] = shard;

  // A tensor that the index leaves out is no part of the model, even inside a block.
  auto contents = read_safetensors(path("m/" + shard));
  contents->tensors["model.layers.0.mlp.extra.weight"] = at::zeros({2});
  ASSERT_TRUE(write_safetensors(path("m/" + shard), contents->tensors).ok());
  opened_with("left out");
  contents->tensors.erase("model.layers.0.mlp.extra.weight");

  // The same tensor in two files.
  auto twice = read_safetensors(path("m/" + other));
  twice->tensors["model.norm.weight"] = contents->tensors["model.norm.weight"].clone();
  ASSERT_TRUE(write_safetensors(path("m/" + shard), contents->tensors).ok());
  ASSERT_TRUE(write_safetensors(path("m/" + other), twice->tensors).ok());
  opened_with("two files have with equal values, and that are read once (1): model.norm.weight");
  twice->tensors["model.norm.weight"][3] += 1;
  ASSERT_TRUE(write_safetensors(path("m/" + other), twice->tensors).ok());
  EXPECT_THAT(open_error("m"), AllOf(HasSubstr("\"model.norm.weight\" is also in"), HasSubstr("with other values")));
}

TEST_F(WeightsTest, TensorsWithoutThePrefixAreFound) {
  make_source("src", /*tied=*/true);
  ASSERT_TRUE(save("m", fp32()).ok());
  const auto load_all = [&] {
    const auto weights = open_weights(path("m"), config_);
    EXPECT_TRUE(weights.ok()) << weights.status();
    return std::pair(load(**weights, layouts_[0]), load(**weights, layouts_[1]));
  };
  const auto expected = load_all();
  edit_tensors("m", [](auto& tensors) {
    std::map<std::string, at::Tensor> bare;
    for (const auto& [name, tensor] : tensors) {
      bare[name.substr(std::string("model.").size())] = tensor;
    }
    tensors = bare;
  });
  const auto found = load_all();
  EXPECT_TRUE(at::equal(found.first, expected.first) && at::equal(found.second, expected.second));
  Notes notes;
  EXPECT_EQ(open_error("m", &notes), "opened");
  EXPECT_EQ(notes.size(), 1U);
}

TEST_F(WeightsTest, AnIndexIsNotTrusted) {
  SaveOptions options = fp32();
  options.max_shard_bytes = 3000;
  ASSERT_TRUE(save("m", options).ok());
  const std::string index = "m/model.safetensors.index.json";
  const std::string good = read(index);
  ASSERT_EQ(open_error("m"), "opened");
  const auto with = [&](const std::string& text) {
    write(index, text);
    return open_error("m");
  };
  EXPECT_THAT(with("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(with("[]"), HasSubstr("weight_map"));
  EXPECT_THAT(with(R"({"weight_map": {}})"), HasSubstr("weight_map"));
  EXPECT_THAT(with(R"({"weight_map": {"a": 3}})"), HasSubstr("weight_map[\"a\"]"));
  for (const char* file : {"../src/config.json", "/etc/passwd", "..", "", "a/b.safetensors", "a\\\\b"}) {
    EXPECT_THAT(with(absl::StrCat(R"({"weight_map": {"a": ")", file, "\"}}")), HasSubstr("a file in the same folder"))
        << file;
  }
  EXPECT_THAT(
      with(R"({"weight_map": {"a": "none.safetensors"}})"),
      AllOf(HasSubstr("none.safetensors"), HasSubstr("lists it for \"a\"")));
  // The first shard, of however many.
  const std::string shard =
      good.substr(good.find("model-00001"), std::string("model-00001-of-00001.safetensors").size());
  EXPECT_THAT(with(absl::StrCat(R"({"weight_map": {"a": ")", shard, "\"}}")), HasSubstr("tensor \"a\" is missing"));
  std::string swapped = good;
  swapped.replace(swapped.find("model.norm.weight"), 17, "model.norm.weighs");
  EXPECT_THAT(with(swapped), HasSubstr("tensor \"model.norm.weighs\" is missing"));
  ASSERT_EQ(with(good), "opened");
  std::filesystem::remove(path("m/" + shard));
  EXPECT_THAT(open_error("m"), AllOf(HasSubstr(shard), HasSubstr("cannot open")));
}

TEST_F(WeightsTest, DescribeTellsWhatStandsInTheFolder) {
  ASSERT_TRUE(save("m", fp32()).ok());
  const auto text = describe_model(path("m"));
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_THAT(
      *text,
      AllOf(
          HasSubstr("qwen2, 2 layers"), HasSubstr("qkv bias"), HasSubstr("model.embed_tokens.weight"),
          HasSubstr("[29, 16]"), HasSubstr("F32"), HasSubstr("tokenizer.json"), HasSubstr("parameters")));
  const auto bare = describe_model(path("src"));
  ASSERT_TRUE(bare.ok()) << bare.status();
  EXPECT_THAT(*bare, HasSubstr("no weights"));
  edit_tensors("m", [](auto& tensors) { tensors.erase("model.norm.weight"); });
  EXPECT_FALSE(describe_model(path("m")).ok());
}

} // namespace
} // namespace distill::hf
