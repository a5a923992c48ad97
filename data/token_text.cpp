#include "data/token_text.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "data/base/status_macros.h"
#include "data/base/utf8.h"

namespace distill::data {

namespace {

using Json = nlohmann::json;

// The byte that each character of GPT-2's alphabet stands for: printable bytes are themselves, the others are U+0100
// and up, in their order.
constexpr size_t kByteCharacters = 0x144;
constexpr std::array<int16_t, kByteCharacters> byte_of_character() {
  std::array<int16_t, kByteCharacters> bytes{};
  bytes.fill(-1);
  size_t next = 0x100;
  for (int16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[printable ? static_cast<size_t>(byte) : next++] = byte;
  }
  return bytes;
}

// A byte, and where the character that stands for it begins.
struct AlphabetByte {
  char byte = 0;
  size_t at = 0;
};

// The bytes that the text's characters stand for; nullopt: one of them stands for none.
std::optional<std::vector<AlphabetByte>> alphabet_bytes(std::string_view text) {
  static constexpr auto kBytes = byte_of_character();
  std::vector<AlphabetByte> bytes;
  for (size_t at = 0; at < text.size();) {
    const base::Utf8Step step = base::utf8_step(text, at);
    if (!step.valid || step.character >= kByteCharacters || kBytes[step.character] < 0) {
      return std::nullopt;
    }
    bytes.push_back({static_cast<char>(kBytes[step.character]), at});
    at += step.bytes;
  }
  return bytes;
}

// The byte of "<0x0A>"; nullopt: the token is no byte.
std::optional<char> fallback_byte(std::string_view token) {
  uint8_t byte = 0;
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') {
    return std::nullopt;
  }
  const char* digits = token.data() + 3;
  const bool hex = std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
  return hex ? std::optional(static_cast<char>(byte)) : std::nullopt;
}

} // namespace

// A text on its way through the decoders, and for each of its bytes the token that it belongs to.
struct TokenText::Chunk {
  std::string text;
  std::vector<size_t> owner;

  void append(std::string_view more, size_t token) {
    text.append(more);
    owner.insert(owner.end(), more.size(), token);
  }
  void append(const Chunk& more) {
    text.append(more.text);
    owner.insert(owner.end(), more.owner.begin(), more.owner.end());
  }
  void erase(size_t at, size_t count) {
    text.erase(at, count);
    const auto first = owner.begin() + static_cast<std::ptrdiff_t>(at);
    owner.erase(first, first + static_cast<std::ptrdiff_t>(count));
  }
  void replace(std::string_view from, std::string_view to) {
    size_t at = text.find(from);
    if (at == std::string::npos) {
      return;
    }
    Chunk out;
    size_t done = 0;
    const auto keep = [&](size_t end) {
      for (; done < end; ++done) {
        out.append(std::string_view(text).substr(done, 1), owner[done]);
      }
    };
    for (; at != std::string::npos; at = text.find(from, done)) {
      keep(at);
      out.append(to, owner[at]);
      done = at + from.size();
    }
    keep(text.size());
    *this = std::move(out);
  }
};

// One decoding: the chunks, each begun by one token, and the pieces that become of them.
struct TokenText::Run {
  std::vector<Chunk> chunks;
  std::vector<TokenPiece> pieces;

  void apply(const Decoder& decoder) {
    switch (decoder.kind) {
      case Decoder::Kind::kByteLevel:
        return byte_level();
      case Decoder::Kind::kMetaspace:
        for (size_t i = 0; i < chunks.size(); ++i) {
          chunks[i].replace(decoder.from, i == 0 && decoder.drops_first ? "" : " ");
        }
        return;
      case Decoder::Kind::kReplace:
        for (Chunk& chunk : chunks) {
          chunk.replace(decoder.from, decoder.to);
        }
        return;
      case Decoder::Kind::kByteFallback:
        return byte_fallback();
      case Decoder::Kind::kFuse:
        return fuse();
      case Decoder::Kind::kStrip:
        for (Chunk& chunk : chunks) {
          strip(chunk, decoder);
        }
        return;
      case Decoder::Kind::kBpe:
        for (size_t i = 0; i < chunks.size(); ++i) {
          chunks[i].replace(decoder.from, i + 1 == chunks.size() ? "" : " ");
        }
        return;
      case Decoder::Kind::kJoinWithSpaces:
        for (size_t i = 1; i < chunks.size(); ++i) {
          Chunk spaced;
          spaced.append(" ", chunks[i].owner.empty() ? 0 : chunks[i].owner[0]);
          spaced.append(chunks[i]);
          chunks[i] = std::move(spaced);
        }
        return;
    }
  }

  void fuse() {
    Chunk all;
    for (const Chunk& chunk : chunks) {
      all.append(chunk);
    }
    chunks.clear();
    chunks.push_back(std::move(all));
  }

  // A chunk with a character outside the alphabet stands for itself. What is not UTF-8 in the end becomes U+FFFD. After
  // Fuse a chunk holds the text of many tokens.
  void byte_level() {
    Chunk bytes;
    for (const Chunk& chunk : chunks) {
      const auto decoded = alphabet_bytes(chunk.text);
      if (!decoded) {
        bytes.append(chunk);
        continue;
      }
      for (const AlphabetByte& one : *decoded) {
        bytes.append(std::string_view(&one.byte, 1), chunk.owner[one.at]);
      }
    }
    chunks.assign(1, whole_characters(bytes));
  }

  // Runs of byte tokens that are UTF-8 together become text; in any other run every token becomes U+FFFD.
  void byte_fallback() {
    std::vector<Chunk> out;
    Chunk run;
    const auto end_run = [&] {
      if (base::is_utf8(run.text)) {
        if (!run.text.empty()) {
          out.push_back(whole_characters(run));
        }
      } else {
        for (const size_t token : run.owner) {
          out.emplace_back().append(base::kReplacementCharacter, token);
        }
      }
      run = {};
    };
    for (Chunk& chunk : chunks) {
      if (const auto byte = fallback_byte(chunk.text)) {
        run.append(std::string_view(&*byte, 1), chunk.owner[0]);
      } else {
        end_run();
        out.push_back(std::move(chunk));
      }
    }
    end_run();
    chunks = std::move(out);
  }

  // All bytes of a character belong to the token with its last one.
  Chunk whole_characters(const Chunk& bytes) {
    Chunk out;
    for (size_t at = 0; at < bytes.text.size();) {
      const base::Utf8Step step = base::utf8_step(bytes.text, at);
      const size_t end = at + step.bytes;
      const size_t owner = bytes.owner[end - 1];
      for (size_t i = at; i < end && bytes.owner[at] != owner; ++i) {
        pieces[bytes.owner[i]].shares_character = true;
        pieces[owner].shares_character = true;
      }
      out.append(step.valid ? std::string_view(bytes.text).substr(at, step.bytes) : base::kReplacementCharacter, owner);
      at = end;
    }
    return out;
  }

  static void strip(Chunk& chunk, const Decoder& decoder) {
    for (int64_t i = 0; i < decoder.start && chunk.text.starts_with(decoder.from); ++i) {
      chunk.erase(0, decoder.from.size());
    }
    for (int64_t i = 0; i < decoder.stop && chunk.text.ends_with(decoder.from); ++i) {
      chunk.erase(chunk.text.size() - decoder.from.size(), decoder.from.size());
    }
  }
};

// Reads `decoder` of tokenizer.json.
struct TokenText::Parser {
  std::vector<Decoder> chain;

  absl::Status read(const Json& json, const std::string& key, int depth = 0) {
    using Kind = Decoder::Kind;
    if (json.is_null()) {
      chain.push_back({Kind::kJoinWithSpaces});
      return absl::OkStatus();
    }
    const std::string type = text(json, "type").value_or("");
    if (type == "Sequence" && json.contains("decoders") && json["decoders"].is_array() && depth < 8) {
      for (size_t i = 0; i < json["decoders"].size(); ++i) {
        RETURN_IF_ERROR(read(json["decoders"][i], absl::StrCat(key, ".decoders[", i, "]"), depth + 1));
      }
      return absl::OkStatus();
    }
    if (type == "ByteLevel") {
      chain.push_back({Kind::kByteLevel});
    } else if (type == "ByteFallback") {
      chain.push_back({Kind::kByteFallback});
    } else if (type == "Fuse") {
      chain.push_back({Kind::kFuse});
    } else if (type == "Metaspace") {
      // Before prepend_scheme there was add_prefix_space.
      const bool adds = !json.contains("add_prefix_space") || json["add_prefix_space"] != false;
      const std::string scheme = text(json, "prepend_scheme").value_or(adds ? "always" : "never");
      chain.push_back({Kind::kMetaspace, text(json, "replacement").value_or("▁"), "", scheme != "never"});
    } else if (type == "BPEDecoder") {
      chain.push_back({Kind::kBpe, text(json, "suffix").value_or("</w>")});
    } else if (type == "Replace" && pattern(json) && any_text(json, "content")) {
      chain.push_back({Kind::kReplace, *pattern(json), *any_text(json, "content")});
    } else if (type == "Strip" && text(json, "content") && count(json, "start") && count(json, "stop")) {
      chain.push_back({Kind::kStrip, *text(json, "content"), "", false, *count(json, "start"), *count(json, "stop")});
    } else {
      std::string found = json.dump(-1, ' ', false, Json::error_handler_t::replace);
      found = found.size() > 120 ? absl::StrCat(found.substr(0, 117), "...") : found;
      return absl::UnimplementedError(absl::StrCat(
          "`", key,
          "`: expected ByteLevel, Metaspace, Replace with a plain text, ByteFallback, Fuse, Strip, BPEDecoder or a "
          "Sequence of these, found ",
          found, "; tokens of this kind cannot be shown as text"));
    }
    return absl::OkStatus();
  }

  // A member that is a text; nullopt: it is not.
  static std::optional<std::string> any_text(const Json& json, const char* name) {
    const bool found = json.is_object() && json.contains(name) && json[name].is_string();
    return found ? std::optional(json[name].get<std::string>()) : std::nullopt;
  }
  // The same for a text that is not empty.
  static std::optional<std::string> text(const Json& json, const char* name) {
    const auto found = any_text(json, name);
    return found && !found->empty() ? found : std::nullopt;
  }
  static std::optional<std::string> pattern(const Json& json) {
    return json.contains("pattern") ? text(json["pattern"], "String") : std::nullopt;
  }
  static std::optional<int64_t> count(const Json& json, const char* name) {
    return json.contains(name) && json[name].is_number_unsigned() ? std::optional(json[name].get<int64_t>())
                                                                  : std::nullopt;
  }
};

absl::StatusOr<TokenText> TokenText::make(const Tokenizer& tokenizer) {
  TokenText out;
  out.path_ = tokenizer.path;
  out.hash_ = tokenizer.hash();
  Parser parser;
  const absl::Status status =
      parser.read(Json::parse(tokenizer.decoder, nullptr, /*allow_exceptions=*/false), "decoder");
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat(tokenizer.path, ": ", std::string(status.message())));
  }
  out.chain_ = std::move(parser.chain);
  // Added tokens come before those of the model with the same id.
  for (const AddedToken& added : tokenizer.added) {
    out.entries_.push_back({added.id, added.text, added.special});
  }
  for (const auto& [id, token] : tokenizer.tokens) {
    out.entries_.push_back({id, token, false});
  }
  const auto by_id = [](const Entry& a, const Entry& b) { return a.id < b.id; };
  std::stable_sort(out.entries_.begin(), out.entries_.end(), by_id);
  const auto same_id = [](const Entry& a, const Entry& b) { return a.id == b.id; };
  out.entries_.erase(std::unique(out.entries_.begin(), out.entries_.end(), same_id), out.entries_.end());
  return out;
}

absl::StatusOr<TokenText> TokenText::read(const std::string& path) {
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, read_tokenizer(path));
  return make(tokenizer);
}

const TokenText::Entry* TokenText::find(int64_t id) const {
  const auto at = std::lower_bound(
      entries_.begin(), entries_.end(), id, [](const Entry& entry, int64_t value) { return entry.id < value; });
  return at == entries_.end() || at->id != id ? nullptr : &*at;
}

const std::string* TokenText::token(int64_t id) const {
  const Entry* entry = find(id);
  return entry == nullptr ? nullptr : &entry->token;
}

std::vector<TokenPiece> TokenText::decode(absl::Span<const int64_t> ids) const {
  Run run;
  run.pieces.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const Entry* entry = find(ids[i]);
    run.pieces[i].known = entry != nullptr;
    if (entry != nullptr) {
      run.pieces[i].special = entry->special;
      run.chunks.emplace_back().append(entry->token, i);
    }
  }
  for (const Decoder& decoder : chain_) {
    run.apply(decoder);
  }
  for (const Chunk& chunk : run.chunks) {
    for (size_t at = 0; at < chunk.text.size(); ++at) {
      run.pieces[chunk.owner[at]].text += chunk.text[at];
    }
  }
  return std::move(run.pieces);
}

std::string TokenText::text(absl::Span<const int64_t> ids) const {
  std::string text;
  for (const TokenPiece& piece : decode(ids)) {
    text += piece.text;
  }
  return text;
}

bool TokenText::drops_first_space() const {
  return std::any_of(chain_.begin(), chain_.end(), [](const Decoder& decoder) {
    return (decoder.kind == Decoder::Kind::kMetaspace && decoder.drops_first) ||
        (decoder.kind == Decoder::Kind::kStrip && decoder.from == " " && decoder.start > 0);
  });
}

absl::StatusOr<std::vector<TokenBytes>> TokenText::bytes_of_tokens() const {
  for (const Decoder& decoder : chain_) {
    const bool strips = decoder.kind == Decoder::Kind::kStrip;
    if (decoder.kind == Decoder::Kind::kBpe || decoder.kind == Decoder::Kind::kJoinWithSpaces ||
        (strips && (decoder.stop > 0 || decoder.start > 1 || decoder.from != " "))) {
      return absl::UnimplementedError(absl::StrCat(
          path_,
          ": `decoder`: expected one with which each token has bytes of its own (ByteLevel, Metaspace, Replace, "
          "ByteFallback, Fuse, Strip of one space at the start), found another; texts of this tokenizer cannot be "
          "compared byte by byte"));
    }
  }
  std::vector<TokenBytes> all;
  all.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    TokenBytes& token = all.emplace_back();
    token.id = entry.id;
    token.special = entry.special;
    if (entry.special) {
      continue;
    }
    token.bytes = entry.token;
    for (const Decoder& decoder : chain_) {
      if (decoder.kind == Decoder::Kind::kByteLevel) {
        if (const auto decoded = alphabet_bytes(token.bytes)) {
          token.bytes.clear();
          for (const AlphabetByte& one : *decoded) {
            token.bytes += one.byte;
          }
        }
      } else if (decoder.kind == Decoder::Kind::kByteFallback) {
        if (const auto byte = fallback_byte(token.bytes)) {
          token.bytes = *byte;
          token.is_byte = true;
        }
      } else if (decoder.kind == Decoder::Kind::kMetaspace || decoder.kind == Decoder::Kind::kReplace) {
        const std::string to = decoder.kind == Decoder::Kind::kMetaspace ? " " : decoder.to;
        token.bytes = absl::StrReplaceAll(token.bytes, {{decoder.from, to}});
      }
    }
  }
  return all;
}

} // namespace distill::data
