#include <gmock/gmock.h>

#include <map>
#include <random>
#include <set>

#include "data/prefetch.h"
#include "tests/data/fixtures.h"

// Samples of documents with a text of the teacher's own (data/dataset_teacher.cpp, data/dataset_batch.cpp).
namespace distill::data {
namespace {

using testing::get;
using ::testing::HasSubstr;
using testing::open;
using testing::spec;
using testing::values;

using Ids = std::vector<uint32_t>;
using Marks = std::vector<uint8_t>;

constexpr int64_t kIgnoreIndex = -100;

struct Document {
  Ids tokens;
  Marks in_loss;
  Ids teacher; // empty: the same text
  Marks in_completion;

  bool both_texts() const {
    return !teacher.empty();
  }
};

// Documents whose ids are all different, so that an id says where it is from; `shared` of them are without a text of
// the teacher's own. Every prompt begins with a token of its own, so that completions have predecessors.
std::vector<Document> random_documents(int count, int shared, uint32_t seed, uint32_t first_id = 1) {
  std::mt19937 random(seed);
  const auto below = [&random](int n) { return std::uniform_int_distribution<int>(0, n - 1)(random); };
  std::vector<Document> documents;
  uint32_t id = first_id;
  for (int i = 0; i < count; ++i) {
    Document document;
    const auto own = [&](int tokens) {
      for (int k = 0; k < tokens; ++k) {
        document.tokens.push_back(id++);
        document.in_loss.push_back(0);
      }
    };
    const auto its = [&](int tokens) {
      for (int k = 0; k < tokens; ++k) {
        document.teacher.push_back(id++);
        document.in_completion.push_back(0);
      }
    };
    own(1 + below(8));
    its(1 + below(20));
    for (int turn = 0; turn < 1 + below(3); ++turn) {
      for (int k = 0; k < below(9); ++k) {
        document.tokens.push_back(id);
        document.in_loss.push_back(1);
        document.teacher.push_back(id++);
        document.in_completion.push_back(1);
      }
      own(below(4));
      its(below(4));
    }
    if (i < shared) {
      document.teacher.clear();
      document.in_completion.clear();
    }
    documents.push_back(document);
  }
  std::shuffle(documents.begin(), documents.end(), random);
  return documents;
}

std::string write_documents(const std::string& path, const std::vector<Document>& documents) {
  ShardWriter writer(spec(60000, /*loss_mask=*/true));
  for (const Document& document : documents) {
    const absl::Status status =
        writer.add(document.tokens, document.in_loss, {document.teacher, document.in_completion});
    TORCH_CHECK(status.ok(), status.ToString());
  }
  TORCH_CHECK(writer.write(path).ok());
  return path;
}

DataOptions options_of(const std::vector<std::string>& paths, int64_t seq_len, int64_t teacher_seq_len) {
  DataOptions options;
  for (const std::string& path : paths) {
    options.sources.push_back({path, 1.0});
  }
  options.seq_len = seq_len;
  options.teacher_seq_len = teacher_seq_len;
  return options;
}

// Which segments the flattened tokens consist of, without padding; checks boundaries and positions on the way.
std::vector<std::vector<int64_t>> segments_of(
    const at::Tensor& tokens_BS, const at::Tensor& positions_BS, const at::Tensor& boundaries, int64_t max_seqlen) {
  const auto tokens = values(tokens_BS), positions = values(positions_BS), cu_seqlens = values(boundaries);
  const int64_t seq_len = tokens_BS.size(1);
  std::vector<std::vector<int64_t>> segments;
  EXPECT_EQ(cu_seqlens.front(), 0);
  EXPECT_EQ(cu_seqlens.back(), static_cast<int64_t>(tokens.size()));
  int64_t longest = 0;
  for (size_t i = 0; i + 1 < cu_seqlens.size(); ++i) {
    const int64_t begin = cu_seqlens[i], end = cu_seqlens[i + 1];
    EXPECT_LT(begin, end);
    EXPECT_EQ(begin / seq_len, (end - 1) / seq_len) << "a segment crosses a sequence";
    longest = std::max(longest, end - begin);
    for (int64_t at = begin; at < end; ++at) {
      EXPECT_EQ(positions[at], at - begin);
    }
    if (tokens[begin] != 0) {
      segments.emplace_back(tokens.begin() + begin, tokens.begin() + end);
    }
  }
  EXPECT_EQ(longest, max_seqlen);
  return segments;
}

// How often each target has come, from samples that are checked against the documents.
class Checker {
 public:
  explicit Checker(const std::vector<Document>& documents) {
    for (const Document& document : documents) {
      for (size_t i = 0; i < document.tokens.size(); ++i) {
        student_[document.tokens[i]] = {&document, i};
      }
      for (size_t i = 0; i < document.teacher.size(); ++i) {
        teacher_[document.teacher[i]] = {&document, i};
      }
    }
  }

  void add(const Batch& batch) {
    ASSERT_TRUE(batch.teacher);
    const TeacherBatch& teacher = *batch.teacher;
    const auto own = segments_of(batch.tokens_BS, batch.positions_BS, batch.cu_seqlens, batch.max_seqlen);
    const auto its = segments_of(teacher.tokens_BT, teacher.positions_BT, teacher.cu_seqlens, teacher.max_seqlen);
    ASSERT_EQ(own.size(), its.size());
    for (size_t i = 0; i < own.size(); ++i) {
      const auto [document, begin] = student_.at(own[i][0]);
      const Ids text(own[i].begin(), own[i].end()), teacher_text(its[i].begin(), its[i].end());
      ASSERT_LE(begin + text.size(), document->tokens.size());
      ASSERT_TRUE(std::equal(text.begin(), text.end(), document->tokens.begin() + static_cast<int64_t>(begin)));
      if (document->both_texts()) {
        ASSERT_EQ(begin, 0U) << "a document with both texts is never split";
        ASSERT_LE(teacher_text.size(), document->teacher.size());
        ASSERT_TRUE(std::equal(teacher_text.begin(), teacher_text.end(), document->teacher.begin()));
      } else {
        ASSERT_EQ(text, teacher_text);
      }
      inputs_[document] += static_cast<int64_t>(text.size());
    }
    check_rows(batch);
  }

  const std::map<int64_t, int64_t>& targets() const {
    return targets_;
  }
  const std::map<const Document*, int64_t>& inputs() const {
    return inputs_;
  }

 private:
  struct Place {
    const Document* document;
    size_t at;
  };

  // The target follows the student's token in its text, and the teacher's token of the row in the teacher's.
  void check_rows(const Batch& batch) {
    const auto tokens = values(batch.tokens_BS), targets = values(batch.targets_BS);
    const auto rows = values(batch.teacher->rows_BS), teacher_tokens = values(batch.teacher->tokens_BT);
    int64_t valid = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      ASSERT_GE(rows[i], 0);
      ASSERT_LT(rows[i], static_cast<int64_t>(teacher_tokens.size()));
      if (targets[i] == kIgnoreIndex) {
        continue;
      }
      ++valid;
      ++targets_[targets[i]];
      const Place place = student_.at(tokens[i]);
      ASSERT_EQ(place.document->tokens.at(place.at + 1), targets[i]);
      ASSERT_EQ(place.document->in_loss.at(place.at + 1), 1);
      const int64_t read = teacher_tokens[rows[i]];
      if (place.document->both_texts()) {
        const Place its = teacher_.at(read);
        ASSERT_EQ(its.document, place.document);
        ASSERT_EQ(its.document->teacher.at(its.at + 1), targets[i]);
      } else {
        ASSERT_EQ(read, tokens[i]);
      }
    }
    EXPECT_EQ(valid, batch.valid_tokens);
  }

  std::map<int64_t, Place> student_, teacher_; // by id
  std::map<int64_t, int64_t> targets_;
  std::map<const Document*, int64_t> inputs_;
};

// The targets that samples of these lengths have room for, from the definition.
std::set<int64_t> expected_targets(const std::vector<Document>& documents, int64_t seq_len, int64_t teacher_seq_len) {
  std::set<int64_t> targets;
  for (const Document& document : documents) {
    std::vector<size_t> its;
    for (size_t i = 0; i < document.teacher.size(); ++i) {
      if (document.in_completion[i] != 0) {
        its.push_back(i);
      }
    }
    size_t position = 0;
    for (size_t i = 0; i < document.tokens.size(); ++i) {
      if (document.in_loss[i] == 0) {
        continue;
      }
      const bool fits = !document.both_texts() ||
          (i < static_cast<size_t>(seq_len) && its[position] < static_cast<size_t>(teacher_seq_len) &&
           its[position] > 0);
      if (fits && i > 0) {
        targets.insert(document.tokens[i]);
      }
      ++position;
    }
  }
  return targets;
}

class DatasetTeacherTest : public testing::FolderTest {};

TEST_F(DatasetTeacherTest, AnEpochHasEveryTargetThatFitsOnceAndBothTextsOfADocumentTogether) {
  const auto documents = random_documents(300, /*shared=*/60, 1);
  const auto path = write_documents(this->path("a.dtok"), documents);
  for (const auto& [seq_len, teacher_seq_len] :
       std::vector<std::pair<int64_t, int64_t>>{{64, 64}, {64, 0}, {40, 90}, {12, 30}, {50, 20}, {500, 700}}) {
    for (const bool shuffle : {true, false}) {
      SCOPED_TRACE(absl::StrCat("seq_len ", seq_len, ", teacher_seq_len ", teacher_seq_len, ", shuffle ", shuffle));
      DataOptions options = options_of({path}, seq_len, teacher_seq_len);
      options.shuffle = shuffle;
      const auto dataset = open(options);
      const int64_t teacher_len = teacher_seq_len == 0 ? seq_len : teacher_seq_len;
      ASSERT_EQ(dataset->teacher_seq_len(), teacher_len);
      Checker seen(documents);
      for (int64_t sample = 0; sample < dataset->num_samples(); sample += 3) {
        const Batch batch = get(*dataset, sample, std::min<int64_t>(3, dataset->num_samples() - sample));
        ASSERT_EQ(batch.teacher->tokens_BT.size(1), teacher_len);
        ASSERT_NO_FATAL_FAILURE(seen.add(batch));
      }
      std::set<int64_t> once;
      for (const auto& [target, times] : seen.targets()) {
        EXPECT_EQ(times, 1);
        once.insert(target);
      }
      EXPECT_EQ(once, expected_targets(documents, seq_len, teacher_len));

      const SourceStats& stats = dataset->stats()[0];
      int64_t left_out = 0, cut = 0, inputs = 0;
      for (const Document& document : documents) {
        const auto found = seen.inputs().find(&document);
        const bool whole = static_cast<int64_t>(document.tokens.size()) <= seq_len &&
            static_cast<int64_t>(document.teacher.size()) <= teacher_len;
        inputs += found == seen.inputs().end() ? 0 : found->second;
        if (document.both_texts()) {
          left_out += found == seen.inputs().end() ? 1 : 0;
          cut += found != seen.inputs().end() && !whole ? 1 : 0;
        } else {
          EXPECT_EQ(found->second, static_cast<int64_t>(document.tokens.size()));
        }
      }
      EXPECT_EQ(stats.teacher_texts, 240);
      EXPECT_EQ(stats.left_out_documents, left_out);
      EXPECT_EQ(stats.cut_documents, cut);
      EXPECT_EQ(stats.padding, dataset->num_samples() * seq_len - inputs);
    }
  }
}

TEST_F(DatasetTeacherTest, ATeachersTextThatIsTheDocumentGivesTheSamplesOfADocumentWithoutOne) {
  auto documents = random_documents(400, 400, 2);
  const auto plain = write_documents(path("plain.dtok"), documents);
  for (Document& document : documents) {
    document.teacher = document.tokens;
    document.in_completion = document.in_loss;
  }
  const auto paired = write_documents(path("paired.dtok"), documents);
  const auto without = open(options_of({plain}, 48, 0)), with = open(options_of({paired}, 48, 0));
  ASSERT_EQ(without->num_samples(), with->num_samples());
  for (int64_t sample = 0; sample < 2 * with->num_samples(); ++sample) {
    const Batch a = get(*without, sample, 1), b = get(*with, sample, 1);
    ASSERT_FALSE(a.teacher);
    for (const auto& [x, y] :
         {std::pair(a.tokens_BS, b.tokens_BS), std::pair(a.targets_BS, b.targets_BS),
          std::pair(a.positions_BS, b.positions_BS), std::pair(a.cu_seqlens, b.cu_seqlens),
          std::pair(a.tokens_BS, b.teacher->tokens_BT), std::pair(a.cu_seqlens, b.teacher->cu_seqlens)}) {
      ASSERT_TRUE(at::equal(x, y)) << sample;
    }
  }
}

TEST_F(DatasetTeacherTest, SourcesWithAndWithoutAStreamAreMixed) {
  auto first = random_documents(80, 0, 3), second = random_documents(80, 80, 4, /*first_id=*/30000);
  const auto dataset =
      open(options_of({write_documents(path("a.dtok"), first), write_documents(path("b.dtok"), second)}, 20, 48));
  auto all = first;
  all.insert(all.end(), second.begin(), second.end());
  Checker seen(all);
  for (int64_t sample = 0; sample < 2 * dataset->num_samples(); ++sample) {
    ASSERT_NO_FATAL_FAILURE(seen.add(get(*dataset, sample, 1)));
  }
  int64_t of_second = 0;
  for (const auto& [target, times] : seen.targets()) {
    of_second += target >= 30000 ? times : 0;
  }
  EXPECT_GT(of_second, 100);
}

TEST_F(DatasetTeacherTest, OnceReadsEveryDocumentOnceAndThenPaddingForBothModels) {
  const auto documents = random_documents(50, 10, 5);
  DataOptions options = options_of({write_documents(path("a.dtok"), documents)}, 32, 64);
  options.once = true;
  options.shuffle = false;
  const auto dataset = open(options);
  Checker seen(documents);
  for (int64_t sample = 0; sample < dataset->num_samples(); ++sample) {
    ASSERT_NO_FATAL_FAILURE(seen.add(get(*dataset, sample, 1)));
  }
  EXPECT_EQ(seen.targets().size(), expected_targets(documents, 32, 64).size());
  const Batch padding = get(*dataset, dataset->num_samples(), 2);
  EXPECT_EQ(padding.valid_tokens, 0);
  EXPECT_EQ(values(padding.teacher->cu_seqlens), (std::vector<int64_t>{0, 64, 128}));
  EXPECT_TRUE((padding.teacher->tokens_BT == 0).all().item<bool>());
  EXPECT_LE(padding.teacher->rows_BS.max().item<int64_t>(), 127);
}

TEST_F(DatasetTeacherTest, ATargetHasATokenBeforeItInBothTexts) {
  const std::vector<Document> documents = {
      {{1, 5, 6, 7}, {0, 1, 1, 1}, {5, 6, 7}, {1, 1, 1}}, // the teacher has no prompt
      {{8, 9}, {1, 1}, {20, 8, 9}, {0, 1, 1}}, // the document has none
  };
  DataOptions options = options_of({write_documents(path("a.dtok"), documents)}, 8, 0);
  options.shuffle = false;
  const auto dataset = open(options);
  ASSERT_EQ(dataset->num_samples(), 1);
  const Batch batch = get(*dataset, 0, 1);
  EXPECT_EQ(values(batch.tokens_BS), (std::vector<int64_t>{1, 5, 6, 7, 8, 9, 0, 0}));
  EXPECT_EQ(values(batch.targets_BS), (std::vector<int64_t>{-100, 6, 7, -100, 9, -100, -100, -100}));
  EXPECT_EQ(values(batch.teacher->tokens_BT), (std::vector<int64_t>{5, 6, 7, 20, 8, 9, 0, 0}));
  const auto rows = values(batch.teacher->rows_BS);
  EXPECT_EQ(std::tuple(rows[1], rows[2], rows[4]), std::tuple(0, 1, 4));
}

TEST_F(DatasetTeacherTest, RanksTogetherReadWhatOneWouldAndPrefetchBringsTheSame) {
  const auto dataset = std::shared_ptr<const Dataset>(
      open(options_of({write_documents(path("a.dtok"), random_documents(100, 20, 6))}, 32, 48)));
  const Batch all = get(*dataset, 0, 12);
  for (int64_t rank = 0; rank < 3; ++rank) {
    Prefetcher prefetcher(dataset, BatchSchedule{rank * 2, 2, 6, 2}, 2);
    for (int64_t i = 0; i < 2; ++i) {
      const auto own = prefetcher.next().value();
      const int64_t at = i * 6 + rank * 2;
      EXPECT_TRUE(at::equal(own.teacher->tokens_BT, all.teacher->tokens_BT.narrow(0, at, 2)));
      // Rows count from the beginning of the batch.
      EXPECT_TRUE(at::equal(own.teacher->rows_BS + at * 48, all.teacher->rows_BS.narrow(0, at, 2)));
    }
  }
}

TEST_F(DatasetTeacherTest, StagesOfOtherLengthsReadEveryDocumentOnceAnEpoch) {
  const auto documents = random_documents(150, 30, 7);
  const auto path = write_documents(this->path("a.dtok"), documents);
  const std::vector<Stage> stages = {
      {0, 64, PackingMode::kPack, 80}, {7, 100, PackingMode::kPack}, {12, 70, PackingMode::kPack, 120}};
  std::map<int64_t, int64_t> targets;
  int64_t unread = 0;
  for (const Document& document : documents) {
    unread += static_cast<int64_t>(document.tokens.size());
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    const auto dataset = open(options_of({path}, stages[i].seq_len, stages[i].teacher_seq_len));
    const auto lines = dataset->continue_from({stages.begin(), stages.begin() + static_cast<int64_t>(i) + 1}).value();
    if (i == 1) { // what the log says of the first epoch's rest
      EXPECT_THAT(lines.at(0), HasSubstr(absl::StrCat("with its ", unread, " unread tokens")));
    }
    Checker seen(documents); // every document fits whole into each of the stages
    const int64_t end = i + 1 < stages.size() ? stages[i + 1].first_sample : 200;
    for (int64_t sample = stages[i].first_sample; sample < end; ++sample) {
      ASSERT_NO_FATAL_FAILURE(seen.add(get(*dataset, sample, 1)));
      for (const int64_t id : values(get(*dataset, sample, 1).targets_BS)) {
        targets[id] += id == kIgnoreIndex ? 0 : 1;
      }
      int64_t least = INT64_MAX, most = 0;
      for (const int64_t id : expected_targets(documents, 64, 80)) {
        least = std::min(least, targets[id]);
        most = std::max(most, targets[id]);
      }
      ASSERT_LE(most - least, 1) << "stage " << i << ", sample " << sample;
    }
    for (const auto& [document, tokens] : seen.inputs()) {
      unread -= tokens;
    }
  }
  const auto dataset = open(options_of({path}, 64, 80));
  EXPECT_THAT(
      std::string(dataset->continue_from({{0, 64, PackingMode::kPack, 70}}).status().message()),
      HasSubstr("teacher_seq_len 80, found 70"));
  EXPECT_THAT(
      std::string(
          dataset->continue_from({{0, 9, PackingMode::kConcat}, {4, 64, PackingMode::kPack, 80}}).status().message()),
      HasSubstr("data stage 0: expected pack for data with a teacher stream, found concat"));
}

TEST_F(DatasetTeacherTest, TheFingerprintIncludesTheTeachersLengthOnlyWithAStream) {
  const auto with = write_documents(path("a.dtok"), random_documents(50, 0, 8));
  const auto without = write_documents(path("b.dtok"), random_documents(50, 50, 8));
  const auto print = [](const std::string& path, int64_t teacher_seq_len) {
    return base::hex(open(options_of({path}, 48, teacher_seq_len))->fingerprint());
  };
  EXPECT_EQ(print(with, 0), print(with, 48));
  EXPECT_NE(print(with, 0), print(with, 49));
  EXPECT_EQ(print(without, 0), print(without, 49));
}

TEST_F(DatasetTeacherTest, WithoutATeacherTheDocumentsAreReadAlone) {
  const auto documents = random_documents(60, 0, 9);
  DataOptions options = options_of({write_documents(path("a.dtok"), documents)}, 8, 0);
  options.teacher_stream = false;
  auto alone = documents;
  for (Document& document : alone) {
    document.teacher.clear();
    document.in_completion.clear();
  }
  const auto expected = open(options_of({write_documents(path("b.dtok"), alone)}, 8, 0));
  for (const PackingMode packing : {PackingMode::kPack, PackingMode::kConcat}) {
    options.packing = packing;
    EXPECT_EQ(open(options)->teacher_seq_len(), 0);
  }
  options.packing = PackingMode::kPack;
  const auto dataset = open(options);
  ASSERT_EQ(dataset->num_samples(), expected->num_samples());
  for (int64_t sample = 0; sample < dataset->num_samples(); ++sample) {
    EXPECT_TRUE(at::equal(get(*dataset, sample, 1).targets_BS, get(*expected, sample, 1).targets_BS));
  }
}

TEST_F(DatasetTeacherTest, RefusesConcatAndDataOfWhichNothingFits) {
  const auto file = write_documents(path("a.dtok"), {{{1, 2, 3, 4, 5}, {0, 0, 0, 0, 1}, {1, 5}, {0, 1}}});
  DataOptions options = options_of({file}, 8, 0);
  options.packing = PackingMode::kConcat;
  EXPECT_THAT(
      std::string(Dataset::open(options).status().message()),
      ::testing::AllOf(HasSubstr(file), HasSubstr("expected packing: pack, found concat")));
  EXPECT_THAT(
      std::string(Dataset::open(options_of({file}, 4, 0)).status().message()),
      ::testing::AllOf(HasSubstr(file), HasSubstr("within seq_len (4)"), HasSubstr("teacher_seq_len (4)")));
  EXPECT_THAT(
      std::string(Dataset::open(options_of({file}, 8, 1)).status().message()),
      HasSubstr("teacher_seq_len: expected 0 or 2 to 2^31 - 1, found 1"));
}

TEST_F(DatasetTeacherTest, ACompletionThatDiffersIsAnErrorOfItsBatch) {
  std::vector<uint8_t> bytes;
  {
    ShardWriter writer(spec(100, true));
    ASSERT_TRUE(writer.add({1, 2, 3}, Marks{0, 1, 1}, {Ids{4, 2, 3}, Marks{0, 1, 1}}).ok());
    bytes = writer.bytes();
  }
  ShardHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const uint16_t id = 9;
  std::memcpy(bytes.data() + shard_layout(header).teacher_tokens_at + 4, &id, sizeof(id));
  sign_shard(absl::MakeSpan(bytes));
  const auto file = write("a.dtok", bytes);
  DataOptions options = options_of({file}, 8, 0);
  const auto batch = open(options)->batch(0, 1);
  EXPECT_THAT(
      std::string(batch.status().message()),
      ::testing::AllOf(
          HasSubstr(file + ": document 0: token 1 of the completion"), HasSubstr("found 3 in the student's")));
  options.verify = true;
  EXPECT_FALSE(Dataset::open(options).ok());
}

} // namespace
} // namespace distill::data
