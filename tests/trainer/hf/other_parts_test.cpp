#include "trainer/hf/other_parts.h"

#include <nlohmann/json.hpp>

#include "tests/trainer/hf/weights_fixture.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Folders "multi" of a Llava model whose text model is that of the fixture.
class OtherPartsTest : public WeightsTest {
 protected:
  void make_multimodal(const std::string& decoder, const std::string& head) {
    ASSERT_TRUE(save("text", fp32()).ok());
    Json text = Json::parse(read("text/config.json"));
    write(
        "multi/config.json",
        Json{{"model_type", "llava"}, {"torch_dtype", "float32"}, {"text_config", text}, {"vision_config", {{"a", 1}}}}
            .dump());
    write("multi/tokenizer.json", "{\"tokenizer\": 1}");
    write("multi/processor_config.json", "{\"image\": 1}");
    write("multi/params.json", "{\"another format\": 1}");
    auto contents = read_safetensors(path("text/model.safetensors")).value();
    std::map<std::string, at::Tensor> tensors = others();
    for (const auto& [name, values] : contents.tensors) {
      tensors[TextNames{decoder, head}.stored(name)] = values;
    }
    ASSERT_TRUE(write_safetensors(path("multi/model.safetensors"), tensors).ok());
  }

  static std::map<std::string, at::Tensor> others() {
    return {
        {"vision_tower.layers.0.norm.weight", at::arange(5, at::kBFloat16)},
        {"vision_tower.position_ids", at::arange(7, at::kLong)},
        {"vision_tower.float8", at::arange(4, at::kFloat).to(at::kFloat8_e4m3fn)},
        {"multi_modal_projector.weight", at::full({3, 2}, 0.5, at::kDouble)},
        {"mtp.layers.0.weight", at::zeros({2, 0})}};
  }

  // Saves other weights for the text model, and returns all tensors of the saved folder.
  std::map<std::string, at::Tensor> saved(SaveOptions options) {
    options.config_folder = path("multi");
    options.replace = true;
    const absl::Status status = save("out", options);
    EXPECT_TRUE(status.ok()) << status;
    std::map<std::string, at::Tensor> tensors;
    for (const auto& entry : std::filesystem::directory_iterator(path("out"))) {
      if (entry.path().extension() == ".safetensors") {
        const auto contents = read_safetensors(entry.path().string());
        EXPECT_TRUE(contents.ok()) << contents.status();
        for (const auto& [name, values] : contents->tensors) {
          EXPECT_TRUE(tensors.emplace(name, values).second) << name;
        }
      }
    }
    return tensors;
  }
};

const std::pair<const char*, const char*> kSpellings[] = {
    {"model.language_model.", "lm_head."},
    {"language_model.model.", "language_model.lm_head."},
    {"language_model.", "lm_head."},
    {"model.", "lm_head."}};

TEST_F(OtherPartsTest, TheTextModelIsReadUnderEachPrefix) {
  for (const auto& [decoder, head] : kSpellings) {
    make_multimodal(decoder, head);
    const auto config = read_model_config(path("multi")).value();
    EXPECT_EQ(config.model_type, "qwen2");
    Notes notes;
    const auto weights = open_weights(path("multi"), config, &notes).value();
    const auto text = open_weights(path("text"), config_);
    for (const models::UnitLayout& unit : layouts_) {
      EXPECT_TRUE(at::equal(load(*weights, unit), load(**text, unit))) << unit.name;
    }
    ASSERT_GE(notes.size(), 1U);
    EXPECT_THAT(notes.back().text, AllOf(HasSubstr("saved models keep"), HasSubstr("vision_tower.layers.0.norm")));
    EXPECT_FALSE(notes.back().is_warning);
    std::filesystem::remove_all(path("text"));
  }
}

TEST_F(OtherPartsTest, ASavedModelKeepsTheOtherPartsAndTheNamesOfTheFolder) {
  for (const auto& [decoder, head] : kSpellings) {
    make_multimodal(decoder, head);
    for (const int64_t max_shard : {int64_t{5'000'000'000}, int64_t{3000}}) {
      SaveOptions options;
      options.max_shard_bytes = max_shard;
      options.dtype = at::kHalf;
      const std::map<std::string, at::Tensor> tensors = saved(options);
      size_t text = 0;
      for (const models::UnitLayout& unit : layouts_) {
        for (const models::FlatPiece& piece : models::flat_pieces(unit, 0, unit.numel)) {
          const std::string name = TextNames{decoder, head}.stored(piece.part->hf_name);
          ASSERT_TRUE(tensors.contains(name)) << name;
          EXPECT_EQ(tensors.at(name).scalar_type(), at::kHalf);
          ++text;
        }
      }
      EXPECT_EQ(tensors.size(), text + others().size());
      for (const auto& [name, values] : others()) {
        ASSERT_TRUE(tensors.contains(name)) << name;
        const at::Tensor& found = tensors.at(name);
        EXPECT_EQ(found.scalar_type(), values.scalar_type()) << name;
        EXPECT_EQ(found.sizes(), values.sizes()) << name;
        EXPECT_TRUE(at::equal(found.view(at::kByte), values.view(at::kByte))) << name;
      }
      const auto config = read_model_config(path("out")).value();
      EXPECT_EQ(config.dtype, "float16");
      EXPECT_TRUE(open_weights(path("out"), config).ok());
      EXPECT_EQ(read("out/processor_config.json"), "{\"image\": 1}");
      EXPECT_FALSE(std::filesystem::exists(path("out/params.json"))) << "it describes other weights";
    }
    std::filesystem::remove_all(path("text"));
  }
}

TEST_F(OtherPartsTest, TheConfigurationOfTheWholeStaysAsItIs) {
  make_multimodal("model.language_model.", "lm_head.");
  Json expected = Json::parse(read("multi/config.json"));
  saved(fp32());
  expected["architectures"] = {"LlavaForConditionalGeneration"};
  EXPECT_EQ(Json::parse(read("out/config.json")), expected);
}

TEST_F(OtherPartsTest, TheStoredHeadOfATiedModelIsNotKept) {
  make_source("src", /*tied=*/true);
  make_multimodal("model.language_model.", "lm_head.");
  edit_tensors("multi", [](auto& tensors) {
    tensors["lm_head.weight"] = tensors["model.language_model.embed_tokens.weight"].clone();
  });
  const auto config = read_model_config(path("multi"));
  ASSERT_TRUE(config.ok() && config->tie_word_embeddings) << config.status();
  EXPECT_FALSE(saved(fp32()).contains("lm_head.weight")) << "it would be that of the model before training";
}

TEST_F(OtherPartsTest, WithoutWeightsTheTextModelIsSavedAlone) {
  make_multimodal("model.language_model.", "lm_head.");
  std::filesystem::remove(path("multi/model.safetensors"));
  Notes notes;
  ASSERT_TRUE(read_model_config(path("multi"), {}, &notes).ok());
  ASSERT_FALSE(notes.empty());
  EXPECT_THAT(notes.back().text, HasSubstr("a folder of the text model alone"));
  EXPECT_TRUE(saved(fp32()).contains("model.embed_tokens.weight"));
  EXPECT_EQ(Json::parse(read("out/config.json"))["model_type"], "qwen2");
  const auto config = read_model_config(path("out")).value();
  EXPECT_TRUE(open_weights(path("out"), config).ok());
}

TEST_F(OtherPartsTest, AFolderWithoutTextOrWithTwoTextModelsIsAnError) {
  make_multimodal("model.language_model.", "lm_head.");
  const auto all = read_safetensors(path("multi/model.safetensors"))->tensors;
  ASSERT_TRUE(write_safetensors(path("multi/model.safetensors"), others()).ok());
  EXPECT_THAT(
      open_error("multi"),
      AllOf(
          HasSubstr(path("multi")), HasSubstr("no tensor of its text model (qwen2)"),
          HasSubstr("language_model.model."), HasSubstr("vision_tower.float8")));
  auto two = all;
  two["language_model.model.norm.weight"] = at::ones({16});
  ASSERT_TRUE(write_safetensors(path("multi/model.safetensors"), two).ok());
  EXPECT_THAT(open_error("multi"), AllOf(HasSubstr(path("multi")), HasSubstr("found two")));
  auto one_less = all;
  one_less.erase("model.language_model.norm.weight");
  one_less["model.language_model.layers.0.extra.weight"] = at::ones({1});
  ASSERT_TRUE(write_safetensors(path("multi/model.safetensors"), one_less).ok());
  EXPECT_THAT(
      open_error("multi"),
      AllOf(
          HasSubstr("missing (1): model.language_model.norm.weight"),
          HasSubstr("unexpected inside the model (1): model.language_model.layers.0.extra.weight")));
}

} // namespace
} // namespace distill::hf
