#include "trainer/config/reader.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "trainer/config/dump.h"
#include "trainer/config/field.h"
#include "trainer/config/suggest.h"
#include "trainer/config/value.h"

namespace distill::config {

namespace {

constexpr uintmax_t kMaxFileBytes = 1 << 20;
constexpr char kOverrideFile[] = "--set";

struct Pair {
  YAML::Node key;
  YAML::Node value;
};

constexpr size_t kMaxMerged = 10000; // pairs that merge keys add to one mapping

// The pairs of a mapping as written, duplicates included. A merge key `<<` adds the pairs of other mappings whose keys
// the mapping itself does not have. nullopt: it would add more than kMaxMerged pairs, which a few lines of aliases to
// aliases can.
class Pairs {
 public:
  static std::optional<std::vector<Pair>> of(const YAML::Node& map) {
    Pairs pairs;
    std::vector<Pair> all = pairs.of(map, 0);
    return pairs.merged_ <= kMaxMerged ? std::optional(std::move(all)) : std::nullopt;
  }

 private:
  std::vector<Pair> of(const YAML::Node& map, int depth) {
    std::vector<Pair> own, merged;
    std::set<std::string> names;
    for (const auto& item : map) {
      if (!item.first.IsScalar()) {
        own.push_back({item.first, item.second});
      } else if (item.first.Scalar() != "<<") {
        own.push_back({item.first, item.second});
        names.insert(item.first.Scalar());
      } else if (item.second.IsSequence()) {
        for (const auto& from : item.second) {
          merge(from, depth, merged);
        }
      } else {
        merge(item.second, depth, merged);
      }
    }
    for (Pair& pair : merged) {
      if (!pair.key.IsScalar() || names.insert(pair.key.Scalar()).second) {
        own.push_back(std::move(pair));
      }
    }
    return own;
  }

  void merge(const YAML::Node& from, int depth, std::vector<Pair>& merged) {
    ++merged_; // an empty mapping counts too
    if (from.IsMap() && depth < kMaxMergeDepth && merged_ <= kMaxMerged) {
      std::vector<Pair> pairs = of(from, depth + 1);
      merged_ += pairs.size();
      std::move(pairs.begin(), pairs.end(), std::back_inserter(merged));
    }
  }

  static constexpr int kMaxMergeDepth = 8;
  size_t merged_ = 0;
};

// Records where documents begin.
class DocumentStarts : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    starts.push_back(mark);
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  std::vector<YAML::Mark> starts;
};

struct Document {
  YAML::Node root; // null: the text is empty
  std::string error; // empty: the text parses
  int64_t line = 0; // of the error; 0: unknown
};

// Loads a text of one document. YAML::LoadAll would find a second document, but on a text such as ", a" it never
// returns and takes all memory: the parser finds an empty document at the same position again and again.
Document load_document(const std::string& text) {
  Document document;
  try {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    DocumentStarts handler;
    while (handler.starts.size() < 2 && parser.HandleNextDocument(handler)) {
    }
    if (handler.starts.size() > 1) {
      const bool stuck = handler.starts[0].pos == handler.starts[1].pos;
      document.error = stuck ? "YAML that does not parse" : "a second YAML document";
      document.line = handler.starts[1].line + 1;
    } else {
      document.root = YAML::Load(text);
    }
  } catch (const YAML::Exception& error) {
    document.error = absl::StrCat("YAML that does not parse: ", error.msg);
    document.line = error.mark.is_null() ? 0 : error.mark.line + 1;
  }
  return document;
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  void read_text(std::string_view yaml);
  void read_override(const std::string& text);
  void fail(int64_t line, std::string key, std::string expected, std::string found, std::string hint = "") {
    result_.problems.push_back({file_, line, std::move(key), std::move(expected), std::move(found), std::move(hint)});
  }
  ReadResult finish() {
    return std::move(result_);
  }

 private:
  bool check_characters(std::string_view yaml);
  void read_document(const YAML::Node& root);
  void read_section(const Section& section, const YAML::Node& node, int64_t line);
  void unknown_key(const std::string& section, const std::string& name, int64_t line);
  // False, with a problem, if the key was given before.
  bool first_of_its_name(const std::string& key, int64_t line);

  std::string file_;
  std::map<std::string, int64_t, std::less<>> lines_; // of sections and keys seen in the file
  ReadResult result_;
};

// False, with a problem, for texts that yaml-cpp accepts and reads as nobody means them.
bool Reader::check_characters(std::string_view yaml) {
  if (yaml.find('\0') != std::string_view::npos) {
    fail(0, "", "a YAML text", "a binary file");
    return false;
  }
  int64_t line = 0;
  for (const std::string& text : std::vector<std::string>(absl::StrSplit(std::string(yaml), '\n'))) {
    ++line;
    const size_t first = text.find_first_not_of(" \t\r");
    if (first != std::string::npos && text[first] != '#' && text.find('\t') < first) {
      fail(line, "", "spaces as indentation", "a tab");
      return false;
    }
  }
  return true;
}

void Reader::read_text(std::string_view yaml) {
  result_.is_dump = yaml.starts_with(kDumpHeader);
  if (!check_characters(yaml)) {
    return;
  }
  const Document document = load_document(std::string(yaml));
  const YAML::Node& root = document.root;
  if (!document.error.empty()) {
    fail(document.line, "", "a YAML mapping of sections", document.error);
  } else if (root.IsNull()) {
    fail(0, "", "a YAML mapping of sections", "an empty file", "`distill --help-config` lists every key");
  } else if (!root.IsMap()) {
    fail(root.Mark().line + 1, "", "a YAML mapping of sections", describe(root));
  } else {
    read_document(root);
  }
}

void Reader::read_document(const YAML::Node& root) {
  const auto pairs = Pairs::of(root);
  if (!pairs) {
    fail(0, "", absl::StrCat("at most ", kMaxMerged, " keys merged by <<"), "more");
    return;
  }
  for (const Pair& pair : *pairs) {
    const int64_t line = pair.key.Mark().line + 1;
    if (!pair.key.IsScalar()) {
      fail(line, "", "the name of a section", describe(pair.key));
      continue;
    }
    const std::string& name = pair.key.Scalar();
    const Section* section = find_section(name);
    if (section == nullptr) {
      unknown_key("", name, line);
    } else if (first_of_its_name(name, line)) {
      if (section->is_value()) {
        result_.origins[name] = {file_, line};
        assign(section->fields[0], pair.value, {file_, line, name, "", "", ""}, result_.config, result_.problems);
      } else {
        read_section(*section, pair.value, line);
      }
    }
  }
}

void Reader::read_section(const Section& section, const YAML::Node& node, int64_t line) {
  if (node.IsNull()) {
    return; // all its keys are commented out
  }
  if (!node.IsMap()) {
    fail(line, section.name, "a mapping of keys", describe(node));
    return;
  }
  const auto pairs = Pairs::of(node);
  if (!pairs) {
    fail(line, section.name, absl::StrCat("at most ", kMaxMerged, " keys merged by <<"), "more");
    return;
  }
  for (const Pair& pair : *pairs) {
    const int64_t key_line = pair.key.Mark().line + 1;
    if (!pair.key.IsScalar()) {
      fail(key_line, section.name, "the name of a key", describe(pair.key));
      continue;
    }
    const std::string key = absl::StrCat(section.name, ".", pair.key.Scalar());
    const Field* field = find_field(key);
    if (const Section* inner = find_section(key)) {
      if (first_of_its_name(key, key_line)) {
        read_section(*inner, pair.value, key_line);
      }
    } else if (field == nullptr) {
      unknown_key(section.name, pair.key.Scalar(), key_line);
    } else if (first_of_its_name(key, key_line)) {
      result_.origins[key] = {file_, key_line};
      assign(*field, pair.value, {file_, key_line, key, "", "", ""}, result_.config, result_.problems);
    }
  }
}

bool Reader::first_of_its_name(const std::string& key, int64_t line) {
  const auto [seen, is_new] = lines_.emplace(key, line);
  if (!is_new) {
    fail(line, key, "one value", absl::StrCat("a second one (the first is on line ", seen->second, ")"));
  }
  return is_new;
}

void Reader::unknown_key(const std::string& section, const std::string& name, int64_t line) {
  const std::string key = section.empty() ? name : absl::StrCat(section, ".", name);
  const std::string found = section.empty() ? "an unknown section" : "an unknown key";
  const std::string expected =
      section.empty() ? "a section of the configuration" : absl::StrCat("a key of section ", section);
  std::string hint;
  if (section.empty() && find_field(name) != nullptr) {
    hint = absl::StrCat("write ", name.substr(name.rfind('.') + 1), ": below ", name.substr(0, name.rfind('.')), ":");
  } else if (const std::string close = closest_key(section, name); !close.empty()) {
    hint = absl::StrCat("did you mean ", close, "?");
  } else {
    hint = "`distill --help-config` lists every key";
  }
  fail(line, absl::Utf8SafeCEscape(key), expected, found, hint);
}

void Reader::read_override(const std::string& text) {
  file_ = kOverrideFile;
  const size_t equals = text.find('=');
  std::string key = text.substr(0, equals);
  absl::StripAsciiWhitespace(&key);
  if (equals == std::string::npos || key.empty()) {
    const bool names_key = find_field(text) != nullptr;
    fail(
        0, "", "section.key=VALUE", absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\""),
        names_key ? absl::StrCat("write --set ", text, "=VALUE") : "all arguments after --set are overrides of keys");
    return;
  }
  const Field* field = find_field(key);
  if (field == nullptr) {
    const size_t dot = key.rfind('.');
    const bool in_section = dot != std::string::npos && find_section(key.substr(0, dot)) != nullptr;
    if (find_section(key) != nullptr) {
      fail(0, key, "section.key=VALUE", "a whole section");
    } else {
      unknown_key(in_section ? key.substr(0, dot) : "", in_section ? key.substr(dot + 1) : key, 0);
    }
    return;
  }
  const std::string value = text.substr(equals + 1);
  const Document document = load_document(value);
  const YAML::Node& node = document.root;
  if (!document.error.empty()) {
    fail(0, key, expectation(*field), document.error);
    return;
  }
  if (node.IsNull() && !absl::StripAsciiWhitespace(value).empty()) {
    const Config defaults;
    assign(
        *field, YAML::Load(to_yaml(*field, defaults)), {file_, 0, key, "", "", ""}, result_.config, result_.problems);
    result_.origins.erase(key);
    return;
  }
  result_.origins[key] = {file_, 0};
  assign(*field, node, {file_, 0, key, "", "", ""}, result_.config, result_.problems);
}

} // namespace

ReadResult read(std::string_view yaml, const std::string& file, absl::Span<const std::string> overrides) {
  Reader reader(file);
  reader.read_text(yaml);
  for (const std::string& text : overrides) {
    reader.read_override(text);
  }
  return reader.finish();
}

ReadResult read_overrides(absl::Span<const std::string> overrides) {
  Reader reader(kOverrideFile);
  for (const std::string& text : overrides) {
    reader.read_override(text);
  }
  return reader.finish();
}

ReadResult read_file(const std::string& path, absl::Span<const std::string> overrides) {
  const auto problem = [&](std::string found) {
    ReadResult result;
    result.problems.push_back({path, 0, "", "a configuration file", std::move(found), ""});
    return result;
  };
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return problem(error && status.type() == std::filesystem::file_type::none ? error.message() : "no such file");
  }
  if (!std::filesystem::is_regular_file(status)) {
    return problem(std::filesystem::is_directory(status) ? "a folder" : "something that is not a regular file");
  }
  if (const uintmax_t bytes = std::filesystem::file_size(path, error); !error && bytes > kMaxFileBytes) {
    return problem(absl::StrCat("a file of ", bytes, " bytes, which is no configuration"));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) {
    return problem("a file that cannot be read");
  }
  return read(text.str(), path, overrides);
}

} // namespace distill::config
