#pragma once

#include <string>

#include "trainer/tools/document_view.h"

namespace distill::trainer {

// The document as text. Tokens in the loss are green and underlined with `colour`, else between [[ and ]]. Special
// tokens are reversed, or between « and ». Line ends are shown as ↵ before the end of the line, other characters that
// would not be seen as visible_form says, a space at the end of a line as ·, ids that the tokenizer does not have as
// ‹12345›.
std::string terminal_text(const ShownDocument& document, bool colour);
// What the marks mean, one line.
std::string terminal_legend(bool colour);

// The document's ids; those without a loss are in brackets.
std::string terminal_ids(const ShownDocument& document);

} // namespace distill::trainer
