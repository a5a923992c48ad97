#include "data/dataset.h"

#include <gmock/gmock.h>

#include <map>
#include <numeric>
#include <set>

#include "data/prefetch.h"
#include "tests/data/fixtures.h"

namespace distill::data {
namespace {

using ::testing::AllOf;
using testing::distinct_documents;
using testing::get;
using ::testing::HasSubstr;
using testing::mixed_lengths;
using ::testing::Not;
using testing::open;
using testing::spec;
using testing::values;

class DatasetTest : public testing::FolderTest {
 protected:
  // Two shards of documents with distinct ids; returns the documents.
  std::vector<std::vector<uint32_t>> two_shards(const std::vector<int64_t>& lengths) {
    auto documents = distinct_documents(lengths);
    const auto half = documents.begin() + static_cast<int64_t>(documents.size()) / 2;
    std::filesystem::create_directory(path("set"));
    testing::write_shard(path("set/a.dtok"), spec(60000), {documents.begin(), half});
    testing::write_shard(path("set/b.dtok"), spec(60000), {half, documents.end()});
    return documents;
  }
  DataOptions options(int64_t seq_len, PackingMode packing = PackingMode::kPack) const {
    DataOptions out;
    out.sources = {{path("set"), 1.0}};
    out.seq_len = seq_len;
    out.packing = packing;
    return out;
  }
};

// What a packed batch says about each token: (token, its target), checked against positions and boundaries on the way.
void expect_segments_are_documents(
    const Batch& batch, const std::vector<std::vector<uint32_t>>& documents, std::map<int64_t, int>& tokens_seen,
    std::set<int64_t>& targets_seen) {
  std::map<int64_t, std::pair<size_t, size_t>> where; // token -> document, place
  for (size_t d = 0; d < documents.size(); ++d) {
    for (size_t i = 0; i < documents[d].size(); ++i) {
      where[documents[d][i]] = {d, i};
    }
  }
  const auto tokens = values(batch.tokens_BS);
  const auto targets = values(batch.targets_BS);
  const auto positions = values(batch.positions_BS);
  const auto cu_seqlens = values(batch.cu_seqlens);
  const int64_t seq_len = batch.tokens_BS.size(1);
  ASSERT_EQ(cu_seqlens.front(), 0);
  ASSERT_EQ(cu_seqlens.back(), static_cast<int64_t>(tokens.size()));
  int64_t longest = 0;
  int64_t valid = 0;
  for (size_t segment = 0; segment + 1 < cu_seqlens.size(); ++segment) {
    const int64_t begin = cu_seqlens[segment];
    const int64_t end = cu_seqlens[segment + 1];
    ASSERT_LT(begin, end);
    ASSERT_EQ(begin / seq_len, (end - 1) / seq_len) << "a segment crosses a sequence";
    longest = std::max(longest, end - begin);
    const bool padding = tokens[begin] == 0;
    for (int64_t i = begin; i < end; ++i) {
      ASSERT_EQ(positions[i], i - begin);
      if (padding) {
        ASSERT_EQ(tokens[i], 0);
        ASSERT_EQ(targets[i], -100);
        continue;
      }
      ++tokens_seen[tokens[i]];
      const auto [document, place] = where.at(tokens[i]);
      ASSERT_EQ(document, where.at(tokens[begin]).first) << "a segment mixes documents";
      if (i > begin) {
        ASSERT_EQ(place, where.at(tokens[i - 1]).second + 1);
      }
      const bool last = place + 1 == documents[document].size();
      ASSERT_EQ(targets[i], last ? -100 : static_cast<int64_t>(documents[document][place + 1]));
      if (!last) {
        ++valid;
        ASSERT_TRUE(targets_seen.insert(targets[i]).second) << "a target twice";
      }
    }
  }
  EXPECT_EQ(batch.max_seqlen, longest);
  EXPECT_EQ(batch.valid_tokens, valid);
  EXPECT_TRUE(batch.packed);
}

TEST_F(DatasetTest, APackedEpochHasEveryTokenAndTargetOnceAndNeverCrossesADocument) {
  const auto documents = two_shards(mixed_lengths(300, 150));
  size_t tokens = 0;
  for (const auto& document : documents) {
    tokens += document.size();
  }
  for (const int64_t seq_len : {16, 64, 200}) {
    const auto dataset = open(options(seq_len));
    for (int64_t epoch = 0; epoch < 2; ++epoch) {
      std::map<int64_t, int> tokens_seen;
      std::set<int64_t> targets_seen;
      const int64_t samples = dataset->num_samples();
      for (int64_t sample = 0; sample < samples;) {
        const int64_t count = std::min<int64_t>(7, samples - sample);
        const Batch batch = get(*dataset, epoch * samples + sample, count);
        ASSERT_NO_FATAL_FAILURE(expect_segments_are_documents(batch, documents, tokens_seen, targets_seen));
        sample += count;
      }
      EXPECT_EQ(tokens_seen.size(), tokens);
      EXPECT_TRUE(std::all_of(tokens_seen.begin(), tokens_seen.end(), [](auto& entry) { return entry.second == 1; }));
      EXPECT_EQ(targets_seen.size(), tokens - documents.size());
    }
  }
}

TEST_F(DatasetTest, ConcatenationCutsOneStream) {
  const auto documents = two_shards({5, 3, 9, 1, 6}); // 24 tokens: 1 ... 24
  for (const bool shuffle : {false, true}) {
    DataOptions with = options(7, PackingMode::kConcat);
    with.shuffle = shuffle;
    const auto dataset = open(with);
    ASSERT_EQ(dataset->num_samples(), 4); // 23 targets
    const Batch batch = get(*dataset, 0, 4);
    EXPECT_FALSE(batch.packed);
    EXPECT_EQ(values(batch.cu_seqlens), (std::vector<int64_t>{0, 7, 14, 21, 28}));
    EXPECT_EQ(batch.max_seqlen, 7);
    EXPECT_EQ(batch.valid_tokens, 23);
    const auto tokens = values(batch.tokens_BS);
    const auto targets = values(batch.targets_BS);
    std::map<int64_t, int64_t> follows;
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(tokens[i] == 0, targets[i] == -100);
      if (targets[i] != -100) {
        EXPECT_TRUE(follows.emplace(tokens[i], targets[i]).second);
        if (i % 7 != 6 && targets[i + 1] != -100) {
          EXPECT_EQ(targets[i], tokens[i + 1]);
        }
      }
    }
    EXPECT_EQ(follows.size(), 23U);
    for (const auto& document : documents) {
      for (size_t i = 0; i + 1 < document.size(); ++i) {
        EXPECT_EQ(follows[document[i]], document[i + 1]); // within documents nothing is lost, whatever their order
      }
    }
    if (!shuffle) {
      std::vector<int64_t> stream(21);
      std::iota(stream.begin(), stream.end(), 1);
      EXPECT_EQ(std::vector<int64_t>(tokens.begin(), tokens.begin() + 21), stream);
      EXPECT_EQ(targets[27], -100);
      EXPECT_EQ(targets[22], 24);
    }
  }
}

TEST_F(DatasetTest, TheStretchesOfConcatenatedDocumentsAreTheirTokensInOrder) {
  two_shards({5, 3, 9, 1, 6});
  for (const bool shuffle : {false, true}) {
    DataOptions with = options(7, PackingMode::kConcat);
    with.shuffle = shuffle;
    with.once = true;
    const auto dataset = open(with);
    const Batch batch = get(*dataset, 0, 5); // and one sequence of padding
    const auto tokens = values(batch.tokens_BS);
    std::multiset<std::vector<int64_t>> places, planned; // document, begin, tokens, position in the sequence
    std::vector<int64_t> read;
    int64_t end = 0;
    for (const Stretch& stretch : batch.stretches) {
      EXPECT_GE(stretch.at, end);
      EXPECT_TRUE(stretch.at == end || stretch.at % 7 == 0);
      end = stretch.at + stretch.tokens;
      std::vector<int64_t> own(static_cast<size_t>(stretch.tokens));
      const int64_t first = stretch.shard->document_begin(stretch.document) + stretch.begin;
      ASSERT_TRUE(stretch.shard->read_tokens(first, absl::MakeSpan(own)).ok());
      EXPECT_TRUE(std::equal(own.begin(), own.end(), tokens.begin() + stretch.at));
      places.insert({own[0], stretch.begin, stretch.tokens, stretch.at % 7});
      read.insert(read.end(), own.begin(), own.end());
    }
    EXPECT_EQ(read.size(), 23U); // all inputs
    int64_t last = -1;
    dataset->for_each_stretch([&](const Stretch& stretch) {
      EXPECT_TRUE(stretch.at == 0 || stretch.at == last); // sequence by sequence
      last = stretch.at + stretch.tokens;
      int64_t id = 0;
      const int64_t first = stretch.shard->document_begin(stretch.document) + stretch.begin;
      ASSERT_TRUE(stretch.shard->read_tokens(first, absl::MakeSpan(&id, 1)).ok());
      planned.insert({id, stretch.begin, stretch.tokens, stretch.at});
    });
    EXPECT_EQ(places, planned);
  }
}

TEST_F(DatasetTest, TheLossMaskIsThatOfTheTarget) {
  ShardWriter writer(spec(100, true));
  ASSERT_TRUE(writer.add({1, 2, 3, 4, 5}, {1, 0, 1, 1, 0}).ok());
  ASSERT_TRUE(writer.write(path("m.dtok")).ok());
  for (const PackingMode packing : {PackingMode::kPack, PackingMode::kConcat}) {
    DataOptions with = options(8, packing);
    with.sources = {{path("m.dtok"), 1.0}};
    const Batch batch = get(*open(with), 0, 1);
    EXPECT_EQ(values(batch.targets_BS), (std::vector<int64_t>{-100, 3, 4, -100, -100, -100, -100, -100}))
        << base::enum_name(packing);
    EXPECT_EQ(batch.valid_tokens, 2);
  }
}

TEST_F(DatasetTest, PartsOfALongDocumentPredictAcrossTheCut) {
  std::filesystem::create_directory(path("set"));
  testing::write_shard(path("set/a.dtok"), spec(100), distinct_documents({10}));
  DataOptions with = options(4);
  with.shuffle = false;
  const auto dataset = open(with);
  ASSERT_EQ(dataset->num_samples(), 3);
  const Batch batch = get(*dataset, 0, 3);
  EXPECT_EQ(values(batch.targets_BS), (std::vector<int64_t>{2, 3, 4, 5, 6, 7, 8, 9, 10, -100, -100, -100}));
  EXPECT_EQ(values(batch.positions_BS), (std::vector<int64_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 0, 1}));
  EXPECT_EQ(values(batch.cu_seqlens), (std::vector<int64_t>{0, 4, 8, 10, 12}));
  EXPECT_EQ(dataset->stats()[0].split_documents, 1);
  EXPECT_EQ(dataset->stats()[0].padding, 2);
}

std::vector<int64_t> tokens_of(const Dataset& dataset, int64_t first, int64_t count) {
  return values(get(dataset, first, count).tokens_BS);
}

TEST_F(DatasetTest, RanksTogetherReadWhatOneWouldAndResumeIsExact) {
  two_shards(mixed_lengths(400, 60));
  for (const PackingMode packing : {PackingMode::kPack, PackingMode::kConcat}) {
    const auto one = open(options(64, packing));
    const auto again = open(options(64, packing)); // another process
    const int64_t total = 2 * one->num_samples() + 5; // across epochs
    const auto all = tokens_of(*one, 0, total);
    for (const int64_t ranks : {1, 2, 3, 8}) {
      std::vector<int64_t> joined;
      for (int64_t position = 0; position + ranks * 2 <= total; position += ranks * 2) {
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const auto part = tokens_of(*again, position + rank * 2, 2);
          joined.insert(joined.end(), part.begin(), part.end());
        }
      }
      ASSERT_GT(joined.size(), all.size() / 2);
      EXPECT_TRUE(std::equal(joined.begin(), joined.end(), all.begin())) << ranks;
    }
  }
}

TEST_F(DatasetTest, EpochsDifferSeedsDifferAndTheSameSeedIsTheSame) {
  two_shards(mixed_lengths(400, 60));
  for (const PackingMode packing : {PackingMode::kPack, PackingMode::kConcat}) {
    const DataOptions first = options(64, packing);
    DataOptions second = first;
    second.seed = 1;
    const auto a = open(first);
    const auto b = open(second);
    const int64_t samples = a->num_samples();
    EXPECT_EQ(tokens_of(*a, 0, samples), tokens_of(*open(first), 0, samples));
    EXPECT_NE(tokens_of(*a, 0, samples), tokens_of(*a, samples, samples));
    EXPECT_NE(tokens_of(*a, 0, samples), tokens_of(*b, 0, samples));
    EXPECT_EQ(a->fingerprint(), open(first)->fingerprint());
    EXPECT_NE(a->fingerprint(), b->fingerprint());
    DataOptions ordered = first;
    ordered.shuffle = false;
    const auto c = open(ordered);
    EXPECT_EQ(tokens_of(*c, 0, c->num_samples()), tokens_of(*c, c->num_samples(), c->num_samples()));
  }
}

TEST_F(DatasetTest, MixesSourcesByWeightAndEachSourceGoesThroughItsOwnEpochs) {
  testing::write_shard(path("a.dtok"), spec(60000), distinct_documents(std::vector<int64_t>(40, 8), 1));
  testing::write_shard(path("b.dtok"), spec(60000), distinct_documents(std::vector<int64_t>(25, 8), 10001));
  DataOptions with = options(8);
  with.sources = {{path("a.dtok"), 3.0}, {path("b.dtok"), 1.0}};
  const auto dataset = open(with);
  EXPECT_EQ(dataset->num_samples(), 65);
  const auto tokens = tokens_of(*dataset, 0, 400);
  std::map<int64_t, int64_t> times;
  int64_t of_a = 0;
  for (size_t sample = 0; sample < 400; ++sample) {
    ++times[tokens[sample * 8]];
    of_a += tokens[sample * 8] <= 10000 ? 1 : 0;
  }
  EXPECT_EQ(of_a, 300);
  for (const auto& [token, count] : times) {
    // 300 samples of 40 sequences: 7 or 8 times each; 100 samples of 25 sequences: 4 times each.
    EXPECT_TRUE(token <= 10000 ? count == 7 || count == 8 : count == 4) << token << " " << count;
  }
}

TEST_F(DatasetTest, OnceReadsEveryDocumentOnceInOrderAndThenOnlyPadding) {
  testing::write_shard(path("a.dtok"), spec(60000), distinct_documents({8, 3, 5, 8}, 1));
  testing::write_shard(path("b.dtok"), spec(60000), distinct_documents({6}, 10001));
  DataOptions with = options(8);
  with.sources = {{path("a.dtok"), 1.0}, {path("b.dtok"), 100.0}};
  with.shuffle = false;
  with.once = true;
  const auto dataset = open(with);
  ASSERT_EQ(dataset->num_samples(), 4);
  const Batch batch = get(*dataset, 0, 6);
  std::vector<int64_t> expected(24);
  std::iota(expected.begin(), expected.end(), 1);
  for (const int64_t id : {10001, 10002, 10003, 10004, 10005, 10006}) {
    expected.push_back(id);
  }
  expected.resize(48, 0);
  EXPECT_EQ(values(batch.tokens_BS), expected);
  EXPECT_EQ(batch.valid_tokens, 7 + 2 + 4 + 7 + 5);
  const Batch beyond = get(*dataset, 100, 2);
  EXPECT_EQ(beyond.valid_tokens, 0);
  EXPECT_EQ(values(beyond.targets_BS), std::vector<int64_t>(16, -100));
  EXPECT_EQ(values(beyond.cu_seqlens), (std::vector<int64_t>{0, 8, 16}));
}

TEST_F(DatasetTest, ReportsEveryProblemAtOnce) {
  testing::write_shard(path("a.dtok"), spec(500), distinct_documents({4}));
  ShardSpec other = spec(500);
  other.tokenizer_hash.fill(9);
  testing::write_shard(path("b.dtok"), other, distinct_documents({4}));
  DataOptions with;
  with.sources = {{path("a.dtok"), -1.0}, {path("b.dtok"), 1.0}, {path("missing"), 1.0}};
  with.seq_len = 1;
  with.limits.documents.rows = 2;
  with.tokenizer_hashes.resize(1);
  with.tokenizer_hashes[0].fill(7);
  const std::string message(Dataset::open(with).status().message());
  EXPECT_THAT(message, AllOf(HasSubstr("weight: expected a positive"), HasSubstr("found -1")));
  EXPECT_THAT(message, HasSubstr("seq_len: expected 2 to 2^31 - 1, found 1"));
  EXPECT_THAT(message, HasSubstr("missing: no such file or folder"));
  EXPECT_THAT(message, HasSubstr("a.dtok: document 0, token "));
  EXPECT_THAT(message, HasSubstr("b.dtok: header field `tokenizer_hash`: expected 0707"));
  EXPECT_THAT(message, Not(HasSubstr("a.dtok: header field `tokenizer_hash`")));
  with.sources = {{path("a.dtok"), 1.0}, {path("b.dtok"), 1.0}};
  with.tokenizer_hashes.clear();
  EXPECT_THAT(std::string(Dataset::open(with).status().message()), HasSubstr("expected 0707"));
  with.sources.clear();
  EXPECT_THAT(std::string(Dataset::open(with).status().message()), HasSubstr("at least one token shard"));
}

TEST_F(DatasetTest, RefusesSamplesThatDoNotExist) {
  two_shards({4, 4});
  const auto dataset = open(options(4));
  for (const auto& [first, count] :
       std::vector<std::pair<int64_t, int64_t>>{{-1, 1}, {0, 0}, {INT64_MAX, 1}, {0, int64_t{1} << 30}}) {
    EXPECT_EQ(dataset->batch(first, count).status().code(), absl::StatusCode::kInvalidArgument) << first;
  }
  EXPECT_TRUE(dataset->batch(INT64_MAX - 10, 1).ok());
}

// A shard whose last document has an id that is not in the vocabulary.
std::string damaged_shard(const std::string& path) {
  ShardWriter writer(spec(100));
  for (const auto& document : distinct_documents({4, 4, 4, 4})) {
    EXPECT_TRUE(writer.add(document).ok());
  }
  std::vector<uint8_t> bytes = writer.bytes();
  bytes[bytes.size() - 2] = 200;
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return path;
}

TEST_F(DatasetTest, VerifyFindsDamageOnOpening) {
  DataOptions with = options(4);
  with.sources = {{damaged_shard(path("bad.dtok")), 1.0}};
  EXPECT_TRUE(Dataset::open(with).ok());
  with.verify = true;
  EXPECT_THAT(std::string(Dataset::open(with).status().message()), HasSubstr("`payload_hash`"));
}

TEST_F(DatasetTest, PrefetchGivesTheBatchesOfItsScheduleInOrder) {
  two_shards(mixed_lengths(200, 60));
  const std::shared_ptr<const Dataset> dataset = open(options(32));
  for (const int64_t depth : {1, 4}) {
    Prefetcher prefetch(dataset, {.first_sample = 6, .batch_size = 2, .stride = 6, .batches = 9}, depth);
    for (int64_t i = 0; i < 9; ++i) {
      const auto batch = prefetch.next().value();
      EXPECT_EQ(values(batch.tokens_BS), tokens_of(*dataset, 6 + 6 * i, 2)) << i;
    }
    EXPECT_EQ(prefetch.next().status().code(), absl::StatusCode::kOutOfRange);
    EXPECT_EQ(prefetch.next().status().code(), absl::StatusCode::kOutOfRange);
  }
  { Prefetcher abandoned(dataset, {.first_sample = 0, .batch_size = 1, .stride = 1}); }
  EXPECT_ANY_THROW(Prefetcher(dataset, {.first_sample = -1}));
}

TEST_F(DatasetTest, PrefetchBringsErrorsToTheBatchTheyBelongTo) {
  DataOptions with = options(4);
  with.sources = {{damaged_shard(path("bad.dtok")), 1.0}};
  with.shuffle = false;
  const std::shared_ptr<const Dataset> dataset = open(with);
  Prefetcher prefetch(dataset, {.first_sample = 0, .batch_size = 1, .stride = 1});
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(prefetch.next().ok());
  }
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_THAT(
        std::string(prefetch.next().status().message()),
        AllOf(HasSubstr("document 3, token 3"), HasSubstr("expected an id below 100 (vocab_size), found 200")));
  }
}

} // namespace
} // namespace distill::data
