#include "data/dataset.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/base/problem_list.h"
#include "data/base/status_macros.h"
#include "data/random.h"

namespace distill::data {

namespace {

void check_options(const DataOptions& options, base::ProblemList& problems) {
  if (options.sources.empty()) {
    problems.add("data: expected at least one token shard or folder of shards, found none");
  }
  if (options.sources.size() >= static_cast<size_t>(Mixer::kPeriod)) {
    problems.add(
        absl::StrCat("data: expected fewer than ", Mixer::kPeriod, " sources, found ", options.sources.size()));
  }
  for (const DataSource& source : options.sources) {
    if (!std::isfinite(source.weight) || source.weight <= 0) {
      problems.add(absl::StrCat(source.path, ": weight: expected a positive finite number, found ", source.weight));
    }
  }
  if (options.seq_len < 2 || options.seq_len > INT32_MAX) {
    problems.add(absl::StrCat("seq_len: expected 2 to 2^31 - 1, found ", options.seq_len));
  }
  if (options.teacher_seq_len != 0 && (options.teacher_seq_len < 2 || options.teacher_seq_len > INT32_MAX)) {
    problems.add(absl::StrCat("teacher_seq_len: expected 0 or 2 to 2^31 - 1, found ", options.teacher_seq_len));
  }
  if (options.pin_memory && !at::hasCUDA()) {
    problems.add("pin_memory: expected a CUDA device, found none");
  }
}

void check_shard(Shard& shard, const DataOptions& options, MaskedDocuments& masked, base::ProblemList& problems) {
  if (shard.has_teacher_stream() && options.teacher_stream && options.packing == PackingMode::kConcat) {
    problems.add(absl::StrCat(
        shard.path(),
        ": has texts of the teacher's own: expected packing: pack, found concat (the texts of student and "
        "teacher have other lengths, so that one stream cannot be cut at the same places of both)"));
  }
  const std::vector<base::Digest>& hashes = options.tokenizer_hashes;
  if (!hashes.empty() && std::find(hashes.begin(), hashes.end(), shard.tokenizer_hash()) == hashes.end()) {
    const auto append = [](std::string* out, const base::Digest& hash) { out->append(base::hex(hash)); };
    problems.add(absl::StrCat(
        shard.path(), ": header field `tokenizer_hash`: expected ", absl::StrJoin(hashes, " or ", append),
        hashes.size() > 1 ? " (the tokenizers of student and teacher), found " : " (the model's tokenizer), found ",
        base::hex(shard.tokenizer_hash()), "; tokenise the text again with the model's tokenizer"));
  } else {
    problems.add(check_token_limits(shard, options.limits));
    if (const auto found = problems.take(leave_out_masked(shard, options.limits))) {
      masked.documents += found->documents;
      masked.targets += found->targets;
    }
  }
  if (options.verify) {
    // Texts in a teacher's tokens are compared where its documents are known (align_source).
    problems.add(shard.verify());
  }
  shard.advise(options.shuffle ? base::Access::kRandom : base::Access::kSequential);
}

} // namespace

absl::StatusOr<std::unique_ptr<Dataset>> Dataset::open(const DataOptions& options) {
  base::ProblemList problems;
  check_options(options, problems);
  std::unique_ptr<Dataset> dataset(new Dataset());
  dataset->options_ = options;
  std::optional<std::pair<std::string, base::Digest>> first; // the first shard, and its tokenizer
  for (const DataSource& spec : options.sources) {
    std::optional<std::vector<Shard>> shards = problems.take(open_shards(spec.path));
    if (!shards) {
      continue;
    }
    MaskedDocuments masked;
    for (Shard& shard : *shards) {
      check_shard(shard, options, masked, problems);
    }
    if (options.tokenizer_hashes.empty() && first && first->second != (*shards)[0].tokenizer_hash()) {
      problems.add(absl::StrCat(
          (*shards)[0].path(), ": header field `tokenizer_hash`: expected ", base::hex(first->second), " as in ",
          first->first, ", found ", base::hex((*shards)[0].tokenizer_hash())));
    }
    if (!first) {
      first = {(*shards)[0].path(), (*shards)[0].tokenizer_hash()};
    }
    problems.add(dataset->add_sources(static_cast<size_t>(&spec - options.sources.data()), *std::move(shards), masked));
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  // With several teachers their samples are read one teacher after the other, or in turn; with one nothing changes.
  std::stable_sort(dataset->sources_.begin(), dataset->sources_.end(), [](const Source& a, const Source& b) {
    return a.teacher < b.teacher;
  });
  dataset->check_every_teacher(problems);
  RETURN_IF_ERROR(
      problems.status(dataset->sources_.empty() ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument));
  RETURN_IF_ERROR(dataset->plan_sources());
  return dataset;
}

absl::Status Dataset::add_sources(size_t option, std::vector<Shard> shards, const MaskedDocuments& masked) {
  Source source;
  source.masked = masked;
  source.option = option;
  source.first_document = {0};
  for (const Shard& shard : shards) {
    source.first_document.push_back(source.first_document.back() + shard.documents());
  }
  source.shards = std::make_shared<const std::vector<Shard>>(std::move(shards));
  if (options_.teachers.size() < 2) {
    sources_.push_back(std::move(source));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(
      std::vector<std::vector<uint32_t>> documents,
      divide_documents(*source.shards, options_.sources[option].teachers, options_.teachers));
  for (size_t teacher = 0; teacher < documents.size(); ++teacher) {
    const bool wanted = options_.only_teacher < 0 || options_.only_teacher == static_cast<int64_t>(teacher);
    if (wanted && !documents[teacher].empty()) {
      Source own = source;
      own.teacher = has_several_teachers() ? static_cast<int64_t>(teacher) : 0;
      if (static_cast<int64_t>(documents[teacher].size()) < source.first_document.back()) {
        own.documents = std::move(documents[teacher]);
      }
      sources_.push_back(std::move(own));
    }
  }
  return absl::OkStatus();
}

// A teacher without documents would be loaded for nothing.
void Dataset::check_every_teacher(base::ProblemList& problems) const {
  const auto check = [&](size_t number, int64_t in_sources) {
    const bool named = std::any_of(
        sources_.begin(), sources_.end(), [&](const Source& source) { return source.teacher == in_sources; });
    if (!named) {
      std::vector<std::string> paths;
      paths.reserve(options_.sources.size());
      for (const DataSource& source : options_.sources) {
        paths.push_back(source.path);
      }
      problems.add(absl::StrCat(
          "teachers: expected documents of ", options_.teachers[number], ", found none in ", absl::StrJoin(paths, ", "),
          "; remove the teacher, or let the data name it"));
    }
  };
  if (options_.only_teacher >= 0) {
    check(static_cast<size_t>(options_.only_teacher), 0);
  }
  for (size_t i = 0; options_.every_teacher && has_several_teachers() && i < options_.teachers.size(); ++i) {
    check(i, static_cast<int64_t>(i));
  }
}

absl::Status Dataset::plan_sources() {
  const bool teacher_stream =
      options_.teacher_stream && std::any_of(sources_.begin(), sources_.end(), [](const Source& source) {
        return std::any_of(source.shards->begin(), source.shards->end(), [](const Shard& shard) {
          return shard.has_teacher_stream();
        });
      });
  if (teacher_stream) {
    teacher_len_ = options_.teacher_seq_len > 0 ? options_.teacher_seq_len : options_.seq_len;
  }
  base::ProblemList problems;
  int64_t index = 0; // among the sources of a teacher: their order is that of a run with this teacher alone
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    index = i > 0 && sources_[i - 1].teacher == source.teacher ? index + 1 : 0;
    source.key = derive_key(static_cast<uint64_t>(options_.seed), static_cast<uint64_t>(index));
    SourceStats stats;
    stats.path = options_.sources[source.option].path;
    stats.masked = source.masked;
    stats.teacher = has_several_teachers() ? options_.teachers[static_cast<size_t>(source.teacher)] : "";
    problems.add(align_source(source, stats));
    plan(source, stats);
    if (stats.samples == 0) {
      problems.add(absl::StrCat(
          stats.path, ": no document ",
          stats.teacher.empty() ? "" : absl::StrCat("of the teacher ", stats.teacher, " "),
          "has a token of its completion within seq_len (", options_.seq_len,
          ") of its own text and within teacher_seq_len (", teacher_len_, ") of the teacher's"));
    }
    stats_.push_back(std::move(stats));
  }
  RETURN_IF_ERROR(problems.status(absl::StatusCode::kInvalidArgument));
  order_samples();
  spread_sequences();
  return absl::OkStatus();
}

// Decides in which order the samples of the sources come.
void Dataset::order_samples() {
  // Parts of a source share its weight by their tokens, which do not depend on the sequences' length: their epochs are
  // about equally long.
  std::vector<TeacherMixer::Source> parts;
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    int64_t all = 0; // tokens of the source, those of teachers that are left out included
    for (const Shard& shard : *source.shards) {
      all += shard.tokens();
    }
    const double share = all == stats_[i].tokens ? 1 : static_cast<double>(stats_[i].tokens) / static_cast<double>(all);
    source.weight = options_.sources[source.option].weight * share;
    parts.push_back({source.teacher, source.weight});
    num_samples_ += stats_[i].samples;
  }
  if (!options_.once) {
    mixer_.emplace(parts, has_several_teachers() ? options_.teacher_group : 1);
    return;
  }
  const int64_t group = has_several_teachers() ? options_.teacher_group : 1;
  once_end_.assign(has_several_teachers() ? options_.teachers.size() : 1, 0);
  int64_t begin = 0;
  size_t next = 0;
  for (size_t teacher = 0; teacher < once_end_.size(); ++teacher) {
    for (; next < sources_.size() && sources_[next].teacher == static_cast<int64_t>(teacher); ++next) {
      sources_[next].once_begin = begin;
      begin += stats_[next].samples;
    }
    begin = once_end_[teacher] = (begin + group - 1) / group * group;
  }
  num_samples_ = begin;
}

// With options.least_sequences: a source has as many sequences as the first so many samples are of it.
void Dataset::spread_sequences() {
  for (size_t i = 0; options_.least_sequences > 0 && i < sources_.size(); ++i) {
    auto* packed = std::get_if<PackedSequences>(&sources_[i].epoch.sequences);
    const auto index = static_cast<int64_t>(i);
    const int64_t least = has_several_teachers() && mixer_ ? mixer_->count_before(options_.least_sequences, index)
                                                           : options_.least_sequences;
    if (packed != nullptr) {
      spread(*packed, least);
      num_samples_ += packed->count() - stats_[i].samples;
      stats_[i].samples = packed->count();
      stats_[i].padding = packed->padding;
      stats_[i].teacher_padding = packed->teacher_padding;
    }
  }
}

std::vector<int64_t> Dataset::document_lengths(const Source& source) {
  std::vector<int64_t> lengths;
  lengths.reserve(static_cast<size_t>(source.count()));
  for (int64_t i = 0; i < source.count(); ++i) {
    const auto [shard, document] = find(source, i);
    lengths.push_back(shard->document_length(document));
  }
  return lengths;
}

void Dataset::plan(Source& source, SourceStats& stats) {
  for (const Shard& shard : *source.shards) {
    stats.loss_mask = stats.loss_mask || shard.has_loss_mask();
  }
  const std::vector<int64_t> lengths = document_lengths(source);
  source.epoch = plan_stage(source, lengths, {0, options_.seq_len, options_.packing, options_.teacher_seq_len}, &stats);
  stats.shards = static_cast<int64_t>(source.shards->size());
  stats.documents = static_cast<int64_t>(lengths.size());
  stats.tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  stats.samples = source.epoch.size();
  if (const auto* packed = std::get_if<PackedSequences>(&source.epoch.sequences)) {
    stats.padding = packed->padding;
    stats.teacher_padding = packed->teacher_padding;
  } else {
    stats.padding = stats.samples * options_.seq_len - (stats.tokens - 1);
  }
}

std::vector<const Shard*> Dataset::shards(int64_t teacher) const {
  std::vector<const Shard*> all;
  for (size_t option = 0; option < options_.sources.size(); ++option) {
    const auto source = std::find_if(sources_.begin(), sources_.end(), [&](const Source& own) {
      return own.option == option && (teacher < 0 || own.teacher == teacher);
    });
    for (size_t i = 0; source != sources_.end() && i < source->shards->size(); ++i) {
      all.push_back(&(*source->shards)[i]);
    }
  }
  return all;
}

const std::string& Dataset::source_of(const Shard& shard) const {
  const auto has = [&shard](const Source& source) {
    return std::any_of(source.shards->begin(), source.shards->end(), [&](const Shard& own) { return &own == &shard; });
  };
  const auto found = std::find_if(sources_.begin(), sources_.end(), has);
  TORCH_CHECK(found != sources_.end(), shard.path(), ": is no shard of the data set");
  return options_.sources[found->option].path;
}

base::Digest Dataset::fingerprint(const Stage& stage) const {
  base::Sha256 hash;
  const auto add = [&](auto value) { hash.update(&value, sizeof(value)); };
  add(stage.seq_len);
  add(options_.seed);
  add(static_cast<uint8_t>(stage.packing == PackingMode::kPack));
  add(static_cast<uint8_t>(options_.shuffle));
  add(static_cast<uint8_t>(options_.once));
  if (teacher_len_ > 0) {
    add(teacher_length(stage));
  }
  if (options_.least_sequences > 0) {
    add(options_.least_sequences);
  }
  const bool several = options_.teachers.size() > 1;
  if (several) {
    add(options_.teacher_group);
    add(options_.only_teacher);
    for (const std::string& name : options_.teachers) {
      hash.update(name.data(), name.size() + 1);
    }
  }
  for (size_t option = 0; option < options_.sources.size(); ++option) {
    const auto source =
        std::find_if(sources_.begin(), sources_.end(), [&](const Source& own) { return own.option == option; });
    if (source == sources_.end()) {
      continue; // none of its documents is the one teacher's
    }
    add(options_.sources[option].weight);
    add(static_cast<uint64_t>(source->shards->size()));
    for (const Shard& shard : *source->shards) {
      hash.update(shard.header().header_hash, sizeof(ShardHeader::header_hash));
      for (const auto& [begin, end] : shard.left_out()) {
        add(begin);
        add(end);
      }
    }
    for (const auto& [name, share] : options_.sources[option].teachers) {
      if (several) {
        hash.update(name.data(), name.size() + 1);
        add(share);
      }
    }
  }
  return hash.finish();
}

} // namespace distill::data
