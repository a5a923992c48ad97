#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "data/shard.h"

namespace distill::onpolicy {

// The token shards of a round, in a folder: one for each tokenizer in whose ids teachers read completions, so one as a
// rule. Documents are numbered over all of them.
class RoundShards {
 public:
  // In the order of their names; those that stand there twice are taken once. They outlive this.
  explicit RoundShards(std::vector<const data::Shard*> shards);

  int64_t documents() const {
    return first_.back();
  }
  int64_t tokens() const;
  // The shard of a document, and its number there. 0 <= document < documents().
  std::pair<const data::Shard*, int64_t> find(int64_t document) const;
  int64_t number(const data::Shard& shard, int64_t document) const;
  // A hash of the shards' headers, which hold the hashes of their contents.
  std::string identity() const;

 private:
  std::vector<const data::Shard*> shards_;
  std::vector<int64_t> first_; // document of each shard, and the number of all
};

// The paths of the shards in a folder, from the first one on; empty: there are none.
std::vector<std::string> round_shard_paths(const std::string& folder);
// The path that a shard of a folder has, by its number.
std::string round_shard_path(const std::string& folder, int64_t number);
absl::StatusOr<std::vector<data::Shard>> open_round_shards(const std::string& folder); // at least one

} // namespace distill::onpolicy
