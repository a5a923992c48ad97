#include "data/tokenizer.h"

#include <absl/strings/str_cat.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "data/added_tokens.h"
#include "data/base/mapped_file.h"
#include "data/base/status_macros.h"

namespace distill::data {

namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxId = (int64_t{1} << 32) - 1;
constexpr int64_t kMaxDepth = 100; // of nesting: printing a value takes a stack frame for each level

// Carries a message to read_tokenizer, which catches it.
struct BadTokenizer : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The same with a message that names its file.
struct BadFile : std::runtime_error {
  explicit BadFile(absl::Status bad) : std::runtime_error("bad file"), status(std::move(bad)) {}
  absl::Status status;
};

void expect(bool ok, const std::string& key, const std::string& expected, const Json& found) {
  if (!ok) {
    std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 80) {
      text = absl::StrCat(text.substr(0, 77), "...");
    }
    throw BadTokenizer(absl::StrCat("`", key, "`: expected ", expected, ", found ", text));
  }
}

int64_t nesting_depth(absl::Span<const uint8_t> json) {
  int64_t depth = 0;
  int64_t deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const uint8_t c = json[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

const Json& member(const Json& object, const char* name) {
  static const Json null;
  const auto it = object.find(name);
  return it == object.end() ? null : *it;
}

int64_t token_id(const Json& id, const std::string& key) {
  expect(id.is_number_integer(), key, "an id", id);
  const auto value = id.get<int64_t>();
  expect(value >= 0 && value <= kMaxId, key, "an id of 0 to 2^32 - 1", id);
  return value;
}

// Removes members that spell out a default, which other versions of the library leave out, and members that only
// concern offsets: they do not make two tokenizers different.
Json without_defaults(const Json& json) {
  if (json.is_array()) {
    Json out = Json::array();
    for (const Json& item : json) {
      out.push_back(without_defaults(item));
    }
    return out;
  }
  if (!json.is_object()) {
    return json;
  }
  Json out = Json::object();
  for (const auto& [name, value] : json.items()) {
    const bool is_default = value.is_null() || value == false || name == "trim_offsets" ||
        (name == "use_regex" && value == true) || (name == "split" && value == true);
    if (!is_default) {
      out[name] = without_defaults(value);
    }
  }
  return out;
}

std::string canonical(const Json& json) {
  return without_defaults(json).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void read_vocab(const Json& vocab, Tokenizer& out) {
  if (out.model == "Unigram") {
    expect(vocab.is_array(), "model.vocab", "a list of [token, score]", vocab);
    for (const Json& entry : vocab) {
      const std::string key = absl::StrCat("model.vocab[", out.tokens.size(), "]");
      expect(
          entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_number(), key, "[token, score]",
          entry);
      out.scores.push_back(entry[1].get<double>());
      out.tokens.emplace_back(static_cast<int64_t>(out.tokens.size()), entry[0].get_ref<const std::string&>());
    }
    return;
  }
  expect(vocab.is_object(), "model.vocab", "an object of token: id", vocab);
  out.tokens.reserve(vocab.size());
  for (auto it = vocab.begin(); it != vocab.end(); ++it) {
    const Json& id = it.value();
    const bool plain = id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(kMaxId);
    out.tokens.emplace_back(
        plain ? id.get<int64_t>() : token_id(id, absl::StrCat("model.vocab[\"", it.key(), "\"]")), it.key());
  }
}

void read_merges(const Json& merges, Tokenizer& out) {
  expect(merges.is_null() || merges.is_array(), "model.merges", "a list", merges);
  out.merges.reserve(merges.size());
  for (const Json& merge : merges) {
    if (merge.is_string()) { // "a b", the older spelling
      const auto& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      const std::string key = absl::StrCat("model.merges[", out.merges.size(), "]");
      expect(space != std::string::npos, key, "two tokens with a space between", merge);
      out.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    } else {
      const bool pair = merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
      if (!pair) {
        expect(false, absl::StrCat("model.merges[", out.merges.size(), "]"), "[token, token]", merge);
      }
      out.merges.emplace_back(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
    }
  }
}

// The type of the model, which older files do not state.
std::string model_type(const Json& model) {
  if (member(model, "type").is_string()) {
    return model["type"].get<std::string>();
  }
  expect(member(model, "type").is_null(), "model.type", "a string", member(model, "type"));
  return model.contains("merges") ? "BPE" : member(model, "vocab").is_array() ? "Unigram" : "WordPiece";
}

Tokenizer parse(const Json& root, const std::string& file) {
  Tokenizer out;
  out.path = file;
  expect(root.is_object(), "tokenizer.json", "an object", root);
  const Json& model = member(root, "model");
  expect(model.is_object(), "model", "an object", model);
  out.model = model_type(model);
  read_vocab(member(model, "vocab"), out);
  read_merges(member(model, "merges"), out);
  const Json& added = member(root, "added_tokens");
  expect(added.is_null() || added.is_array(), "added_tokens", "a list", added);
  for (size_t i = 0; i < added.size(); ++i) {
    const std::string key = absl::StrCat("added_tokens[", i, "]");
    expect(added[i].is_object(), key, "an object", added[i]);
    const Json& content = member(added[i], "content");
    expect(content.is_string(), absl::StrCat(key, ".content"), "a string", content);
    token_id(member(added[i], "id"), absl::StrCat(key, ".id"));
  }
  auto with_files = read_added_tokens(file, root, out.tokens);
  if (!with_files.ok()) {
    throw BadFile(with_files.status());
  }
  out.added = *std::move(with_files);
  for (const AddedToken& one : out.added) {
    out.tokens.emplace_back(one.id, one.text);
  }
  std::sort(out.tokens.begin(), out.tokens.end());
  out.tokens.erase(std::unique(out.tokens.begin(), out.tokens.end()), out.tokens.end());
  expect(!out.tokens.empty(), "model.vocab", "at least one token", member(model, "vocab"));
  Json options = Json::object();
  for (const auto& [name, value] : model.items()) {
    if (name != "vocab" && name != "merges" && name != "type") {
      options[name] = value;
    }
  }
  out.model_options = canonical(options);
  out.normalizer = canonical(member(root, "normalizer"));
  out.pre_tokenizer = canonical(member(root, "pre_tokenizer"));
  out.decoder = member(root, "decoder").dump(-1, ' ', false, Json::error_handler_t::replace);
  return out;
}

} // namespace

absl::StatusOr<Tokenizer> read_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::string file = path;
  if (fs::is_directory(path, error)) {
    file = (fs::path(path) / "tokenizer.json").string();
    if (!fs::exists(file, error)) {
      return absl::NotFoundError(absl::StrCat(
          file,
          ": no such file (AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes it)"));
    }
  }
  ASSIGN_OR_RETURN(const base::MappedFile mapped, base::MappedFile::open(file));
  if (mapped.size() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": the file is empty"));
  }
  if (const int64_t depth = nesting_depth({mapped.bytes(), mapped.size()}); depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": expected JSON nested at most ", kMaxDepth, " deep, found ", depth));
  }
  try {
    return parse(Json::parse(mapped.bytes(), mapped.bytes() + mapped.size()), file);
  } catch (const BadFile& bad) {
    return bad.status;
  } catch (const BadTokenizer& bad) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", bad.what()));
  } catch (const Json::exception& bad) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not valid JSON: ", bad.what()));
  }
}

base::Digest Tokenizer::hash() const {
  base::Sha256 sha;
  std::string buffer;
  const auto flush = [&](size_t limit) {
    if (buffer.size() >= limit) {
      sha.update(buffer.data(), buffer.size());
      buffer.clear();
    }
  };
  const auto put = [&](auto value) { buffer.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  const auto put_text = [&](const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    buffer.append(text);
    flush(1 << 16);
  };
  put_text("distill tokenizer 1");
  put_text(model);
  put(static_cast<uint64_t>(tokens.size()));
  for (const auto& [id, text] : tokens) {
    put(static_cast<uint32_t>(id));
    put_text(text);
  }
  put(static_cast<uint64_t>(merges.size()));
  for (const auto& [left, right] : merges) {
    put_text(left);
    put_text(right);
  }
  put(static_cast<uint64_t>(scores.size()));
  for (const double score : scores) {
    put(score);
  }
  flush(0);
  return sha.finish();
}

} // namespace distill::data
