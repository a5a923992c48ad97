#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "trainer/checkpoint/state.h"
#include "trainer/models/layout.h"

// index.json of a checkpoint: the state of the run, the positions of its tensors in the files, the files' checksums.
namespace distill::checkpoint {

inline constexpr int64_t kFormatVersion = 3;
// The oldest one that is read. It has no data_stages: its only stage has the length and packing of its configuration.
inline constexpr int64_t kOldestVersion = 2;
inline constexpr int64_t kBlockBytes = int64_t{4} << 20; // the bytes that one checksum covers

struct Param {
  std::string name;
  int64_t offset = 0; // elements
  std::vector<int64_t> shape;
  bool operator==(const Param&) const = default;
};

// The layout of a unit's flat buffer.
struct Unit {
  std::string name;
  int64_t numel = 0;
  std::vector<Param> params;
  bool operator==(const Unit&) const = default;
};

// Elements [begin, begin + numel) of a unit's flat buffer. The last rank's range may extend past the end of the unit.
struct Range {
  int64_t begin = 0;
  int64_t numel = 0;
  bool operator==(const Range&) const = default;
};

// The file with one rank's shards.
struct ShardFile {
  std::string name; // in the checkpoint's folder
  int64_t bytes = 0;
  std::vector<Range> ranges; // one for each unit
  std::vector<uint64_t> block_sums; // one for each kBlockBytes of the file; the last block may be shorter
};

struct Index {
  int64_t version = kFormatVersion;
  TrainState state;
  RunInfo info;
  int64_t shard = 1; // ranks that share one copy of the model (parallel.shard)
  int64_t replicate = 1; // copies of the model, of which the first one is written (parallel.replicate)
  std::vector<Unit> units;
  std::vector<ShardFile> files; // [shard]
};

std::vector<Unit> describe_units(const std::vector<models::UnitLayout>& layouts);

std::string to_json(const Index& index);

// Reads an index that is not trusted. Checks that the files' ranges cover every unit without holes, that file names do
// not lead out of the folder, and that the number of checksums matches each file's size. DataLoss names `source` and
// the problem. FailedPrecondition: another format version.
absl::StatusOr<Index> parse_index(std::string_view text, const std::string& source);

} // namespace distill::checkpoint
