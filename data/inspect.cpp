#include "data/inspect.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <filesystem>
#include <functional>
#include <map>

#include "data/base/status_macros.h"
#include "data/shard.h"

namespace distill::data {

namespace {

constexpr int64_t kShownIds = 24;

struct Statistics {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t in_loss = 0;
  int64_t teacher_tokens = 0;
  int64_t longest_teacher_text = 0;
  int64_t teacher_texts = 0; // documents that have one
  std::map<std::string, int64_t> by_teacher; // documents that name each teacher; "": none
  bool named = false; // whether a shard has names of teachers
  std::vector<int64_t> lengths;

  void add(const Shard& shard) {
    documents += shard.documents();
    tokens += shard.tokens();
    for (int64_t i = 0; i < shard.documents(); ++i) {
      lengths.push_back(shard.document_length(i));
      const int64_t teacher_length = shard.teacher_length(i);
      teacher_texts += teacher_length > 0 ? 1 : 0;
      longest_teacher_text = std::max(longest_teacher_text, teacher_length);
      const std::string* name = shard.teacher_of(i);
      ++by_teacher[name != nullptr ? *name : ""];
    }
    teacher_tokens += shard.teacher_tokens();
    named = named || !shard.teacher_names().empty();
    for (int64_t token = 0; token < shard.tokens(); ++token) {
      in_loss += shard.in_loss(token) ? 1 : 0;
    }
  }

  std::string text() {
    std::sort(lengths.begin(), lengths.end());
    const auto at = [&](double quantile) {
      return lengths[static_cast<size_t>(quantile * static_cast<double>(lengths.size() - 1))];
    };
    std::string text = absl::StrFormat(
        "documents        %d\n"
        "tokens           %d\n"
        "document length  mean %.1f, min %d, median %d, p90 %d, max %d tokens\n"
        "tokens in loss   %d (%.2f %%)\n",
        documents, tokens, static_cast<double>(tokens) / static_cast<double>(documents), lengths.front(), at(0.5),
        at(0.9), lengths.back(), in_loss, 100.0 * static_cast<double>(in_loss) / static_cast<double>(tokens));
    if (teacher_texts > 0) {
      absl::StrAppendFormat(
          &text, "teacher texts    of %d documents: mean %.1f, max %d tokens; %d tokens in all\n", teacher_texts,
          static_cast<double>(teacher_tokens) / static_cast<double>(teacher_texts), longest_teacher_text,
          teacher_tokens);
    }
    if (named) {
      const auto append = [](std::string* out, const auto& entry) {
        absl::StrAppend(out, entry.first.empty() ? "none" : entry.first, " of ", entry.second, " documents");
      };
      absl::StrAppend(&text, "teachers named   ", absl::StrJoin(by_teacher, ", ", append), "\n");
    }
    return text;
  }
};

std::string id_text(int64_t id) {
  return id < 0 ? "none" : absl::StrCat(id);
}

// The ids as text, with those that are not `marked` in brackets. `length`: tokens of the whole text, of which these are
// the first.
std::string id_list(const std::vector<int64_t>& ids, int64_t length, const std::function<bool(int64_t)>& marked) {
  std::string out;
  for (size_t j = 0; j < ids.size(); ++j) {
    const bool plain = marked(static_cast<int64_t>(j));
    absl::StrAppend(&out, plain ? " " : " [", ids[j], plain ? "" : "]");
  }
  return absl::StrCat(out, length > kShownIds ? " ...\n" : "\n");
}

// The first ids of the first documents, and of what the teacher reads; ids without a loss are in brackets.
absl::StatusOr<std::string> first_documents(const Shard& shard, int64_t documents) {
  std::string out;
  for (int64_t i = 0; i < std::min(documents, shard.documents()); ++i) {
    const int64_t begin = shard.document_begin(i), length = shard.document_length(i);
    std::vector<int64_t> ids(std::min(length, kShownIds));
    RETURN_IF_ERROR(shard.read_tokens(begin, absl::MakeSpan(ids)));
    const std::string* name = shard.teacher_of(i);
    const std::string teacher = name != nullptr ? absl::StrCat(", teacher ", *name) : "";
    absl::StrAppend(
        &out, "document ", i, " (", length, " tokens", teacher,
        "):", id_list(ids, length, [&](int64_t token) { return shard.in_loss(begin + token); }));
    if (const int64_t teacher_length = shard.teacher_length(i); teacher_length > 0) {
      const int64_t teacher_begin = shard.teacher_begin(i);
      ids.resize(std::min(teacher_length, kShownIds));
      RETURN_IF_ERROR(shard.read_teacher_tokens(teacher_begin, absl::MakeSpan(ids)));
      absl::StrAppend(
          &out, "  the teacher reads (", teacher_length, " tokens):", id_list(ids, teacher_length, [&](int64_t token) {
            return shard.in_teacher_completion(teacher_begin + token);
          }));
    }
  }
  return out;
}

std::string header_text(const Shard& shard) {
  const ShardHeader& header = shard.header();
  return absl::StrFormat(
      "token shard      %s\n"
      "version          %d\n"
      "file size        %d bytes\n"
      "token type       %s\n"
      "vocab size       %d\n"
      "bos / eos id     %s / %s\n"
      "loss mask        %s\n"
      "teacher stream   %s\n"
      "tokenizer hash   %s\n",
      shard.path(), header.version, header.file_bytes, header.token_bytes == 2 ? "uint16" : "uint32", header.vocab_size,
      id_text(header.bos_id), id_text(header.eos_id), shard.has_loss_mask() ? "yes" : "no",
      shard.has_teacher_tokenizer() ? absl::StrCat("yes, in the tokens of ", base::hex(shard.teacher_tokenizer_hash()))
          : shard.has_teacher_stream() ? "yes"
                                       : "no",
      base::hex(shard.tokenizer_hash()));
}

} // namespace

absl::StatusOr<std::string> describe_shard(const std::string& path, int64_t documents) {
  ASSIGN_OR_RETURN(const Shard shard, Shard::open(path));
  RETURN_IF_ERROR(shard.verify());
  Statistics statistics;
  statistics.add(shard);
  ASSIGN_OR_RETURN(const std::string first, first_documents(shard, documents));
  return absl::StrCat(header_text(shard), statistics.text(), "payload          intact (SHA-256)\n", first);
}

absl::StatusOr<std::string> describe_data(const std::string& path, int64_t documents) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return describe_shard(path, documents);
  }
  ASSIGN_OR_RETURN(const std::vector<Shard> shards, open_shards(path));
  std::string list;
  Statistics statistics;
  for (const Shard& shard : shards) {
    RETURN_IF_ERROR(shard.verify());
    statistics.add(shard);
    const std::string name = std::filesystem::path(shard.path()).filename().string();
    absl::StrAppendFormat(&list, "  %s: %d documents, %d tokens\n", name, shard.documents(), shard.tokens());
  }
  ASSIGN_OR_RETURN(const std::string first, first_documents(shards[0], documents));
  return absl::StrCat(
      "token shards     ", path, " (", shards.size(), " files)\n", list, "vocab size       ",
      shards[0].header().vocab_size, "\ntokenizer hash   ", base::hex(shards[0].tokenizer_hash()), "\n",
      statistics.text(), "payload          intact (SHA-256)\n", first);
}

} // namespace distill::data
