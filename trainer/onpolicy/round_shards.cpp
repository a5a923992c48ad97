#include "trainer/onpolicy/round_shards.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <filesystem>

#include "data/base/status_macros.h"

namespace distill::onpolicy {

RoundShards::RoundShards(std::vector<const data::Shard*> shards) : shards_(std::move(shards)) {
  std::sort(
      shards_.begin(), shards_.end(), [](const data::Shard* a, const data::Shard* b) { return a->path() < b->path(); });
  shards_.erase(std::unique(shards_.begin(), shards_.end()), shards_.end());
  first_ = {0};
  for (const data::Shard* shard : shards_) {
    first_.push_back(first_.back() + shard->documents());
  }
}

int64_t RoundShards::tokens() const {
  int64_t tokens = 0;
  for (const data::Shard* shard : shards_) {
    tokens += shard->tokens();
  }
  return tokens;
}

std::pair<const data::Shard*, int64_t> RoundShards::find(int64_t document) const {
  const auto place = static_cast<size_t>(std::upper_bound(first_.begin(), first_.end(), document) - first_.begin() - 1);
  return {shards_.at(place), document - first_[place]};
}

int64_t RoundShards::number(const data::Shard& shard, int64_t document) const {
  const auto place = static_cast<size_t>(std::find(shards_.begin(), shards_.end(), &shard) - shards_.begin());
  return first_.at(place) + document;
}

std::string RoundShards::identity() const {
  base::Digest hash;
  if (shards_.size() == 1) {
    std::copy_n(shards_.front()->header().header_hash, hash.size(), hash.begin());
    return "sha256 " + base::hex(hash);
  }
  base::Sha256 all;
  for (const data::Shard* shard : shards_) {
    all.update(shard->header().header_hash, sizeof(data::ShardHeader::header_hash));
  }
  return "sha256 " + base::hex(all.finish());
}

std::string round_shard_path(const std::string& folder, int64_t number) {
  return absl::StrFormat("%s/shard-%05d%s", folder, number, data::kShardExtension);
}

std::vector<std::string> round_shard_paths(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (int64_t number = 0;; ++number) {
    const std::string path = round_shard_path(folder, number);
    if (!std::filesystem::exists(path, error)) {
      return paths;
    }
    paths.push_back(path);
  }
}

absl::StatusOr<std::vector<data::Shard>> open_round_shards(const std::string& folder) {
  std::vector<std::string> paths = round_shard_paths(folder);
  if (paths.empty()) {
    paths.push_back(round_shard_path(folder, 0)); // the error names it
  }
  std::vector<data::Shard> shards;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(data::Shard shard, data::Shard::open(path));
    shards.push_back(std::move(shard));
  }
  return shards;
}

} // namespace distill::onpolicy
