#pragma once

#include <string>

#include "trainer/tools/document_view.h"

namespace distill::trainer {

// Writes the document as text. Tokens in the loss are green and underlined with `colour`, else between [[ and ]].
// Special tokens are reversed, or between « and ». Line ends are shown as ↵ before the end of the line, other invisible
// characters in their visible_form(), a space at the end of a line as ·, ids that the tokenizer does not have as
// ‹12345›.
std::string terminal_text(const ShownDocument& document, bool colour);
// Explains the marks in one line.
std::string terminal_legend(bool colour);

// Writes the document's ids; those without a loss are in brackets.
std::string terminal_ids(const ShownDocument& document);

} // namespace distill::trainer
