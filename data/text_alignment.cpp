#include "data/text_alignment.h"

#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <c10/util/Exception.h>

#include <algorithm>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "data/token_text.h"

namespace distill::data {
namespace {

constexpr int64_t kMostIds = int64_t{1} << 26; // of a tokenizer
constexpr size_t kShown = 16; // symbols in a message

std::string in_quotes(const std::string& text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

std::string text_of(const std::vector<std::pair<int64_t, std::string>>& texts, int64_t id) {
  const auto at = std::lower_bound(
      texts.begin(), texts.end(), id, [](const auto& token, int64_t value) { return token.first < value; });
  return at != texts.end() && at->first == id ? at->second : "";
}

const AddedToken* find_added(const Tokenizer& tokenizer, const std::string& text) {
  const auto at = std::find_if(
      tokenizer.added.begin(), tokenizer.added.end(), [&](const AddedToken& token) { return token.text == text; });
  return at == tokenizer.added.end() ? nullptr : &*at;
}

// A tokenizer's tokens with what makes two of them the same.
struct KnownToken {
  int64_t id;
  std::string key; // its bytes, or of a special token "s" and its text
  bool is_byte;
};

absl::StatusOr<std::vector<KnownToken>> known_tokens(const Tokenizer& tokenizer, bool* drops_first_space) {
  auto text = TokenText::make(tokenizer);
  auto bytes = text.ok() ? text->bytes_of_tokens() : absl::StatusOr<std::vector<TokenBytes>>(text.status());
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(bytes.status().message());
  }
  if (tokenizer.vocab_size() > kMostIds) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokenizer.path, ": expected ids below ", kMostIds, ", found ", tokenizer.vocab_size() - 1));
  }
  *drops_first_space = text->drops_first_space();
  std::vector<KnownToken> tokens;
  for (const TokenBytes& token : *bytes) {
    const std::string* spelt = text->token(token.id);
    tokens.push_back(
        {token.id, token.special ? absl::StrCat("s", *spelt) : absl::StrCat("b", token.bytes), token.is_byte});
  }
  return tokens;
}

using IdsOfKeys = absl::flat_hash_map<std::string_view, std::vector<const KnownToken*>>;

// Those that are no byte tokens first.
IdsOfKeys by_key(const std::vector<KnownToken>& tokens) {
  IdsOfKeys ids;
  for (const bool is_byte : {false, true}) {
    for (const KnownToken& token : tokens) {
      if (token.is_byte == is_byte && token.key != "b") {
        ids[token.key].push_back(&token);
      }
    }
  }
  return ids;
}

// Adds, for each token of one side alone, the student's id of the first token with which the other side writes it, if
// both have that one. `other`: the other side's tokens; `own`: the student's.
void add_ambiguous(
    const std::vector<KnownToken>& tokens, const absl::flat_hash_set<int64_t>& shared, const IdsOfKeys& other,
    const IdsOfKeys& own, absl::flat_hash_set<int64_t>& ambiguous) {
  for (const KnownToken& token : tokens) {
    if (shared.contains(token.id) || token.key[0] == 's') {
      continue;
    }
    for (size_t length = token.key.size() - 1; length > 1; --length) {
      const std::string_view begin = std::string_view(token.key).substr(0, length);
      if (other.contains(begin)) {
        if (const auto found = own.find(begin); found != own.end()) {
          ambiguous.insert(found->second.front()->id);
        }
        break;
      }
    }
  }
}

} // namespace

absl::StatusOr<TokenPairs> read_token_pairs(
    const std::vector<std::string>& texts, const Tokenizer& student, const Tokenizer& teacher) {
  TokenPairs pairs;
  base::ProblemList problems;
  for (const std::string& text : texts) {
    TokenPairs found;
    for (size_t at = text.find('='); at != std::string::npos; at = text.find('=', at + 1)) {
      const std::string own = text.substr(0, at), its = text.substr(at + 1);
      if (find_added(student, own) != nullptr && find_added(teacher, its) != nullptr) {
        found.emplace_back(own, its);
      }
    }
    if (found.size() == 1) {
      pairs.push_back(found.front());
      continue;
    }
    problems.add(absl::StrCat(
        "teacher.token_pairs: expected STUDENT=TEACHER, an added token of ", student.path, " and one of ", teacher.path,
        ", found ", in_quotes(text), found.empty() ? "" : ", which can be read as more than one pair"));
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  return pairs;
}

absl::StatusOr<TextAlignment> TextAlignment::make(
    const Tokenizer& student, const Tokenizer& teacher, const TokenPairs& pairs) {
  TextAlignment out;
  out.student_path_ = student.path;
  out.teacher_path_ = teacher.path;
  out.teacher_hash_ = teacher.hash();
  out.pairs_ = pairs;
  ASSIGN_OR_RETURN(std::vector<KnownToken> own, known_tokens(student, &out.student_.drops_first_space));
  ASSIGN_OR_RETURN(std::vector<KnownToken> its, known_tokens(teacher, &out.teacher_.drops_first_space));
  // A given pair gets a key that no other token has.
  absl::flat_hash_set<std::string> paired;
  for (const auto& [own_text, its_text] : pairs) {
    const AddedToken* own_token = find_added(student, own_text);
    const AddedToken* its_token = find_added(teacher, its_text);
    TORCH_CHECK(
        own_token != nullptr && its_token != nullptr, "expected added tokens, found ", own_text, " and ", its_text);
    for (const auto& [tokens, token, side] :
         {std::tuple(&own, own_token, "student"), std::tuple(&its, its_token, "teacher")}) {
      if (!paired.insert(absl::StrCat(side, token->text)).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "teacher.token_pairs: expected each token once, found ", in_quotes(token->text), " of the ", side,
            " again"));
      }
      for (KnownToken& known : *tokens) {
        known.key = known.id == token->id ? absl::StrCat("s", own_text, "=", its_text, "=") : known.key;
      }
    }
  }
  const IdsOfKeys of_student = by_key(own), of_teacher = by_key(its);
  // Tokens that are the same; each special one of them is an event.
  absl::flat_hash_map<std::string_view, uint32_t> events;
  absl::flat_hash_set<int64_t> student_shared, teacher_shared;
  for (const KnownToken& first : own) {
    const auto mine = of_student.find(first.key);
    const auto found = of_teacher.find(first.key);
    if (mine == of_student.end() || mine->second.front() != &first || found == of_teacher.end()) {
      continue;
    }
    // Several tokens with the same bytes: those with the same text, then the rest in their order.
    std::vector<const KnownToken*> rest = mine->second, theirs = found->second;
    const auto pair = [&](const KnownToken* a, const KnownToken* b) {
      out.map_.shared.push_back({a->id, b->id});
      out.map_.moved += a->id != b->id ? 1 : 0;
      student_shared.insert(a->id);
      teacher_shared.insert(b->id);
      std::erase(rest, a);
      std::erase(theirs, b);
    };
    if (rest.size() > 1 || theirs.size() > 1) {
      for (const KnownToken* a : std::vector(rest)) {
        const auto same = std::find_if(theirs.begin(), theirs.end(), [&](const KnownToken* b) {
          return text_of(student.tokens, a->id) == text_of(teacher.tokens, b->id) && a->is_byte == b->is_byte;
        });
        if (same != theirs.end()) {
          pair(a, *same);
        }
      }
    }
    while (!rest.empty() && !theirs.empty()) {
      pair(rest.front(), theirs.front());
    }
    if (first.key[0] == 's') {
      events.emplace(first.key, kFirstEvent + static_cast<uint32_t>(events.size()));
    }
  }
  if (out.map_.shared.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "teacher.alignment: expected tokenizers that have tokens of the same bytes, found none: ", student.path,
        " and ", teacher.path));
  }
  std::sort(out.map_.shared.begin(), out.map_.shared.end(), [](const auto& a, const auto& b) {
    return a.student < b.student;
  });
  absl::flat_hash_set<int64_t> ambiguous;
  add_ambiguous(its, teacher_shared, of_student, of_student, ambiguous);
  add_ambiguous(own, student_shared, of_teacher, of_student, ambiguous);
  std::copy_if(ambiguous.begin(), ambiguous.end(), std::back_inserter(out.ambiguous_), [&](int64_t id) {
    return student_shared.contains(id);
  });
  std::sort(out.ambiguous_.begin(), out.ambiguous_.end());
  for (const auto& [tokens, shared, only, side, tokenizer] :
       {std::tuple(&own, &student_shared, &out.map_.student_only, &out.student_, &student),
        std::tuple(&its, &teacher_shared, &out.map_.teacher_only, &out.teacher_, &teacher)}) {
    side->begin.assign(static_cast<size_t>(tokenizer->vocab_size()), 0);
    side->end = side->begin;
    side->known.assign(side->begin.size(), 0);
    side->texts = tokenizer->tokens;
    for (const KnownToken& token : *tokens) {
      if (!shared->contains(token.id)) {
        only->push_back(token.id);
      }
      side->known[token.id] = 1;
      side->begin[token.id] = static_cast<uint32_t>(side->symbols.size());
      if (token.key[0] == 's') {
        if (const auto event = events.find(token.key); event != events.end()) {
          side->symbols.push_back(event->second);
        }
      } else {
        for (size_t i = 1; i < token.key.size(); ++i) {
          side->symbols.push_back(static_cast<uint8_t>(token.key[i]));
        }
      }
      side->end[token.id] = static_cast<uint32_t>(side->symbols.size());
    }
  }
  return out;
}

std::string TextAlignment::student_text(int64_t id) const {
  return text_of(student_.texts, id);
}

std::string TextAlignment::teacher_text(int64_t id) const {
  return text_of(teacher_.texts, id);
}

// Reads a completion's tokens one after the other.
class TextAlignment::Reader {
 public:
  Reader(const Side& side, const Tokens& tokens, std::vector<int64_t>& passed)
      : side_(side), tokens_(tokens), passed_(passed) {}

  // Moves to the next token that has symbols. False: there is none.
  bool next() {
    for (++at_; at_ < size(); ++at_) {
      const int64_t id = tokens_.ids[at_];
      const bool is_known = id >= 0 && id < static_cast<int64_t>(side_.known.size()) && side_.known[id] != 0;
      symbols_ = is_known ? side_.of(id) : absl::Span<const uint32_t>();
      if (!symbols_.empty()) {
        return true;
      }
      passed_.push_back(id);
    }
    return false;
  }
  bool drops_first_space() const {
    return side_.drops_first_space;
  }
  // How many spaces the text has from here on.
  int64_t spaces() const {
    int64_t count = 0;
    absl::Span<const uint32_t> symbols = symbols_;
    for (int64_t at = at_; true;) {
      for (const uint32_t symbol : symbols) {
        if (symbol != ' ') {
          return count;
        }
        ++count;
      }
      if (++at == size() || tokens_.ids[at] >= static_cast<int64_t>(side_.known.size())) {
        return count;
      }
      symbols = side_.of(tokens_.ids[at]);
    }
  }
  // Takes a space away. False: nothing is left.
  bool drop_space() {
    symbols_.remove_prefix(1);
    return !symbols_.empty() || next();
  }
  // Takes the first `count` symbols.
  void take(size_t count) {
    symbols_.remove_prefix(count);
  }
  absl::Span<const uint32_t> symbols() const {
    return symbols_;
  }
  int64_t at() const { // of the token, within the completion
    return at_;
  }
  int64_t size() const {
    return static_cast<int64_t>(tokens_.ids.size());
  }
  // Whether the token follows the one before it in its text.
  bool follows(int64_t before) const {
    return at_ == before + 1 && tokens_.positions[at_] == tokens_.positions[before] + 1;
  }
  // Whether a part of the completion begins with this token.
  bool begins_part() const {
    return at_ == 0 || tokens_.positions[at_] != tokens_.positions[at_ - 1] + 1;
  }
  // The text from here on, for messages.
  std::string text() const {
    std::string bytes;
    Reader copy = *this;
    size_t shown = 0;
    do {
      for (const uint32_t symbol : copy.symbols_) {
        if (symbol < kFirstEvent) {
          bytes += static_cast<char>(symbol);
        } else {
          absl::StrAppend(&bytes, text_of(side_.texts, copy.tokens_.ids[copy.at_]));
        }
        if (++shown == kShown) {
          return in_quotes(bytes) + "...";
        }
      }
    } while (copy.at_ < copy.size() && copy.next());
    return in_quotes(bytes);
  }

 private:
  const Side& side_;
  const Tokens& tokens_;
  std::vector<int64_t>& passed_;
  absl::Span<const uint32_t> symbols_;
  int64_t at_ = -1;
};

absl::Status TextAlignment::align(const Tokens& student, const Tokens& teacher, Pieces& out) const {
  out = {};
  Reader own(student_, student, out.student_passed), its(teacher_, teacher, out.teacher_passed);
  const auto differ = [&](bool own_ended, bool its_ended, const char* why) {
    return absl::DataLossError(absl::StrCat(
        "the texts of student and teacher differ", why, ": ",
        own_ended ? "the student's has ended"
                  : absl::StrCat("the student's goes on with ", own.text(), " (token ", own.at(), ")"),
        ", ",
        its_ended ? "the teacher's has ended"
                  : absl::StrCat("the teacher's with ", its.text(), " (token ", its.at(), ")"),
        " of the completion"));
  };
  while (true) {
    const bool has_own = own.next(), has_its = its.next();
    if (!has_own && !has_its) {
      return absl::OkStatus();
    }
    if (has_own != has_its) {
      return differ(!has_own, !has_its, "");
    }
    // A space that one of the tokenizers has put before a text.
    if ((own.drops_first_space() || its.drops_first_space()) && own.begins_part() && its.begins_part()) {
      const int64_t more = own.spaces() - its.spaces();
      const bool own_goes_on = !(own.drops_first_space() && more == 1) || own.drop_space();
      const bool its_goes_on = !(its.drops_first_space() && more == -1) || its.drop_space();
      if (!own_goes_on || !its_goes_on) {
        return differ(!own_goes_on, !its_goes_on, "");
      }
    }
    Piece piece{own.at(), own.at() + 1, its.at(), its.at() + 1};
    while (true) {
      const size_t shared = std::min(own.symbols().size(), its.symbols().size());
      if (!std::equal(own.symbols().begin(), own.symbols().begin() + shared, its.symbols().begin())) {
        return differ(false, false, "");
      }
      own.take(shared);
      its.take(shared);
      if (own.symbols().empty() && its.symbols().empty()) {
        break;
      }
      // The other one's token reaches over the end of this one's.
      const bool of_student = own.symbols().empty();
      Reader& reader = of_student ? own : its;
      const int64_t before = reader.at();
      if (!reader.next()) {
        return differ(of_student, !of_student, "");
      }
      if (!reader.follows(before)) {
        return differ(false, false, " (a token reaches over a special token, or over the end of what is learned)");
      }
      (of_student ? piece.end : piece.teacher_end) = reader.at() + 1;
    }
    out.pieces.push_back(piece);
  }
}

} // namespace distill::data
