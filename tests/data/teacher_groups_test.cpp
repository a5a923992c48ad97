#include "data/teacher_groups.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "tests/data/fixtures.h"

// Data sets whose documents have several teachers.
namespace distill::data {
namespace {

using testing::distinct_documents;
using testing::get;
using ::testing::HasSubstr;
using testing::mixed_lengths;
using testing::open;
using testing::spec;
using testing::values;

constexpr uint32_t kFirstId[] = {1, 20000, 40000}; // of the sources' tokens
constexpr int64_t kGroup = 6;

class TeacherGroupsTest : public testing::FolderTest {
 protected:
  // Three sources: "a" of the teacher math, "c" of code, and "b", whose documents name either.
  void SetUp() override {
    FolderTest::SetUp();
    const char* names[] = {"a", "b", "c"};
    for (size_t set = 0; set < 3; ++set) {
      ShardWriter writer(spec(60000));
      int64_t number = 0;
      for (const auto& document : distinct_documents(mixed_lengths(80, 40), kFirstId[set])) {
        const std::string teacher = set == 1 ? (number++ % 3 == 0 ? "math" : "code") : "";
        ASSERT_TRUE(writer.add(document, {}, {}, teacher).ok());
        for (const uint32_t token : document) {
          math_[token] = set == 0 || teacher == "math";
        }
      }
      ASSERT_TRUE(writer.write(path(names[set])).ok());
    }
  }
  DataOptions options() const {
    DataOptions out;
    out.sources = {{path("a"), 2.0, {{"math", 1.0}}}, {path("b"), 1.0}, {path("c"), 0.5, {{"code", 1.0}}}};
    out.seq_len = 32;
    out.seed = 3;
    out.teachers = {"math", "code"};
    out.teacher_group = kGroup;
    out.every_teacher = true;
    return out;
  }
  std::string error(const DataOptions& options) const {
    const auto dataset = Dataset::open(options);
    return dataset.ok() ? "" : std::string(dataset.status().message());
  }
  std::map<int64_t, bool> math_; // whether a token's document has this teacher
};

TEST_F(TeacherGroupsTest, AGroupHasOneTeacherAndEachTeachersSamplesAreThoseOfARunWithItAlone) {
  for (const PackingMode packing : {PackingMode::kPack, PackingMode::kConcat}) {
    DataOptions all = options();
    all.packing = packing;
    const auto mixed = open(all);
    std::unique_ptr<Dataset> alone[2];
    for (const int64_t teacher : {0, 1}) {
      DataOptions own = all;
      own.only_teacher = teacher;
      own.teacher_group = 1;
      alone[teacher] = open(own);
      EXPECT_EQ(alone[teacher]->teacher_of(5), 0);
    }
    int64_t read[2] = {0, 0};
    for (int64_t sample = 0; sample < 300; ++sample) {
      const int64_t teacher = mixed->teacher_of(sample);
      EXPECT_EQ(teacher, mixed->teacher_of(sample / kGroup * kGroup)) << sample;
      const Batch batch = get(*mixed, sample, 1);
      EXPECT_EQ(batch.teacher_number, teacher);
      const Batch own = get(*alone[teacher], read[teacher]++, 1);
      EXPECT_TRUE(batch.tokens_BS.equal(own.tokens_BS) && batch.targets_BS.equal(own.targets_BS)) << sample;
      for (const int64_t token : values(batch.tokens_BS)) {
        EXPECT_TRUE(token == 0 || math_.at(token) == (teacher == 0)) << sample;
      }
    }
    // Weights 2 + a third of 1 against the other two thirds and 0.5, to within one group.
    const auto shares = mixed->teacher_shares();
    EXPECT_NEAR(shares[0] + shares[1], 1, 1e-12);
    EXPECT_NEAR(read[0], 300 * shares[0], kGroup);
    EXPECT_GT(shares[0], 0.55);
  }
}

TEST_F(TeacherGroupsTest, BatchesAreReadAlikeInAnySizesThatStayWithinAGroup) {
  const auto dataset = open(options());
  const Batch six = get(*dataset, 2 * kGroup, 6);
  for (const int64_t count : {1, 2, 3}) {
    for (int64_t first = 0; first < 6; first += count) {
      EXPECT_TRUE(get(*dataset, 2 * kGroup + first, count).tokens_BS.equal(six.tokens_BS.narrow(0, first, count)));
    }
  }
  int64_t refused = 0;
  for (int64_t group = 1; group < 20; ++group) {
    const auto batch = dataset->batch(group * kGroup - 1, 2);
    EXPECT_EQ(batch.ok(), dataset->teacher_of(group * kGroup - 1) == dataset->teacher_of(group * kGroup));
    refused += batch.ok() ? 0 : 1;
    if (!batch.ok()) {
      EXPECT_THAT(std::string(batch.status().message()), HasSubstr("expected samples of one teacher"));
    }
  }
  EXPECT_GT(refused, 3);
}

// Nothing is lost: each teacher's tokens all come once before any of a source comes again.
TEST_F(TeacherGroupsTest, EveryTokenComesOnceInAnEpochOfItsSource) {
  DataOptions only_b = options();
  only_b.sources = {{path("b"), 1.0}};
  const auto dataset = open(only_b);
  std::map<int64_t, int64_t> seen;
  int64_t left[2] = {0, 0};
  for (const SourceStats& stats : dataset->stats()) {
    left[stats.teacher == "math" ? 0 : 1] += stats.samples;
  }
  for (int64_t sample = 0; left[0] > 0 || left[1] > 0; ++sample) {
    if (left[dataset->teacher_of(sample)]-- > 0) {
      for (const int64_t token : values(get(*dataset, sample, 1).tokens_BS)) {
        seen[token] += token != 0 ? 1 : 0;
      }
    }
  }
  for (const auto& [token, is_math] : math_) {
    if (token >= kFirstId[1] && token < kFirstId[2]) {
      EXPECT_EQ(seen[token], 1) << token;
    }
  }
}

TEST_F(TeacherGroupsTest, AnEvaluationReadsOneTeacherAfterTheOtherInWholeGroups) {
  DataOptions once = options();
  once.once = true;
  once.shuffle = false;
  const auto dataset = open(once);
  EXPECT_EQ(dataset->num_samples() % kGroup, 0);
  std::map<int64_t, int64_t> seen;
  for (int64_t sample = 0; sample < dataset->num_samples(); sample += kGroup) {
    const Batch batch = get(*dataset, sample, kGroup);
    for (const int64_t token : values(batch.tokens_BS)) {
      seen[token] += token != 0 ? 1 : 0;
      EXPECT_TRUE(token == 0 || math_.at(token) == (batch.teacher_number == 0));
    }
  }
  for (const auto& [token, is_math] : math_) {
    EXPECT_EQ(seen[token], 1) << token;
  }
  for (const int64_t teacher : {0, 1}) {
    const Batch padding = get(*dataset, dataset->num_samples() + teacher, 1);
    EXPECT_EQ(padding.teacher_number, teacher);
    EXPECT_EQ(padding.valid_tokens, 0);
  }
}

TEST_F(TeacherGroupsTest, ARunGoesOnWithAnotherLengthWhereItStood) {
  DataOptions before = options(), after = options();
  after.seq_len = 16;
  const auto first = open(before), second = open(after);
  constexpr int64_t kRead = 7 * kGroup;
  ASSERT_TRUE(second->continue_from({{0, 32, PackingMode::kPack}, {kRead, 16, PackingMode::kPack}}).ok());
  std::set<int64_t> seen;
  for (int64_t sample = 0; sample < kRead; ++sample) {
    const auto tokens = values(get(*first, sample, 1).tokens_BS);
    seen.insert(tokens.begin(), tokens.end());
    EXPECT_EQ(first->teacher_of(sample), open(after)->teacher_of(sample)) << "the order of the teachers changed";
  }
  for (int64_t sample = kRead; sample < kRead + 4 * kGroup; ++sample) {
    for (const int64_t token : values(get(*second, sample, 1).tokens_BS)) {
      EXPECT_TRUE(token == 0 || !seen.contains(token)) << token;
    }
  }
}

TEST_F(TeacherGroupsTest, SharesDealTheDocuments) {
  DataOptions dealt = options();
  dealt.sources = {{path("a"), 1.0, {{"code", 3.0}, {"math", 1.0}}}};
  const auto dataset = open(dealt);
  ASSERT_EQ(dataset->stats().size(), 2U);
  EXPECT_EQ(dataset->stats()[0].teacher, "math");
  EXPECT_EQ(dataset->stats()[0].documents, 20);
  EXPECT_EQ(dataset->stats()[1].documents, 60);
}

TEST_F(TeacherGroupsTest, TheCountOfASourcesSamplesIsThatOfThePlacesBefore) {
  const TeacherMixer::Source sources[] = {{1, 0.3}, {0, 2.0}, {1, 0.9}, {0, 0.5}};
  const TeacherMixer mixer(sources, 5);
  int64_t counts[4] = {};
  for (int64_t sample = 0; sample < 700; ++sample) {
    const Mixer::Place place = mixer.locate(sample);
    for (int64_t source = 0; source < 4; ++source) {
      ASSERT_EQ(mixer.count_before(sample, source), counts[source]) << sample << " " << source;
    }
    EXPECT_EQ(place.sample, counts[place.source]++);
    EXPECT_EQ(mixer.teacher_of(sample), sources[place.source].teacher);
  }
}

TEST_F(TeacherGroupsTest, DocumentsWithoutATeacherOfTheListAreNamed) {
  DataOptions unnamed = options();
  unnamed.sources[0].teachers.clear();
  EXPECT_THAT(
      error(unnamed),
      HasSubstr(
          path("a") + ": document 0: expected the name of its teacher, one of math, code (teachers), found none"));
  DataOptions other = options();
  other.teachers = {"math", "law"};
  other.sources[2].teachers = {{"law", 1.0}};
  const std::string message = error(other);
  EXPECT_THAT(message, HasSubstr(path("b") + ": document 1: expected the name of its teacher, one of math, law"));
  EXPECT_THAT(message, HasSubstr("found code"));
  EXPECT_THAT(message, HasSubstr("52 more of 80 documents have no such teacher"));
  DataOptions nobody = options();
  nobody.teachers.emplace_back("law");
  EXPECT_THAT(error(nobody), HasSubstr("teachers: expected documents of law, found none in " + path("a")));
  nobody.every_teacher = false;
  EXPECT_EQ(error(nobody), "");
}

TEST_F(TeacherGroupsTest, ARunWithOneTeacherReadsNoNames) {
  DataOptions one = options();
  one.teachers = {"whatever"};
  DataOptions none = options();
  none.teachers.clear();
  const auto dataset = open(one);
  EXPECT_EQ(dataset->stats().size(), 3U);
  EXPECT_EQ(dataset->fingerprint(), open(none)->fingerprint());
  EXPECT_NE(dataset->fingerprint(), open(options())->fingerprint());
  DataOptions group = options();
  group.teacher_group = 2 * kGroup;
  EXPECT_NE(open(group)->fingerprint(), open(options())->fingerprint());
}

} // namespace
} // namespace distill::data
