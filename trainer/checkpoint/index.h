#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "trainer/checkpoint/state.h"
#include "trainer/models/layout.h"

// index.json of a checkpoint: the state of the run, how its tensors lie in the files, and the files' checksums.
namespace distill::checkpoint {

inline constexpr int64_t kFormatVersion = 3;
inline constexpr int64_t kOldestVersion = 2; // that is read; it has no data_stages: its one stage is that of its config
inline constexpr int64_t kBlockBytes = int64_t{4} << 20; // what one checksum covers

struct Param {
  std::string name;
  int64_t offset = 0; // elements
  std::vector<int64_t> shape;
  bool operator==(const Param&) const = default;
};

// A unit's flat buffer.
struct Unit {
  std::string name;
  int64_t numel = 0;
  std::vector<Param> params;
  bool operator==(const Unit&) const = default;
};

// Elements [begin, begin + numel) of a unit's flat buffer; the last rank's range may reach past the unit's end.
struct Range {
  int64_t begin = 0;
  int64_t numel = 0;
  bool operator==(const Range&) const = default;
};

// One rank's shards.
struct ShardFile {
  std::string name; // within the checkpoint's folder
  int64_t bytes = 0;
  std::vector<Range> ranges; // of every unit
  std::vector<uint64_t> block_sums; // of every kBlockBytes of the file; the last block may be short
};

struct Index {
  int64_t version = kFormatVersion;
  TrainState state;
  RunInfo info;
  int64_t shard = 1; // ranks that held one copy of the model
  int64_t replicate = 1; // copies, of which the first one was written
  std::vector<Unit> units;
  std::vector<ShardFile> files; // `shard` of them
};

std::vector<Unit> describe_units(const std::vector<models::UnitLayout>& layouts);

std::string to_json(const Index& index);

// Reads an index that is not trusted. On success the files' ranges cover every unit without holes, names cannot leave
// the folder, and the numbers of checksums fit the files' sizes. DataLoss names `source` and what is wrong;
// FailedPrecondition: another format version.
absl::StatusOr<Index> parse_index(std::string_view text, const std::string& source);

} // namespace distill::checkpoint
