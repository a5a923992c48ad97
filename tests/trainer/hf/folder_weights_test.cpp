#include "trainer/hf/folder_weights.h"

#include <nlohmann/json.hpp>

#include "tests/trainer/hf/weights_fixture.h"
#include "trainer/hf/describe_model.h"

namespace distill::hf {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
  const auto weights = open_weights(path("m"), config_).value();
  const at::Tensor head = load(*weights, layouts_.back()), embedding = load(*weights, layouts_.front());
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
  const auto after = open_weights(path("m"), config_).value();
  EXPECT_TRUE(at::equal(load(*after, layouts_[0]), expected));
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

  // Two files have the same tensor.
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
  const auto text = describe_model(path("m")).value();
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("qwen2, 2 layers"), HasSubstr("qkv bias"), HasSubstr("model.embed_tokens.weight"),
          HasSubstr("[29, 16]"), HasSubstr("F32"), HasSubstr("tokenizer.json"), HasSubstr("parameters")));
  const auto bare = describe_model(path("src")).value();
  EXPECT_THAT(bare, HasSubstr("no weights"));
  edit_tensors("m", [](auto& tensors) { tensors.erase("model.norm.weight"); });
  EXPECT_FALSE(describe_model(path("m")).ok());
}

} // namespace
} // namespace distill::hf
