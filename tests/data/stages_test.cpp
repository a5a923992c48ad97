#include <gmock/gmock.h>

#include <map>
#include <numeric>

#include "tests/data/fixtures.h"

// A run that is continued with another sequence length or packing.
namespace distill::data {
namespace {

using enum PackingMode;
using testing::distinct_documents;
using testing::get;
using ::testing::HasSubstr;
using testing::mixed_lengths;
using testing::open;
using testing::spec;
using testing::values;

constexpr int64_t kSecondSet = 30000; // its ids begin here

// How often each token has been an input, and a target.
struct Seen {
  std::map<int64_t, int64_t> inputs, targets;

  void add(const Batch& batch) {
    const auto tokens = values(batch.tokens_BS), next = values(batch.targets_BS);
    for (size_t i = 0; i < tokens.size(); ++i) {
      inputs[tokens[i]] += tokens[i] != 0 ? 1 : 0;
      targets[next[i]] += next[i] != -100 ? 1 : 0;
    }
  }
};

class StagesTest : public testing::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    const auto first = mixed_lengths(60, 90), second = mixed_lengths(25, 200);
    documents_[0] = distinct_documents(first, 1);
    documents_[1] = distinct_documents(second, kSecondSet);
    testing::write_shard(path("a.dtok"), spec(60000), documents_[0]);
    testing::write_shard(path("b.dtok"), spec(60000), documents_[1]);
  }
  DataOptions options(const Stage& stage, bool shuffle = true) const {
    DataOptions out;
    out.sources = {{path("a.dtok"), 2.0}, {path("b.dtok"), 1.0}};
    out.seq_len = stage.seq_len;
    out.packing = stage.packing;
    out.shuffle = shuffle;
    out.seed = 4;
    return out;
  }
  // A dataset at the last of the stages.
  std::unique_ptr<Dataset> at(const std::vector<Stage>& stages, bool shuffle = true) const {
    auto dataset = open(options(stages.back(), shuffle));
    const auto lines = dataset->continue_from(stages);
    TORCH_CHECK(lines.ok(), lines.status().ToString());
    return dataset;
  }
  // Least and most of the counts of one set's tokens; as targets, of those that have one before them.
  std::pair<int64_t, int64_t> range(const std::map<int64_t, int64_t>& counts, int set, bool as_targets) const {
    int64_t least = INT64_MAX, most = 0;
    for (const auto& document : documents_[set]) {
      for (size_t i = as_targets ? 1 : 0; i < document.size(); ++i) {
        const auto found = counts.find(document[i]);
        least = std::min(least, found == counts.end() ? 0 : found->second);
        most = std::max(most, found == counts.end() ? 0 : found->second);
      }
    }
    return {least, most};
  }
  std::vector<std::vector<uint32_t>> documents_[2];
};

TEST_F(StagesTest, NoTokenComesAgainBeforeAllOfItsSetHaveCome) {
  for (const bool shuffle : {true, false}) {
    // Lengths that grow, shrink, and do not divide each other; stops within epochs, across them, and at once.
    const std::vector<Stage> stages{{0, 16, kPack},  {41, 64, kPack},  {52, 24, kPack}, {53, 200, kPack},
                                    {54, 32, kPack}, {700, 48, kPack}, {731, 8, kPack}};
    Seen seen;
    for (size_t i = 0; i < stages.size(); ++i) {
      const auto dataset = at({stages.begin(), stages.begin() + static_cast<int64_t>(i) + 1}, shuffle);
      const int64_t end = i + 1 < stages.size() ? stages[i + 1].first_sample : 3000;
      for (int64_t sample = stages[i].first_sample; sample < end; ++sample) {
        seen.add(get(*dataset, sample, 1));
        for (const int set : {0, 1}) {
          const auto [least, most] = range(seen.inputs, set, false);
          ASSERT_LE(most - least, 1) << "stage " << i << ", sample " << sample << ", set " << set;
          const auto [least_target, most_target] = range(seen.targets, set, true);
          ASSERT_LE(most_target - least_target, 1) << "stage " << i << ", sample " << sample << ", set " << set;
        }
      }
    }
    EXPECT_GT(range(seen.inputs, 0, false).first, 3) << "several epochs";
    EXPECT_GT(range(seen.inputs, 1, false).first, 3) << "several epochs";
  }
}

TEST_F(StagesTest, PackingMayChangeToo) {
  for (const bool shuffle : {true, false}) {
    const std::vector<Stage> stages{
        {0, 16, kPack}, {61, 40, kConcat}, {75, 24, kConcat}, {90, 16, kPack}, {400, 32, kConcat}};
    Seen seen;
    for (size_t i = 0; i < stages.size(); ++i) {
      const auto dataset = at({stages.begin(), stages.begin() + static_cast<int64_t>(i) + 1}, shuffle);
      const int64_t end = i + 1 < stages.size() ? stages[i + 1].first_sample : 2500;
      for (int64_t sample = stages[i].first_sample; sample < end; ++sample) {
        const Batch batch = get(*dataset, sample, 1);
        seen.add(batch);
        // Within a document the target is the next token, also where a fragment ends.
        const auto tokens = values(batch.tokens_BS), targets = values(batch.targets_BS);
        for (size_t t = 0; t < tokens.size(); ++t) {
          const auto& documents = documents_[tokens[t] >= kSecondSet ? 1 : 0];
          const bool last = std::any_of(
              documents.begin(), documents.end(), [&](const auto& document) { return document.back() == tokens[t]; });
          if (tokens[t] != 0 && !last) {
            ASSERT_EQ(targets[t], tokens[t] + 1);
          }
        }
      }
    }
    for (const int set : {0, 1}) {
      // Of a concatenated epoch the last token of the stream is no input: it alone may fall behind.
      const int64_t most = range(seen.inputs, set, false).second;
      EXPECT_GT(most, 5) << "several epochs";
      int64_t behind = 0;
      for (const auto& [token, count] : seen.inputs) {
        behind += (token >= kSecondSet) == (set == 1) && token != 0 && count + 1 < most ? 1 : 0;
      }
      EXPECT_LE(behind, 2) << "one for each plan of concatenated epochs";
    }
  }
}

TEST_F(StagesTest, ADocumentGoesOnWhereItWasLeft) {
  testing::write_shard(path("a.dtok"), spec(60000), distinct_documents({100, 20}));
  DataOptions with = options({0, 25, kPack}, /*shuffle=*/false);
  with.sources = {{path("a.dtok"), 1.0}};
  const auto dataset = open(with);
  // Three sequences of 10 have been read.
  const auto lines = dataset->continue_from({{0, 10, kPack}, {3, 25, kPack}}).value();
  EXPECT_THAT(lines.at(0), HasSubstr("epoch 1 continues with its 90 unread tokens (2 fragments of documents)"));
  std::vector<int64_t> expected(25);
  std::iota(expected.begin(), expected.end(), 31);
  const Batch batch = get(*dataset, 3, 1);
  EXPECT_EQ(values(batch.tokens_BS), expected);
  std::iota(expected.begin(), expected.end(), 32);
  EXPECT_EQ(values(batch.targets_BS), expected);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(values(batch.positions_BS), expected);
}

TEST_F(StagesTest, AnEpochThatHasJustEndedLeavesNothing) {
  const auto before = open(options({0, 16, kPack}));
  DataOptions with = options({0, 32, kPack});
  with.sources.resize(1);
  const auto fresh = open(with);
  DataOptions first = options({0, 16, kPack});
  first.sources.resize(1);
  const int64_t samples = open(first)->num_samples();
  const auto dataset = open(with);
  const auto lines = dataset->continue_from({{0, 16, kPack}, {2 * samples, 32, kPack}}).value();
  EXPECT_THAT(lines.at(0), HasSubstr("epoch 3 begins"));
  // The third epoch of the new length, as a run with that length from its start would have it.
  EXPECT_EQ(
      values(get(*dataset, 2 * samples, fresh->num_samples()).tokens_BS),
      values(get(*fresh, 2 * fresh->num_samples(), fresh->num_samples()).tokens_BS));
}

TEST_F(StagesTest, AnotherProcessReadsTheSameWhateverTheRanks) {
  const std::vector<Stage> stages{{0, 16, kPack}, {41, 64, kPack}, {60, 24, kConcat}};
  const auto one = at(stages), again = at(stages);
  const auto all = values(get(*one, 60, 240).tokens_BS);
  std::vector<int64_t> joined;
  for (int64_t step = 0; step < 240; step += 6) {
    for (int64_t rank = 0; rank < 3; ++rank) {
      const auto part = values(get(*again, 60 + step + 2 * rank, 2).tokens_BS);
      joined.insert(joined.end(), part.begin(), part.end());
    }
  }
  EXPECT_EQ(joined, all);
}

TEST_F(StagesTest, OneStageIsARunAsEver) {
  const Stage only{0, 24, kPack};
  const auto plain = open(options(only)), staged = at({only});
  EXPECT_EQ(values(get(*plain, 0, 400).tokens_BS), values(get(*staged, 0, 400).tokens_BS));
  EXPECT_EQ(plain->fingerprint(), staged->fingerprint());
  EXPECT_EQ(plain->fingerprint({0, 64, kConcat}), open(options({0, 64, kConcat}))->fingerprint());
  EXPECT_NE(plain->fingerprint({0, 64, kPack}), plain->fingerprint());
}

TEST_F(StagesTest, ADataSetMayBeginWithALaterSampleOfTheRun) {
  const std::vector<Stage> from_zero{{0, 16, kPack}, {21, 64, kPack}}, later{{50, 16, kPack}, {71, 64, kPack}};
  const auto expected = at(from_zero), found = at(later);
  EXPECT_EQ(values(get(*found, 71, 300).tokens_BS), values(get(*expected, 21, 300).tokens_BS));
  EXPECT_FALSE(found->batch(70, 1).ok());
}

TEST_F(StagesTest, RefusesStagesThatCannotBe) {
  const auto dataset = open(options({0, 16, kPack}));
  const auto error = [&](const std::vector<Stage>& stages) {
    return std::string(dataset->continue_from(stages).status().message());
  };
  EXPECT_THAT(error({}), HasSubstr("expected at least one"));
  EXPECT_THAT(error({{-1, 16, kPack}}), HasSubstr("from sample 0 or a later one on"));
  EXPECT_THAT(error({{0, 1, kPack}, {3, 16, kPack}}), HasSubstr("found sample 0, seq_len 1"));
  EXPECT_THAT(error({{0, 32, kPack}, {0, 16, kPack}}), HasSubstr("a later sample"));
  EXPECT_THAT(
      error({{0, 16, kPack}, {3, 32, kPack}}),
      HasSubstr("expected the last one to have the length and packing of the options"));
  ASSERT_TRUE(dataset->continue_from({{0, 32, kPack}, {3, 16, kPack}}).ok());
  EXPECT_TRUE(dataset->batch(3, 1).ok());
  EXPECT_THAT(std::string(dataset->batch(2, 1).status().message()), HasSubstr("expected first >= 3"));
}

} // namespace
} // namespace distill::data
