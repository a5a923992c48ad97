#include "data/teacher_groups.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <map>

namespace distill::data {

namespace {

std::vector<double> share_weights(absl::Span<const TeacherShare> shares) {
  std::vector<double> weights;
  for (const TeacherShare& share : shares) {
    weights.push_back(share.second);
  }
  return weights;
}

} // namespace

absl::StatusOr<std::vector<std::vector<uint32_t>>> divide_documents(
    absl::Span<const Shard> shards, absl::Span<const TeacherShare> shares, absl::Span<const std::string> teachers) {
  const auto number_of = [&](const std::string& name) {
    return static_cast<size_t>(std::find(teachers.begin(), teachers.end(), name) - teachers.begin());
  };
  std::vector<size_t> numbers; // of the shares' teachers
  for (const TeacherShare& share : shares) {
    numbers.push_back(number_of(share.first));
    TORCH_CHECK(numbers.back() < teachers.size(), "no teacher is called ", share.first);
  }
  const std::optional<Mixer> dealer =
      shares.empty() ? std::nullopt : std::optional<Mixer>(std::in_place, share_weights(shares));
  std::vector<std::vector<uint32_t>> documents(teachers.size());
  std::string first;
  int64_t wrong = 0;
  uint32_t at = 0;
  for (const Shard& shard : shards) {
    std::map<const std::string*, size_t> known; // of the names of this shard
    for (int64_t document = 0; document < shard.documents(); ++document, ++at) {
      size_t number;
      if (dealer) {
        number = numbers[static_cast<size_t>(dealer->locate(at).source)];
      } else {
        const std::string* name = shard.teacher_of(document);
        const auto [entry, is_new] = known.emplace(name, teachers.size());
        if (is_new && name != nullptr) {
          entry->second = number_of(*name);
        }
        number = entry->second;
        if (number == teachers.size()) {
          if (wrong++ == 0) {
            first = absl::StrCat(
                shard.path(), ": document ", document, ": expected the name of its teacher, one of ",
                absl::StrJoin(teachers, ", "), " (teachers), found ", name != nullptr ? *name : "none",
                name != nullptr ? "" : "; `teacher:` beside the data set's path gives it to all of its documents");
          }
          continue;
        }
      }
      documents[number].push_back(at);
    }
  }
  if (wrong > 0) {
    return absl::InvalidArgumentError(
        wrong == 1 ? first : absl::StrCat(first, "; ", wrong - 1, " more of ", at, " documents have no such teacher"));
  }
  return documents;
}

TeacherMixer::TeacherMixer(absl::Span<const Source> sources, int64_t group) : group_(group) {
  std::map<int64_t, std::vector<double>> weights;
  std::map<int64_t, std::vector<int64_t>> indices;
  for (size_t i = 0; i < sources.size(); ++i) {
    weights[sources[i].teacher].push_back(sources[i].weight);
    indices[sources[i].teacher].push_back(static_cast<int64_t>(i));
  }
  std::vector<double> of_teachers;
  for (const auto& [number, own] : weights) {
    of_teachers.push_back(0);
    for (const double weight : own) {
      of_teachers.back() += weight;
    }
    teachers_.push_back({number, indices[number], Mixer(own)});
  }
  groups_.emplace(of_teachers);
}

std::pair<size_t, int64_t> TeacherMixer::among_teacher(int64_t sample) const {
  const Mixer::Place place = groups_->locate(sample / group_);
  return {static_cast<size_t>(place.source), place.sample * group_ + sample % group_};
}

Mixer::Place TeacherMixer::locate(int64_t sample) const {
  const auto [index, own] = among_teacher(sample);
  const Teacher& teacher = teachers_[index];
  const Mixer::Place place = teacher.mixer->locate(own);
  return {teacher.sources[static_cast<size_t>(place.source)], place.sample};
}

int64_t TeacherMixer::teacher_of(int64_t sample) const {
  return teachers_[among_teacher(sample).first].number;
}

int64_t TeacherMixer::count_before(int64_t sample, int64_t source) const {
  for (size_t i = 0; i < teachers_.size(); ++i) {
    const std::vector<int64_t>& sources = teachers_[i].sources;
    const auto found = std::find(sources.begin(), sources.end(), source);
    if (found != sources.end()) {
      const auto [current, own] = among_teacher(sample);
      const int64_t samples =
          current == i ? own : groups_->count_before(sample / group_, static_cast<int64_t>(i)) * group_;
      return teachers_[i].mixer->count_before(samples, found - sources.begin());
    }
  }
  TORCH_CHECK(false, "source ", source, " is not mixed");
}

} // namespace distill::data
