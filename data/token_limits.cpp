#include "data/token_limits.h"

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <optional>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"

namespace distill::data {
namespace {

constexpr int64_t kBlock = 1 << 16; // tokens that are read at a time

struct Found {
  int64_t token; // position in the stream
  int64_t id;
  int64_t count = 1; // how many tokens cannot be read, this one included
};

// The first token of a stream that cannot be read; `read` fills a block from a position on.
absl::StatusOr<std::optional<Found>> find(
    const Shard& shard, const TokenLimits::Stream& limits, int64_t tokens,
    const std::function<absl::Status(int64_t, absl::Span<int64_t>)>& read) {
  const auto vocab = static_cast<int64_t>(shard.header().vocab_size);
  const std::vector<int64_t>& absent = limits.absent;
  const int64_t rows = limits.rows > 0 ? std::min(limits.rows, vocab) : vocab;
  const bool any_absent = !absent.empty() && absent.front() < rows;
  std::optional<Found> found;
  if (rows == vocab && !any_absent) {
    return found;
  }
  const auto readable = [&](int64_t id) {
    const bool may_be_absent = any_absent && id >= absent.front() && id <= absent.back();
    return id < rows && !(may_be_absent && std::binary_search(absent.begin(), absent.end(), id));
  };
  std::vector<int64_t> block(kBlock);
  for (int64_t begin = 0; begin < tokens; begin += kBlock) {
    const int64_t count = std::min(kBlock, tokens - begin);
    RETURN_IF_ERROR(read(begin, absl::MakeSpan(block.data(), static_cast<size_t>(count))));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = block[static_cast<size_t>(i)];
      if (readable(id)) {
        continue;
      }
      if (found) {
        ++found->count;
      } else {
        found = Found{begin + i, id};
      }
    }
  }
  return found;
}

std::string message(const Shard& shard, const TokenLimits& limits, const Found& found, bool of_teacher) {
  const auto begin = [&](int64_t document) {
    return of_teacher ? shard.teacher_begin(document) : shard.document_begin(document);
  };
  int64_t low = 0;
  int64_t high = shard.documents();
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (begin(middle) <= found.token ? low : high) = middle;
  }
  const TokenLimits::Stream& stream = of_teacher ? limits.teacher_texts : limits.documents;
  const std::string text = limits.token_text ? limits.token_text(found.id) : "";
  std::string out = absl::StrCat(
      shard.path(), ": document ", low, of_teacher ? ", text of the teacher's own" : "", ", token ",
      found.token - begin(low), ": id ", found.id,
      text.empty() ? "" : absl::StrCat(" (\"", absl::Utf8SafeCEscape(text), "\")"));
  const bool beyond = stream.rows > 0 && found.id >= stream.rows;
  absl::StrAppend(
      &out,
      beyond ? absl::StrCat(": expected an id below ", stream.rows, ", the rows of the model's embeddings")
             : ": expected a token of both tokenizers, found one that student or teacher lacks");
  if (found.count > 1) {
    absl::StrAppend(&out, "; the file has ", found.count, " tokens of the kind");
  }
  absl::StrAppend(
      &out,
      beyond ? absl::StrCat(
                   "; give the model rows for the token (resize_token_embeddings(", found.id + 1,
                   ") of transformers), or tokenise texts without it")
             : "; tokenise texts without it");
  return out;
}

} // namespace

absl::StatusOr<MaskedDocuments> leave_out_masked(Shard& shard, const TokenLimits& limits) {
  const std::vector<int64_t>& masked = limits.documents.masked;
  MaskedDocuments found;
  std::vector<Shard::TokenRange> ranges;
  if (masked.empty() || masked.front() >= static_cast<int64_t>(shard.header().vocab_size)) {
    return found;
  }
  std::vector<int64_t> block;
  for (int64_t document = 0; document < shard.documents(); ++document) {
    if (shard.teacher_length(document) > 0) {
      continue;
    }
    const int64_t begin = shard.document_begin(document), end = shard.document_begin(document + 1);
    int64_t first = end;
    for (int64_t at = begin; at < end && first == end; at += kBlock) {
      block.resize(static_cast<size_t>(std::min(kBlock, end - at)));
      RETURN_IF_ERROR(shard.read_tokens(at, absl::MakeSpan(block)));
      const auto is_masked = [&](int64_t id) { return std::binary_search(masked.begin(), masked.end(), id); };
      const auto place = std::find_if(block.begin(), block.end(), is_masked);
      first = place == block.end() ? end : at + (place - block.begin());
    }
    if (first == end) {
      continue;
    }
    ranges.push_back({first, end});
    ++found.documents;
    for (int64_t token = std::max(first, begin + 1); token < end; ++token) {
      found.targets += shard.in_loss(token) ? 1 : 0;
    }
  }
  shard.leave_out(std::move(ranges));
  return found;
}

absl::Status check_token_limits(const Shard& shard, const TokenLimits& limits) {
  base::ProblemList problems;
  const auto check = [&](bool of_teacher) -> absl::Status {
    ASSIGN_OR_RETURN(
        const auto found,
        find(
            shard, of_teacher ? limits.teacher_texts : limits.documents,
            of_teacher ? shard.teacher_tokens() : shard.tokens(), [&](int64_t begin, absl::Span<int64_t> out) {
              return of_teacher ? shard.read_teacher_tokens(begin, out) : shard.read_tokens(begin, out);
            }));
    return found ? absl::InvalidArgumentError(message(shard, limits, *found, of_teacher)) : absl::OkStatus();
  };
  problems.add(check(/*of_teacher=*/false));
  // Texts with the ids of another tokenizer are read by its alignment alone, which knows the rows.
  if (shard.has_teacher_stream() && !shard.has_teacher_tokenizer()) {
    problems.add(check(/*of_teacher=*/true));
  }
  return problems.status();
}

} // namespace distill::data
