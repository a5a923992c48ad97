#pragma once

#include <absl/types/span.h>

#include <string>

#include "trainer/tools/document_view.h"

namespace distill::trainer {

// The description of the data above the documents.
struct PageHeading {
  std::string data; // the path of the shards
  std::string tokenizer; // its file
};

// Makes one page without scripts and without anything from elsewhere, in the light or dark colours that the browser
// asks for. Tokens in the loss have a background, special tokens a frame; pointing at a token shows its number, id and
// spelling. All text is escaped.
std::string html_page(const PageHeading& heading, absl::Span<const ShownDocument> documents);

} // namespace distill::trainer
