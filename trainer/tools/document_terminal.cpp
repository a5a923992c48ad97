#include "trainer/tools/document_terminal.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "data/base/utf8.h"

namespace distill::trainer {
namespace {

constexpr const char* kReset = "\033[0m";

// The look of a token. The text between two changes of it is a run.
struct Look {
  bool in_loss = false;
  bool special = false;

  bool operator==(const Look&) const = default;
};

// Writes runs of tokens. Colours are switched off before every line end, so that a pager shows each line alone.
class Writer {
 public:
  explicit Writer(bool colour) : colour_(colour) {}

  void put(const ShownToken& token) {
    if (!token.piece.known) {
      begin({token.in_loss, false});
      absl::StrAppend(&out_, "‹", token.id, "›");
      at_line_start_ = false;
      return;
    }
    if (token.piece.text.empty()) { // its character comes with a later token
      return;
    }
    begin({token.in_loss, token.piece.special});
    for (size_t at = 0; at < token.piece.text.size();) {
      const base::Utf8Step step = base::utf8_step(token.piece.text, at);
      put(step.character);
      at += step.bytes;
    }
  }
  // Closes the last run; the text ends with a line end.
  std::string finish() {
    flush_spaces(/*at_line_end=*/true);
    begin({});
    if (!at_line_start_) {
      out_ += '\n';
    }
    return std::move(out_);
  }

 private:
  void put(char32_t character) {
    if (character == ' ') { // whether it is at the end of a line is not known yet
      ++spaces_;
      return;
    }
    flush_spaces(/*at_line_end=*/character == '\n');
    if (character == '\n') {
      out_ += "↵";
      paint(false);
      out_ += '\n';
      paint(true);
    } else if (const auto form = visible_form(character)) {
      out_ += *form;
    } else {
      base::append_utf8(out_, character);
    }
    at_line_start_ = character == '\n';
  }
  void flush_spaces(bool at_line_end) {
    for (; spaces_ > 0; --spaces_) {
      out_ += at_line_end ? "·" : " ";
      at_line_start_ = false;
    }
  }
  void begin(const Look& look) {
    if (look == look_) {
      return;
    }
    // A space before an end of the line that comes in the next run is shown as a plain one.
    flush_spaces(/*at_line_end=*/false);
    paint(false);
    mark(look_.special, "»");
    mark(look_.in_loss && !look.in_loss, "]]");
    mark(look.in_loss && !look_.in_loss, "[[");
    mark(look.special, "«");
    look_ = look;
    paint(true);
  }
  void mark(bool there, const char* text) {
    if (there && !colour_) {
      out_ += text;
      at_line_start_ = false;
    }
  }
  void paint(bool on) {
    if (!colour_ || look_ == Look{}) {
      return;
    }
    out_ += !on ? kReset : look_.in_loss ? (look_.special ? "\033[32;7m" : "\033[32;4m") : "\033[7m";
  }

  bool colour_;
  std::string out_;
  Look look_;
  bool at_line_start_ = true;
  int64_t spaces_ = 0; // not written yet
};

std::string heading(const ShownDocument& document) {
  std::string text = absl::StrFormat(
      "document %d of %s%s%s", document.number, document.shard, document.teacher.empty() ? "" : ", teacher ",
      document.teacher);
  for (const ShownStream& stream : document.streams) {
    absl::StrAppendFormat(
        &text, "%s %s%d tokens, %d in the loss", &stream == &document.streams[0] ? ":" : ";",
        stream.name.empty() ? "" : stream.name + ": ", stream.length, stream.in_loss);
  }
  return text + "\n";
}

std::string cut_note(const ShownStream& stream) {
  const int64_t hidden = stream.length - static_cast<int64_t>(stream.tokens.size());
  return hidden == 0 ? "" : absl::StrFormat("... %d more tokens (--tokens 0 shows all)\n", hidden);
}

} // namespace

std::string terminal_legend(bool colour) {
  const std::string loss =
      colour ? "\033[32;4min the loss\033[0m, \033[7mspecial token\033[0m" : "[[in the loss]], «special token»";
  return absl::StrCat(loss, ", ↵ line end, ⇥ tab, · space at the end of a line, ‹id› not in the tokenizer\n");
}

std::string terminal_text(const ShownDocument& document, bool colour) {
  std::string text = heading(document);
  for (const ShownStream& stream : document.streams) {
    if (!stream.name.empty()) {
      absl::StrAppend(&text, "-- ", stream.name, " --\n");
    }
    Writer writer(colour);
    for (const ShownToken& token : stream.tokens) {
      writer.put(token);
    }
    absl::StrAppend(&text, writer.finish(), cut_note(stream));
  }
  return text;
}

std::string terminal_ids(const ShownDocument& document) {
  std::string text = heading(document);
  for (const ShownStream& stream : document.streams) {
    if (!stream.name.empty()) {
      absl::StrAppend(&text, "-- ", stream.name, " --\n");
    }
    for (const ShownToken& token : stream.tokens) {
      absl::StrAppend(
          &text, token.position == 0 ? "" : " ", token.in_loss ? "" : "[", token.id, token.in_loss ? "" : "]");
    }
    absl::StrAppend(&text, "\n", cut_note(stream));
  }
  return text;
}

} // namespace distill::trainer
