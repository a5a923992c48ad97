#include "trainer/hf/text_config.h"

#include <gmock/gmock.h>

#include "tests/trainer/hf/temporary_folder.h"
#include "trainer/hf/config_json.h"
#include "trainer/hf/end_of_text.h"

namespace distill::hf {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* const kMistral3 = R"({
  "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "image_token_index": 10,
  "multimodal_projector_bias": false, "projector_hidden_act": "gelu", "spatial_merge_size": 2, "dtype": "bfloat16",
  "vision_feature_layer": -1, "vision_config": {"model_type": "pixtral", "hidden_size": 1024, "dtype": "float16"},
  "text_config": {"model_type": "mistral", "hidden_size": 512, "num_hidden_layers": 3, "sliding_window": null,
                  "rope_theta": 1000000.0}})";

// kMistral3 with the changes of two JSON merge patches, of the whole and of text_config.
Json mistral3(const std::string& whole = "{}", const std::string& text = "{}") {
  Json json = Json::parse(kMistral3);
  json["text_config"].merge_patch(Json::parse(text));
  json.merge_patch(Json::parse(whole));
  return json;
}

absl::StatusOr<models::ModelConfig> read(const Json& json, Notes* notes = nullptr) {
  return parse_model_config(json.dump(), "config.json", {}, notes);
}

std::string error_of(const Json& json) {
  const auto config = read(json);
  return config.ok() ? "read" : std::string(config.status().message());
}

TEST(TextConfigTest, KeysThatTextConfigLacksHaveTheDefaultsOfItsClass) {
  Notes notes;
  const auto config = read(mistral3(), &notes).value();
  EXPECT_EQ(config.model_type, "mistral");
  EXPECT_EQ(config.hidden_size, 512);
  EXPECT_EQ(config.num_layers(), 3);
  EXPECT_EQ(config.vocab_size, 32000);
  EXPECT_EQ(config.kinds[0].mlp.ffn, 14336);
  EXPECT_EQ(config.kinds[0].attention.heads, 32);
  EXPECT_EQ(config.kinds[0].attention.kv_heads, 8);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_EQ(config.ropes[0].theta, 1e6);
  EXPECT_EQ(config.dtype, "bfloat16") << "of the whole";
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_FALSE(notes[0].is_warning);
  EXPECT_THAT(
      notes[0].text,
      AllOf(HasSubstr("config.json: "), HasSubstr("mistral3"), HasSubstr("vocab_size 32000, intermediate_size 14336")));
}

TEST(TextConfigTest, ATextConfigWithoutModelTypeIsThatOfTheWhole) {
  EXPECT_EQ(read(mistral3("{}", R"({"model_type": null})"))->model_type, "mistral");
  const auto llava = read(mistral3(R"({"model_type": "llava"})", R"({"model_type": null})")).value();
  EXPECT_EQ(llava.model_type, "llama");
  EXPECT_EQ(llava.kinds[0].mlp.ffn, 11008);
}

TEST(TextConfigTest, TheModelIsTiedIfTheWholeOrItsTextSaysSo) {
  EXPECT_TRUE(read(mistral3())->tie_word_embeddings) << "the default of the class of the whole";
  EXPECT_FALSE(read(mistral3(R"({"tie_word_embeddings": false})"))->tie_word_embeddings);
  EXPECT_TRUE(
      read(mistral3(R"({"tie_word_embeddings": false})", R"({"tie_word_embeddings": true})"))->tie_word_embeddings);
  EXPECT_FALSE(read(mistral3(R"({"model_type": "llava"})"))->tie_word_embeddings);
  EXPECT_TRUE(read(mistral3(R"({"model_type": "llava"})", R"({"tie_word_embeddings": true})"))->tie_word_embeddings);
}

TEST(TextConfigTest, TheDtypeOfTheWholeIsUsedAndAnotherOneOfTheTextIsNoted) {
  Notes notes;
  EXPECT_EQ(read(mistral3("{}", R"({"torch_dtype": "float32"})"), &notes)->dtype, "bfloat16");
  ASSERT_EQ(notes.size(), 2U);
  EXPECT_THAT(notes[1].text, AllOf(HasSubstr("\"bfloat16\" is used"), HasSubstr("\"float32\"")));
  EXPECT_EQ(read(mistral3(R"({"dtype": null})", R"({"torch_dtype": "float16"})"))->dtype, "float16");
}

TEST(TextConfigTest, ProblemsNameTheirPlace) {
  EXPECT_THAT(error_of(mistral3(R"({"text_config": null})")), HasSubstr("text_config: an object"));
  EXPECT_THAT(
      error_of(mistral3("{}", R"({"model_type": "mamba"})")),
      AllOf(
          HasSubstr("config.json: text_config: model_type: \"mamba\" is not supported"), HasSubstr("qwen3"),
          ::testing::Not(HasSubstr("mistral3"))));
  EXPECT_THAT(
      error_of(mistral3(R"({"model_type": "other"})")),
      HasSubstr(
          "config.json: model_type: llava, mistral3, gemma3, gemma4, gemma4_unified, qwen3_5 or qwen3_5_moe is expected where the file has a "
          "text_config, found \"other\""));
  EXPECT_THAT(error_of(mistral3("{}", R"({"hidden_size": 0})")), HasSubstr("text_config: hidden_size: an integer"));
  EXPECT_THAT(error_of(mistral3("{}", R"({"strange": 1})")), HasSubstr("config.json: text_config: strange: unknown"));
  EXPECT_THAT(error_of(mistral3(R"({"strange": 1})")), HasSubstr("config.json: strange: unknown key"));
  EXPECT_THAT(error_of(mistral3(R"({"hidden_size": 512})")), HasSubstr("config.json: hidden_size: unknown key"));
  EXPECT_THAT(
      error_of(mistral3(R"({"quantization_config": {"quant_method": "fp8"}})")),
      HasSubstr("config.json: quantization_config: quantised weights are not supported"));
  EXPECT_THAT(
      error_of(mistral3("{}", R"({"tie_word_embeddings": "yes"})")),
      HasSubstr("text_config: tie_word_embeddings: true or false"));
  EXPECT_TRUE(parse_model_config(mistral3(R"({"strange": 1})").dump(), "config.json", {"strange"}).ok());
}

TEST(TextConfigTest, TyingIsWrittenWhereItsReadersLookAndOnlyIfItChanges) {
  Json json = mistral3();
  set_tied(json, true); // tied by the default of the whole, which readers of text_config do not know
  EXPECT_EQ(json, mistral3("{}", R"({"tie_word_embeddings": true})"));
  json = mistral3();
  set_tied(json, false);
  EXPECT_EQ(json, mistral3(R"({"tie_word_embeddings": false})"));
  json = Json{{"model_type", "llama"}};
  set_tied(json, false);
  EXPECT_EQ(json, (Json{{"model_type", "llama"}}));
  set_tied(json, true);
  EXPECT_EQ(json["tie_word_embeddings"], true);
}

TEST(TextConfigTest, TheDtypesOfOtherPartsStay) {
  Json json = mistral3("{}", R"({"torch_dtype": "bfloat16"})");
  set_text_dtype(json, "float32");
  EXPECT_EQ(json, mistral3(R"({"dtype": "float32"})", R"({"torch_dtype": "float32"})"));
  json = mistral3(R"({"dtype": null})");
  set_text_dtype(json, "float16");
  EXPECT_EQ(json["torch_dtype"], "float16");
  EXPECT_EQ(json["vision_config"]["dtype"], "float16");
  EXPECT_FALSE(json["text_config"].contains("torch_dtype"));
}

class EndOfTextTest : public FolderTest {
 protected:
  std::vector<int64_t> ids() {
    const auto found = end_of_text_ids(path("m"));
    EXPECT_TRUE(found.ok()) << found.status();
    return found.value_or(std::vector<int64_t>{-1});
  }
};

TEST_F(EndOfTextTest, TheGenerationConfigThenTheWholeThenTheTextWithItsDefaultDecides) {
  write("m/config.json", mistral3().dump());
  EXPECT_THAT(ids(), ElementsAre(2)) << "MistralConfig's";
  write("m/config.json", mistral3("{}", R"({"eos_token_id": [5, 6]})").dump());
  EXPECT_THAT(ids(), ElementsAre(5, 6));
  write("m/config.json", mistral3(R"({"eos_token_id": 7})", R"({"eos_token_id": [5, 6]})").dump());
  EXPECT_THAT(ids(), ElementsAre(7));
  write("m/generation_config.json", R"({"eos_token_id": [1, 106]})");
  EXPECT_THAT(ids(), ElementsAre(1, 106));
  write("m/generation_config.json", "{}");
  EXPECT_THAT(ids(), IsEmpty());
}

} // namespace
} // namespace distill::hf
