#include "data/added_tokens.h"

#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>

#include "data/base/json.h"
#include "data/base/status_macros.h"

namespace distill::data {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json; // the order of the keys decides about ids

constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
constexpr int kMaxDepth = 100;
constexpr std::array<const char*, 7> kNamed = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kType = "__type"; // the key that marks an object as a token
constexpr const char* kAddedToken = "AddedToken";

bool is_named(const std::string& key) {
  return std::find(kNamed.begin(), kNamed.end(), key) != kNamed.end();
}

// A text, or an object with `content`.
struct Token {
  std::string text;
  bool special = false;
};

std::optional<Token> as_token(const Json& json) {
  if (json.is_string()) {
    return Token{json.get<std::string>(), /*special=*/true};
  }
  if (json.is_object() && json.contains("content") && json["content"].is_string()) {
    return Token{json["content"].get<std::string>(), json.contains("special") && json["special"] == true};
  }
  return std::nullopt;
}

absl::Status unexpected(
    const std::string& file, const std::string& key, const std::string& expected, const Json& found) {
  std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
  text = text.size() > 80 ? absl::StrCat(text.substr(0, 77), "...") : text;
  return absl::InvalidArgumentError(absl::StrCat(file, ": `", key, "`: expected ", expected, ", found ", text));
}

// The tokens that the other files of a tokenizer.json's folder name, in the order in which transformers adds them.
class ConfigReader {
 public:
  // `tokenizer`: the content of tokenizer.json without its vocabulary.
  absl::Status read(const fs::path& folder, const Json& tokenizer) {
    folder_ = folder;
    file_ = (folder / "tokenizer_config.json").string();
    ASSIGN_OR_RETURN(config_, read_object(file_));
    for (auto it = config_.begin(); it != config_.end();) {
      const bool own = absl::EndsWith(it.key(), "_token") && !is_named(it.key()) && it->is_string();
      if (own) {
        model_specific_.push_back(it->get<std::string>());
      }
      it = own ? config_.erase(it) : std::next(it);
    }
    move_extra();
    if (config_.contains("added_tokens_decoder")) {
      RETURN_IF_ERROR(read_decoder(config_["added_tokens_decoder"]));
    } else {
      RETURN_IF_ERROR(read_legacy_files(tokenizer));
    }
    return read_named(tokenizer);
  }

  std::vector<Token> tokens(const std::map<int64_t, AddedToken>& present) const {
    std::vector<Token> out;
    std::unordered_map<std::string, bool> known;
    for (const auto& [id, token] : present) {
      known[token.text] = true;
    }
    for (const auto& [id, token] : decoder_) {
      out.push_back(token);
      known[token.text] = true;
    }
    for (const Token& token : named_) {
      if (!known.contains(token.text)) {
        out.push_back(token);
      }
    }
    for (Token& token : out) {
      token.special = token.special || std::any_of(named_.begin(), named_.begin() + names_, [&](const Token& named) {
                        return named.text == token.text;
                      });
    }
    return out;
  }

 private:
  static absl::StatusOr<Json> read_object(const std::string& file) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) {
      return Json::object();
    }
    ASSIGN_OR_RETURN(const std::string text, base::read_text_file(file, kMaxFileBytes));
    ASSIGN_OR_RETURN(Json json, base::parse_json(text, file, kMaxDepth));
    if (!json.is_object()) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": expected a JSON object, found ", json.type_name()));
    }
    return json;
  }

  // `extra_special_tokens` may give names to its tokens, and older files call it otherwise.
  void move_extra() {
    if (config_.contains("additional_special_tokens")) {
      if (!config_.contains(kExtra)) {
        config_[kExtra] = config_["additional_special_tokens"];
      }
      config_.erase("additional_special_tokens");
    }
    if (config_.contains(kExtra) && config_[kExtra].is_object()) {
      for (const Json& value : config_[kExtra]) {
        if (const auto token = as_token(value)) {
          model_specific_.push_back(token->text);
        }
      }
      config_.erase(kExtra);
    }
  }

  absl::Status read_decoder(const Json& decoder) {
    if (!decoder.is_object()) {
      return unexpected(file_, "added_tokens_decoder", "an object", decoder);
    }
    for (const auto& [index, value] : decoder.items()) {
      int64_t id = 0;
      const auto token = as_token(value);
      if (!absl::SimpleAtoi(index, &id) || !token || value.is_string()) {
        return unexpected(
            file_, absl::StrCat("added_tokens_decoder.", index), "an id and an object with `content`", value);
      }
      decoder_[id] = *token;
    }
    return absl::OkStatus();
  }

  absl::Status read_legacy_files(const Json& tokenizer) {
    const std::string map_file = (folder_ / "special_tokens_map.json").string();
    ASSIGN_OR_RETURN(Json map, read_object(map_file));
    for (auto& [key, value] : map.items()) {
      if (value.is_object() && key != kExtra) {
        value["special"] = true;
        value[kType] = kAddedToken;
      }
      if (key == kExtra && value.is_array() && config_.contains(kExtra) && config_[kExtra].is_array()) {
        for (const Json& one : value) {
          config_[kExtra].push_back(one);
          if (one.is_object()) {
            config_[kExtra].back()["special"] = true;
          }
        }
      } else {
        config_[key] = value;
      }
    }
    move_extra();
    const std::string added_file = (folder_ / "added_tokens.json").string();
    ASSIGN_OR_RETURN(const Json added, read_object(added_file));
    for (const auto& [text, id] : added.items()) {
      if (!id.is_number_integer()) {
        return unexpected(added_file, text, "an id", id);
      }
      decoder_[id.get<int64_t>()] = {text, is_special(text)};
    }
    if (tokenizer.contains("added_tokens") && tokenizer["added_tokens"].is_array()) {
      for (const Json& one : tokenizer["added_tokens"]) {
        const auto token = as_token(one);
        if (token && one.is_object() && one.contains("id") && one["id"].is_number_integer()) {
          decoder_[one["id"].get<int64_t>()] = *token;
        }
      }
    }
    return absl::OkStatus();
  }

  bool is_special(const std::string& text) const {
    const auto is_text = [&](const Json& json) {
      const auto token = as_token(json);
      return token && token->text == text;
    };
    const bool named = std::any_of(
        kNamed.begin(), kNamed.end(), [&](const char* key) { return config_.contains(key) && is_text(config_[key]); });
    return named || (config_.contains(kExtra) && std::any_of(config_[kExtra].begin(), config_[kExtra].end(), is_text));
  }

  absl::Status read_named(const Json& tokenizer) {
    const auto add = [&](const std::string& key, const Json& value) -> absl::Status {
      const auto token = as_token(value);
      if (!token) {
        return unexpected(file_, key, "a token, a text or an object with `content`", value);
      }
      named_.push_back(*token);
      return absl::OkStatus();
    };
    if (!config_.contains("pad_token") && tokenizer.contains("padding") && tokenizer["padding"].is_object() &&
        tokenizer["padding"].contains("pad_token") && tokenizer["padding"]["pad_token"].is_string()) {
      config_["pad_token"] = tokenizer["padding"]["pad_token"];
    }
    for (const char* key : kNamed) {
      if (config_.contains(key) && !config_[key].is_null()) {
        RETURN_IF_ERROR(add(key, config_[key]));
      }
    }
    for (const auto& [key, value] : config_.items()) {
      const bool is_token = value.is_string() || (value.is_object() && value.value(kType, "") == kAddedToken);
      if (absl::EndsWith(key, "_token") && !is_named(key) && is_token) {
        RETURN_IF_ERROR(add(key, value));
      }
    }
    for (const std::string& text : model_specific_) {
      named_.push_back({text, true});
    }
    names_ = static_cast<std::ptrdiff_t>(named_.size());
    if (config_.contains(kExtra) && !config_[kExtra].is_null()) {
      if (!config_[kExtra].is_array()) {
        return unexpected(file_, kExtra, "a list", config_[kExtra]);
      }
      for (const Json& one : config_[kExtra]) {
        RETURN_IF_ERROR(add(kExtra, one));
      }
    }
    return absl::OkStatus();
  }

  fs::path folder_;
  std::string file_; // tokenizer_config.json
  Json config_;
  std::map<int64_t, Token> decoder_; // added_tokens_decoder, or what older files have in its place
  std::vector<std::string> model_specific_; // tokens with names of their own
  std::vector<Token> named_; // bos_token, ..., then tokens with names of their own; then the extra special tokens
  std::ptrdiff_t names_ = 0; // of named_ that have a name
};

// Gives ids as the tokenizers library does when tokens are added in one call.
class Adder {
 public:
  explicit Adder(const std::vector<std::pair<int64_t, std::string>>& vocabulary)
      : size_(static_cast<int64_t>(vocabulary.size())) {
    ids_.reserve(vocabulary.size());
    for (const auto& [id, text] : vocabulary) {
      ids_.emplace(text, id);
    }
  }

  absl::Status add(const std::string& file, const std::vector<Token>& tokens) {
    int64_t next = added_.empty() ? size_ : std::max(added_.rbegin()->first + 1, size_);
    for (const Token& token : tokens) {
      if (token.text.empty()) {
        continue;
      }
      const auto [found, is_new] = ids_.try_emplace(token.text, next);
      next += is_new ? 1 : 0;
      const auto [at, is_free] = added_.try_emplace(found->second);
      if (!is_free && at->second.text != token.text) {
        return absl::InvalidArgumentError(absl::StrCat(
            file, ": added tokens \"", absl::Utf8SafeCEscape(at->second.text), "\" and \"",
            absl::Utf8SafeCEscape(token.text), "\": expected an id for each, found ", found->second,
            " for both (the ids of the vocabulary have gaps)"));
      }
      at->second = {found->second, token.text, token.special};
    }
    return absl::OkStatus();
  }

  const std::map<int64_t, AddedToken>& added() const {
    return added_;
  }

 private:
  int64_t size_; // tokens of the vocabulary
  std::unordered_map<std::string, int64_t> ids_; // of all tokens
  std::map<int64_t, AddedToken> added_;
};

} // namespace

absl::StatusOr<std::vector<AddedToken>> read_added_tokens(
    const std::string& file, const nlohmann::json& root,
    const std::vector<std::pair<int64_t, std::string>>& vocabulary) {
  Json json = Json::object();
  for (const char* key : {"added_tokens", "padding"}) {
    if (root.contains(key)) {
      json[key] = Json(root[key]);
    }
  }
  std::vector<Token> of_file;
  if (json.contains("added_tokens") && json["added_tokens"].is_array()) {
    for (const Json& one : json["added_tokens"]) {
      if (const auto token = as_token(one)) {
        of_file.push_back(*token);
      }
    }
  }
  Adder adder(vocabulary);
  RETURN_IF_ERROR(adder.add(file, of_file));
  ConfigReader config;
  RETURN_IF_ERROR(config.read(fs::path(file).parent_path(), json));
  RETURN_IF_ERROR(adder.add(file, config.tokens(adder.added())));
  std::vector<AddedToken> out;
  for (const auto& [id, token] : adder.added()) {
    out.push_back(token);
  }
  return out;
}

} // namespace distill::data
