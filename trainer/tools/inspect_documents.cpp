#include "trainer/tools/inspect_documents.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "data/base/durable_file.h"
#include "data/base/output_path.h"
#include "data/base/status_macros.h"
#include "data/inspect.h"
#include "trainer/tools/document_html.h"
#include "trainer/tools/document_terminal.h"

namespace distill::trainer {
namespace {

constexpr int64_t kDocuments = 3; // the number that is shown without an option
constexpr int64_t kMaxTokens = 2000;
constexpr const char* kHint = "hint: --tokenizer MODEL_FOLDER shows the documents as text\n";

std::optional<int64_t> count_in(const std::string& text) {
  int64_t value = 0;
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  return digits && absl::SimpleAtoi(text, &value) ? std::optional(value) : std::nullopt;
}

absl::StatusOr<std::optional<data::TokenText>> read_text(
    const InspectRequest& request, const base::Digest& tokenizer_hash) {
  if (request.tokenizer.empty()) {
    if (!request.html.empty()) {
      return absl::InvalidArgumentError("--html: expected --tokenizer MODEL_FOLDER as well, found none");
    }
    return std::optional<data::TokenText>();
  }
  auto text = data::TokenText::read(request.tokenizer);
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat("--tokenizer: ", std::string(text.status().message())));
  }
  if (text->tokenizer_hash() != tokenizer_hash) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tokenizer: expected the tokenizer that ", request.path, " was written with (hash ",
        base::hex(tokenizer_hash), "), found ", text->path(), " (hash ", base::hex(text->tokenizer_hash()), ")"));
  }
  return std::optional(*std::move(text));
}

// A page that cannot be written is a mistake in the command line.
absl::Status write_page(const std::string& file, const std::string& page) {
  const absl::Status status = base::replace_file(file, page);
  return status.ok() ? status : absl::InvalidArgumentError(absl::StrCat("--html: ", std::string(status.message())));
}

} // namespace

absl::StatusOr<DocumentRange> chosen_documents(const InspectRequest& request, int64_t total) {
  DocumentRange range{0, std::min(kDocuments, total), request.max_tokens.value_or(kMaxTokens)};
  if (request.document) {
    range.first = *request.document;
    range.count = 1;
  } else if (!request.documents.empty()) {
    const std::string& text = request.documents;
    const size_t dash = text.find('-');
    const auto first = count_in(text.substr(0, dash));
    const auto last = dash == std::string::npos ? std::nullopt : count_in(text.substr(dash + 1));
    const bool is_range = dash != std::string::npos;
    if (!first || (is_range && (!last || *last < *first)) || (!is_range && *first == 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--documents: expected a number of documents, at least 1, or a range such as 10-20, found ", text));
    }
    range.first = is_range ? *first : 0;
    range.count = is_range ? *last - *first + 1 : std::min(*first, total);
  }
  if (range.first < 0 || range.first >= total || range.count > total - range.first) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %s: expected documents 0 to %d, found %s", request.path, request.document ? "--document" : "--documents",
        total - 1, request.document ? absl::StrCat(*request.document) : request.documents));
  }
  return range;
}

absl::StatusOr<std::string> inspect_token_data(const InspectRequest& request) {
  if (!request.html.empty()) {
    RETURN_IF_ERROR(base::check_output_file("--html", request.html));
  }
  const bool chosen = request.document || !request.documents.empty();
  if (!chosen && request.tokenizer.empty() && request.html.empty() && !request.max_tokens) {
    ASSIGN_OR_RETURN(const std::string description, data::describe_data(request.path, kDocuments));
    return description + kHint;
  }
  ASSIGN_OR_RETURN(const std::vector<data::Shard> shards, data::open_shards(request.path));
  int64_t total = 0;
  for (const data::Shard& shard : shards) {
    total += shard.documents();
  }
  ASSIGN_OR_RETURN(const DocumentRange range, chosen_documents(request, total));
  ASSIGN_OR_RETURN(const auto text, read_text(request, shards[0].tokenizer_hash()));
  std::string out;
  if (!chosen) {
    ASSIGN_OR_RETURN(out, data::describe_data(request.path, /*documents=*/0));
  }
  ASSIGN_OR_RETURN(const auto documents, read_documents(shards, text ? &*text : nullptr, range));
  if (!request.html.empty()) {
    RETURN_IF_ERROR(write_page(request.html, html_page({request.path, text->path()}, documents)));
    return absl::StrCat(out, "wrote ", documents.size(), " documents to ", request.html, "\n");
  }
  out += text ? "\n" + terminal_legend(request.colour) : "";
  for (const ShownDocument& document : documents) {
    absl::StrAppend(&out, "\n", text ? terminal_text(document, request.colour) : terminal_ids(document));
  }
  return text ? out : out + kHint;
}

} // namespace distill::trainer
