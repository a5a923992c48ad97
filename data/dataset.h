#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/base/problem_list.h"
#include "data/batch_source.h"
#include "data/packing_mode.h"
#include "data/sequence_plan.h"
#include "data/shard.h"
#include "data/teacher_groups.h"
#include "data/teacher_rows.h"
#include "data/teacher_text.h"
#include "data/token_limits.h"

namespace distill::data {

struct DataSource {
  std::string path; // a token shard, or a folder of them
  double weight = 1.0; // share of the samples, relative to the other sources
  std::vector<TeacherShare> teachers = {}; // with several teachers: whose documents these are (divide_documents)
};

struct DataOptions {
  std::vector<DataSource> sources;
  int64_t seq_len = 2048; // tokens
  int64_t teacher_seq_len = 0; // of the sequences that the teacher reads, with a teacher stream; 0: seq_len
  // false, for a run that has no teacher: documents with a text of the teacher's own are read without that text.
  bool teacher_stream = true;
  PackingMode packing = PackingMode::kPack;
  bool shuffle = true;
  int64_t seed = 0;
  // For evaluation: reads the sources one after the other, every document exactly once, and ignores the weights.
  // Samples from num_samples() on are padding without targets, so that every rank can read the same number of batches.
  bool once = false;
  // Above 0, with PackingMode::kPack: documents that fill fewer sequences than this are spread over this many, each
  // document in one of them.
  int64_t least_sequences = 0;
  // The names of the run's teachers. With two or more, every document has one of them, and so has every sequence.
  std::vector<std::string> teachers;
  int64_t only_teacher = -1; // a number: the documents of this teacher alone, as in a run without the others; -1: all
  bool every_teacher = false; // it is an error if a teacher has no document
  // With several teachers: samples in a row that have the same one (TeacherMixer). A batch is part of such a group.
  int64_t teacher_group = 1;
  // The hashes of the tokenizers with which the shards may have been written; empty: any tokenizer, the same for all.
  std::vector<base::Digest> tokenizer_hashes;
  // Of each teacher, how its tokens are those of the student's; null, or an empty list: they are the same, and no
  // document has a text in another tokenizer's ids. With an alignment every document has one in the teacher's.
  std::vector<std::shared_ptr<const TextAlignment>> alignments;
  TokenLimits limits; // which tokens the documents may have
  bool pin_memory = false; // allocate batches in page-locked memory (needs CUDA)
  bool verify = false; // check the payload hash and all token ids of every shard, which reads it completely
};

// A range of a run's samples that are read from one data set with one length and packing: from `first_sample` of the
// run up to the next stage. Each resumption with another seq_len or packing begins a new stage.
struct Stage {
  int64_t first_sample = 0;
  int64_t seq_len = 0; // tokens
  PackingMode packing = PackingMode::kPack;
  int64_t teacher_seq_len = 0; // tokens, with a teacher stream; 0: seq_len
};

// How the completions of documents are split into pieces (TextAlignment), over a sample of them.
struct AlignmentStats {
  int64_t documents = 0;
  int64_t tokens = 0, teacher_tokens = 0; // of the completions
  int64_t pieces = 0, spans = 0; // spans: pieces of more than one token on either side
  int64_t span_tokens = 0; // the student's, in spans
  std::map<std::string, int64_t> student_passed, teacher_passed; // special tokens that only one has: how many, by text
};

// Of the documents of a source, or with several teachers, of those that have the same one.
struct SourceStats {
  std::string path;
  std::string teacher; // with several teachers: its name
  int64_t shards = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t samples = 0; // in one epoch
  int64_t padding = 0; // tokens of padding in these samples
  int64_t split_documents = 0; // documents longer than seq_len, which are cut (packing: pack)
  bool loss_mask = false;
  // With a teacher stream.
  int64_t teacher_padding = 0; // tokens of padding in the teacher's sequences
  int64_t teacher_texts = 0; // documents with a text of the teacher's own
  int64_t cut_documents = 0; // those of them that are cut at the end, since a text is longer than its sequence
  MaskedDocuments masked; // documents with a token that the teacher lacks (TokenLimits::Stream::masked)
  int64_t left_out_documents = 0; // those of them that are left out, since no token of the completion fits
  std::optional<AlignmentStats> alignment; // of a teacher with a tokenizer of its own
};

// Random access to an endless, deterministic series of samples. A sample is a packed sequence of seq_len tokens. It
// depends on its number, the options, the files and the run's stages, and on nothing else: k ranks that read disjoint
// numbers read together the samples that one rank would, and a resumed run continues at the number where it stopped.
// If a document has a text of the teacher's own, all batches have the teacher's tokens.
// Thread-safe.
class Dataset : public BatchSource {
 public:
  // Reports every problem of every source in one error. NotFound: options.only_teacher has no document, and nothing
  // else is wrong.
  static absl::StatusOr<std::unique_ptr<Dataset>> open(const DataOptions& options);

  // For a run that has read this data set before with other lengths or packings, or other data before it. Must be
  // called before samples are read, and not with options.once. `stages`: those in which the run reads this data set;
  // its first sample is the first one of stages[0]. The last stage must have the length and packing of the options, and
  // only its samples can be read from now on. It begins with the unread tokens of each source: those that have not been
  // an input in the current epoch. Returns log lines with their number. InvalidArgument: the stages are not in order.
  absl::StatusOr<std::vector<std::string>> continue_from(const std::vector<Stage>& stages);

  // Samples [first, first + count), count >= 1. DataLoss: a token id that is not below the shard's vocab_size.
  absl::StatusOr<Batch> batch(int64_t first, int64_t count) const override;

  // From now on batch() fills Batch::teacher_rows_NW of the batches that have this teacher.
  void read_teacher_rows(std::shared_ptr<TeacherRows> rows, int64_t teacher = 0) {
    teacher_rows_.resize(std::max(teacher_rows_.size(), static_cast<size_t>(teacher) + 1));
    teacher_rows_[static_cast<size_t>(teacher)] = std::move(rows);
  }
  // Checks that the TeacherRows have the rows of all tokens that a batch of the current stage may hold.
  absl::Status check_teacher_rows() const;
  // Returns how much of the TeacherRows has been read since the last call.
  TeacherRows::Reading take_teacher_reading() const;

  // Calls `visit` once for every stretch that a sample of this stage may hold, source by source. Concatenated documents
  // are visited sequence by sequence, and `at` is then the position within the sequence; otherwise it is not set.
  // `teacher`: only what this one is asked about; -1: all.
  void for_each_stretch(const std::function<void(const Stretch&)>& visit, int64_t teacher = -1) const;

  // All shards, source by source. `teacher`: only of sources with documents of this one; -1: all.
  std::vector<const Shard*> shards(int64_t teacher = -1) const;
  // The number of the teacher of a sample that can be read.
  int64_t teacher_of(int64_t sample) const;
  // The share of each teacher in the samples, in the order of their numbers. 0: no document is this teacher's.
  std::vector<double> teacher_shares() const;
  // The path, as the options have it, of the source to which a shard belongs.
  const std::string& source_of(const Shard& shard) const;

  // The number of samples in one epoch of every source. With options.once: the number of those after which there is
  // only padding: with several teachers, each one's samples are followed by padding up to the end of a group. Sample
  // num_samples() + t is padding for teacher t.
  int64_t num_samples() const {
    return num_samples_;
  }
  const DataOptions& options() const {
    return options_;
  }
  const std::vector<SourceStats>& stats() const {
    return stats_;
  }
  base::Digest tokenizer_hash() const {
    return sources_[0].shards->front().tokenizer_hash();
  }
  // Tokens of the teacher's sequences; 0: no document has a text of the teacher's own.
  int64_t teacher_seq_len() const {
    return teacher_len_;
  }
  // Hash of everything that determines sample n, except for earlier stages. Equal fingerprints mean equal samples.
  base::Digest fingerprint() const {
    return fingerprint({0, options_.seq_len, options_.packing, options_.teacher_seq_len});
  }
  // The fingerprint of the same data with the lengths and packing of a stage.
  base::Digest fingerprint(const Stage& stage) const;

 private:
  // The documents of a source of the options, or those of them that have one of several teachers.
  struct Source {
    std::shared_ptr<const std::vector<Shard>> shards;
    size_t option = 0; // its place in options.sources
    MaskedDocuments masked; // of all of its shards
    int64_t teacher = 0;
    std::vector<uint32_t> documents; // counted over all shards: those that this source has; empty: all
    double weight = 0;
    int64_t once_begin = 0; // with options.once: the number of its first sample
    std::vector<int64_t> first_document; // [shards + 1]

    int64_t count() const { // of its documents
      return documents.empty() ? first_document.back() : static_cast<int64_t>(documents.size());
    }
    SequencePlan epoch; // the plan of every whole epoch
    uint64_t key = 0; // seeds the shuffles of this source
    // These say where this stage begins. In a run with a single stage all are zero, and there is no rest.
    int64_t first_sample = 0; // number within this source
    int64_t first_epoch = 0; // the first whole epoch
    std::optional<SequencePlan> rest; // unread tokens of the epoch before; its samples come first
    uint64_t rest_key = 0;
  };
  struct SequencePlace {
    const SequencePlan* plan;
    int64_t sequence;
  };
  struct DocumentPlace {
    const Shard* shard;
    int64_t document; // within the shard
  };
  struct SequenceBuilder;
  // The tokens of a piece; `at` is not set.
  Stretch stretch_of(
      const Source& source, const SequencePlan& plan, const PackedSequences& sequences, const Piece& piece) const;

  Dataset() = default;
  static std::vector<int64_t> document_lengths(const Source& source);
  // Tokens of the teacher's sequences in a stage, with a teacher stream.
  int64_t teacher_length(const Stage& stage) const;
  std::vector<DocumentSize> document_sizes(const Source& source, const Stage& stage, SourceStats* stats) const;
  std::vector<DocumentSize> fragment_sizes(
      const Source& source, const std::vector<Fragment>& fragments, const Stage& stage) const;
  bool has_several_teachers() const {
    return options_.teachers.size() > 1 && options_.only_teacher < 0;
  }
  // The sources of one entry of the options: one, or one for each teacher that has documents there.
  absl::Status add_sources(size_t option, std::vector<Shard> shards, const MaskedDocuments& masked);
  absl::Status plan_sources();
  const TextAlignment* alignment_of(int64_t teacher) const;
  const TextAlignment* alignment_of(const Source& source) const {
    return alignment_of(source.teacher);
  }
  // The alignment of a sample of a source's documents. InvalidArgument or DataLoss: a document has no text in its
  // teacher's tokens, has one in those of another tokenizer, or has another text.
  absl::Status align_source(const Source& source, SourceStats& stats) const;
  void plan(Source& source, SourceStats& stats);
  void check_every_teacher(base::ProblemList& problems) const;
  void order_samples();
  void spread_sequences();
  static DocumentPlace find(const Source& source, int64_t document);
  static Fragment fragment_of(const Source& source, const SequencePlan& plan, uint32_t index);
  SequencePlan plan_stage(
      const Source& source, absl::Span<const int64_t> lengths, const Stage& stage, SourceStats* stats = nullptr) const;
  SequencePlan plan_rest(
      const Source& source, std::vector<Fragment> fragments, const Stage& stage, std::optional<uint64_t> key) const;
  int64_t permuted(uint64_t key, int64_t size, int64_t index) const;
  std::vector<bool> sequences_read(uint64_t key, int64_t size, int64_t count) const;
  void end_stage(
      Source& source, absl::Span<const int64_t> lengths, const SequencePlan& epoch, int64_t samples, const Stage& next,
      int64_t stage_number) const;
  Mixer::Place locate(int64_t sample) const; // source -1: past the last sample (options.once)
  SequencePlace find_sequence(const Source& source, int64_t sample) const;
  absl::Status fill_sequence(int64_t sample, SequenceBuilder& sequence) const;
  absl::Status fill_packed(
      const Source& source, const SequencePlan& plan, const PackedSequences& sequences, int64_t index,
      SequenceBuilder& sequence) const;
  absl::Status fill_concat(
      const Source& source, const SequencePlan& plan, const ConcatSequences& sequences, int64_t index,
      SequenceBuilder& sequence) const;

  DataOptions options_;
  std::vector<Source> sources_;
  std::vector<SourceStats> stats_;
  std::optional<TeacherMixer> mixer_;
  std::vector<std::shared_ptr<TeacherRows>> teacher_rows_; // of each teacher; none, or null: it has none
  int64_t teacher_len_ = 0; // tokens of the teacher's sequences; 0: no teacher stream
  int64_t num_samples_ = 0;
  std::vector<int64_t> once_end_; // with options.once: of each teacher, the end of its samples and their padding
  int64_t origin_ = 0; // the run's sample that is the first one of this data set
  int64_t first_sample_ = 0; // the run's sample with which the last stage begins, the first one that can be read
};

} // namespace distill::data
