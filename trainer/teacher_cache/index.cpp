#include "trainer/teacher_cache/index.h"

#include <algorithm>
#include <tuple>

#include "data/base/mapped_file.h"
#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "trainer/teacher_cache/cache_folder.h"

namespace distill::teacher_cache {
namespace {

auto order(const StretchPlace& place) {
  const StretchEntry& e = place.entry;
  return std::tuple(e.shard, e.document, e.begin, UINT32_MAX - e.tokens, place.part);
}

} // namespace

absl::StatusOr<PartIndex> read_part(const std::string& folder, int64_t part, const Manifest& manifest) {
  const std::string path = part_path(folder, part);
  ASSIGN_OR_RETURN(const base::MappedFile file, base::MappedFile::open(path));
  ASSIGN_OR_RETURN(PartIndex index, parse_part(file.text(), path));
  RETURN_IF_ERROR(check_part(index, manifest, part, path));
  return index;
}

absl::StatusOr<std::shared_ptr<const Index>> Index::open(const std::string& folder, bool partial) {
  auto index = std::make_shared<Index>();
  index->folder_ = folder;
  ASSIGN_OR_RETURN(index->manifest_, read_manifest(folder));
  ASSIGN_OR_RETURN(const std::vector<int64_t> parts, complete_parts(folder));
  base::ProblemList problems;
  for (const int64_t part : parts) {
    const auto found = problems.take(read_part(folder, part, index->manifest_));
    for (size_t i = 0; found && i < found->stretches.size(); ++i) {
      index->places_.push_back({found->stretches[i], part, found->offsets[i]});
      index->rows_ += found->stretches[i].rows;
    }
  }
  if (!partial) {
    problems.add(check_complete(folder, index->manifest_, parts));
  }
  RETURN_IF_ERROR(problems.status());
  index->parts_ = static_cast<int64_t>(parts.size());
  std::sort(index->places_.begin(), index->places_.end(), [](const StretchPlace& a, const StretchPlace& b) {
    return order(a) < order(b);
  });
  return index;
}

absl::Span<const StretchPlace> Index::document(uint32_t shard, uint32_t document) const {
  const auto key = [](const StretchPlace& place) { return std::pair(place.entry.shard, place.entry.document); };
  const auto less = [&](const StretchPlace& place, const std::pair<uint32_t, uint32_t>& value) {
    return key(place) < value;
  };
  const auto first = std::lower_bound(places_.begin(), places_.end(), std::pair(shard, document), less);
  auto last = first;
  while (last != places_.end() && key(*last) == std::pair(shard, document)) {
    ++last;
  }
  return {places_.data() + (first - places_.begin()), static_cast<size_t>(last - first)};
}

} // namespace distill::teacher_cache
