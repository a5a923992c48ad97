#include "trainer/tools/document_html.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>

#include "data/base/utf8.h"

namespace distill::trainer {
namespace {

constexpr const char* kHead = R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>%1$s</title>
<style>
:root { --back: #ffffff; --text: #1f2328; --faint: #6e7781; --line: #d0d7de; --loss: #c6f0cf; --special: #8250df; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --faint: #8b949e; --line: #30363d; --loss: #17502a; --special: #d2a8ff; }
}
body { background: var(--back); color: var(--text); font: 15px/1.6 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em; }
h1 { font-size: 1.3em; overflow-wrap: anywhere; }
h2 { font-size: 1em; margin: 2em 0 .3em; }
h3 { font-size: .9em; font-weight: normal; color: var(--faint); margin: 1em 0 .3em; }
.about, .cut { color: var(--faint); font-size: .9em; overflow-wrap: anywhere; }
pre { border: 1px solid var(--line); border-radius: 6px; font: 13px/1.7 ui-monospace, monospace; margin: 0; padding: .8em; white-space: pre-wrap; overflow-wrap: anywhere; }
i { font-style: normal; border-radius: 2px; }
i:hover { outline: 2px solid var(--faint); }
.l { background: var(--loss); }
.s { color: var(--special); outline: 1px solid var(--special); outline-offset: 1px; }
b { color: var(--faint); font-weight: normal; user-select: none; }
#borders:checked ~ main i { box-shadow: inset 1px 0 var(--faint); }
</style>
</head>
<body>
<h1>%1$s</h1>
<p class="about">Tokenizer: %2$s<br>
<i class="l">in the loss</i> &#160; not in the loss &#160; <i class="s">special token</i> &#160; <b>&#8629;</b> line end
&#160; Point at a token to see its place, id and spelling.</p>
<input type="checkbox" id="borders"> <label for="borders">token boundaries</label>
<main>
)";

std::string escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

// The text of a token; faint marks stand for what would not be seen.
std::string marked_up(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const base::Utf8Step step = base::utf8_step(text, at);
    if (step.character == '\n') {
      out += "<b>↵</b>\n";
    } else if (const auto form = visible_form(step.character)) {
      absl::StrAppend(&out, "<b>", *form, "</b>");
    } else {
      out += escaped(text.substr(at, step.bytes));
    }
    at += step.bytes;
  }
  return out;
}

// Makes one element for a token, or for several that share a character.
std::string element(absl::Span<const ShownToken> tokens) {
  const ShownToken& last = tokens.back();
  std::string about;
  for (const ShownToken& token : tokens) {
    absl::StrAppend(&about, about.empty() ? "" : "\n", "token ", token.position, ": ", describe_token(token));
  }
  absl::StrAppend(&about, last.in_loss ? "\nin the loss" : "\nnot in the loss");
  const std::string text = last.piece.known ? marked_up(last.piece.text) : absl::StrCat("<b>‹", last.id, "›</b>");
  const char* kind = last.in_loss ? (last.piece.special ? " class=\"l s\"" : " class=\"l\"")
      : last.piece.special        ? " class=\"s\""
                                  : "";
  return absl::StrCat("<i", kind, " title=\"", escaped(about), "\">", text, "</i>");
}

// Tokens without a text of their own go with the next one that has one.
std::string elements(absl::Span<const ShownToken> tokens) {
  std::string out;
  size_t first = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const data::TokenPiece& piece = tokens[i].piece;
    if (!piece.known || !piece.text.empty() || !piece.shares_character || i + 1 == tokens.size()) {
      out += element(tokens.subspan(first, i + 1 - first));
      first = i + 1;
    }
  }
  return out;
}

} // namespace

std::string html_page(const PageHeading& heading, absl::Span<const ShownDocument> documents) {
  std::string page = absl::StrFormat(kHead, escaped(heading.data), escaped(heading.tokenizer));
  for (const ShownDocument& document : documents) {
    absl::StrAppendFormat(
        &page, "<section>\n<h2>document %d <span class=\"about\">of %s%s%s</span></h2>\n", document.number,
        escaped(document.shard), document.teacher.empty() ? "" : ", teacher ", escaped(document.teacher));
    for (const ShownStream& stream : document.streams) {
      absl::StrAppendFormat(
          &page, "<h3>%s%d tokens, %d in the loss</h3>\n", stream.name.empty() ? "" : escaped(stream.name) + ": ",
          stream.length, stream.in_loss);
      absl::StrAppend(&page, "<pre>", elements(stream.tokens), "</pre>\n");
      const int64_t hidden = stream.length - static_cast<int64_t>(stream.tokens.size());
      if (hidden > 0) {
        absl::StrAppendFormat(&page, "<p class=\"cut\">%d more tokens (--tokens 0 shows all)</p>\n", hidden);
      }
    }
    page += "</section>\n";
  }
  return page + "</main>\n</body>\n</html>\n";
}

} // namespace distill::trainer
