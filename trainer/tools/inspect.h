#pragma once

#include <absl/status/statusor.h>

#include <optional>
#include <string>

namespace distill::trainer {

struct InspectRequest {
  std::string path;
  // The remaining options are for token shards, and all but `html` for a teacher's cache.
  std::string tokenizer; // model folder or tokenizer.json: documents are shown as text; empty: as ids
  std::string documents; // "N": the first N; "A-B": from A to B, both included; empty: the first 3
  std::optional<int64_t> document; // this one alone
  std::optional<int64_t> max_tokens; // of each document that is shown; 0: all
  std::string html; // file to write the documents to, instead of showing them; needs a tokenizer
  bool colour = false;
};

// Describes and checks what is at the path, for people: a token shard, a folder of token shards, a model folder, a run
// folder, a teacher's cache or a checkpoint. With a choice of documents, only these are read and shown. NotFound:
// nothing is there. InvalidArgument: it is none of these; an option that does not fit it; a tokenizer that is not the
// shards'; a document that does not exist; a page that cannot be written.
absl::StatusOr<std::string> inspect(const InspectRequest& request);

} // namespace distill::trainer
