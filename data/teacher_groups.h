#pragma once

#include <absl/status/statusor.h>
#include <absl/types/span.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/mixer.h"
#include "data/shard.h"

// Which documents of a data set belong to which of a run's teachers, and the order in which samples with several
// teachers are read.
namespace distill::data {

// A teacher and its share of a source's documents.
using TeacherShare = std::pair<std::string, double>;

// Divides the documents of a source among `teachers`, whose names they are: result[t] are the documents of teacher t,
// in their order, counted over all shards. `shares`: empty: each document names its teacher; one: all documents have
// this teacher, whatever they name; several: the documents are dealt to these teachers in proportion to their shares,
// as evenly as possible. InvalidArgument names the file and the first document that has no teacher or one that is not
// among them.
absl::StatusOr<std::vector<std::vector<uint32_t>>> divide_documents(
    absl::Span<const Shard> shards, absl::Span<const TeacherShare> shares, absl::Span<const std::string> teachers);

// Interleaves the samples of sources, each of which has one teacher, such that `group` samples in a row have the same
// teacher: samples [k * group, (k + 1) * group) for each k. The teachers take turns as evenly as possible, in
// proportion to the sums of their sources' weights, and each teacher's samples, one after the other, are those that its
// sources alone would be read as. With one teacher the groups do not matter.
class TeacherMixer {
 public:
  struct Source {
    int64_t teacher;
    double weight;
  };

  TeacherMixer(absl::Span<const Source> sources, int64_t group);

  Mixer::Place locate(int64_t sample) const;
  int64_t teacher_of(int64_t sample) const;
  // Returns the number of samples before `sample` that are of this source.
  int64_t count_before(int64_t sample, int64_t source) const;

 private:
  struct Teacher {
    int64_t number;
    std::vector<int64_t> sources; // indices, ascending
    std::optional<Mixer> mixer; // of these
  };
  // A sample's teacher, as an index into teachers_, and the sample's number among all samples of this teacher.
  std::pair<size_t, int64_t> among_teacher(int64_t sample) const;

  int64_t group_;
  std::vector<Teacher> teachers_; // those that have sources, by number
  std::optional<Mixer> groups_;
};

} // namespace distill::data
