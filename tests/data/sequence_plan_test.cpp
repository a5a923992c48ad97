#include "data/sequence_plan.h"

#include <gmock/gmock.h>

#include <chrono>
#include <cstdio>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "data/mixer.h"
#include "data/random.h"
#include "tests/data/fixtures.h"

namespace distill::data {
namespace {

int64_t piece_length(const Piece& piece, const std::vector<int64_t>& lengths, int64_t seq_len) {
  return std::min(lengths[piece.document] - piece.part * seq_len, seq_len);
}

TEST(Packing, EveryTokenIsInExactlyOneSequenceAndNoSequenceIsTooLong) {
  for (const int64_t seq_len : {2, 7, 64, 65, 1000, 5000}) {
    for (const auto key : {std::optional<uint64_t>{}, std::optional<uint64_t>{3}}) {
      const auto lengths = testing::mixed_lengths(3000, 2000);
      const PackedSequences plan = pack_documents(lengths, seq_len, key);
      std::set<std::pair<uint32_t, uint32_t>> seen;
      int64_t tokens = 0;
      for (int64_t sequence = 0; sequence < plan.count(); ++sequence) {
        int64_t used = 0;
        for (const Piece& piece : plan.sequence(sequence)) {
          EXPECT_TRUE(seen.emplace(piece.document, piece.part).second);
          const int64_t length = piece_length(piece, lengths, seq_len);
          EXPECT_GT(length, 0);
          used += length;
        }
        EXPECT_GT(used, 0);
        EXPECT_LE(used, seq_len);
        tokens += used;
      }
      EXPECT_EQ(tokens, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
      EXPECT_EQ(plan.padding, plan.count() * seq_len - tokens);
    }
  }
}

// Best fit decreasing is optimal here: the sizes pair up.
TEST(Packing, FillsSequencesCompletelyWhereTheSizesAllowIt) {
  std::vector<int64_t> lengths;
  for (int64_t i = 1; i < 100; ++i) {
    lengths.push_back(i);
  }
  const PackedSequences plan = pack_documents(lengths, 100, std::nullopt);
  EXPECT_EQ(plan.count(), 50); // 99 + 1, 98 + 2, ..., and 50 alone
  EXPECT_EQ(plan.padding, 50);
}

TEST(Packing, LosesLittleToPadding) {
  const auto lengths = testing::mixed_lengths(200000, 2000);
  const PackedSequences plan = pack_documents(lengths, 2048, 1);
  const auto tokens = static_cast<double>(plan.count() * 2048);
  EXPECT_LT(static_cast<double>(plan.padding) / tokens, 0.002);
}

TEST(Packing, WithoutAShuffleSequencesFollowTheDocuments) {
  const PackedSequences plan = pack_documents(testing::mixed_lengths(10000, 200), 256, std::nullopt);
  for (int64_t sequence = 0; sequence < plan.count(); ++sequence) {
    uint32_t last = 0;
    for (const Piece& piece : plan.sequence(sequence)) {
      EXPECT_GE(piece.document, last);
      EXPECT_LT(piece.document - plan.sequence(sequence)[0].document, 1100U);
      last = piece.document;
    }
  }
}

TEST(Packing, WithoutAShuffleLosesLittleEvenToLongSequences) {
  const PackedSequences plan = pack_documents(testing::mixed_lengths(200000, 2000), 131072, std::nullopt);
  EXPECT_LT(static_cast<double>(plan.padding) / static_cast<double>(plan.count() * 131072), 0.01);
}

// The table in docs/data.md. Lengths: log-normal, median 400, mean 830, cut at 200000 tokens.
TEST(Packing, DISABLED_Measure) {
  std::mt19937_64 generator(1);
  std::lognormal_distribution<double> length(6.0, 1.2);
  constexpr int64_t kDocuments = 10'000'000;
  std::vector<int64_t> lengths;
  lengths.reserve(kDocuments);
  for (int64_t i = 0; i < kDocuments; ++i) {
    lengths.push_back(static_cast<int64_t>(std::clamp(length(generator), 1.0, 200000.0)));
  }
  for (const int64_t seq_len : {1024, 2048, 8192, 32768, 131072}) {
    for (const bool shuffled : {true, false}) {
      const auto start = std::chrono::steady_clock::now();
      const auto key = shuffled ? std::optional<uint64_t>(1) : std::nullopt;
      const PackedSequences plan = pack_documents(lengths, seq_len, key);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      const double padding = 100.0 * static_cast<double>(plan.padding) / static_cast<double>(plan.count() * seq_len);
      std::printf(
          "seq_len %6ld, %-10s: padding %.3f %%, %.1f s\n", seq_len, shuffled ? "shuffled" : "in order", padding,
          seconds.count());
      EXPECT_LT(padding, 1.0);
    }
  }
}

// A plan for sequences of 2^31 - 1 tokens takes no memory for tokens that no document has.
TEST(Packing, ASequenceThatIsLongerThanAllDocumentsHoldsThemAll) {
  const auto lengths = testing::mixed_lengths(300, 100);
  const int64_t tokens = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  for (const int64_t seq_len : {tokens, tokens + 1, int64_t{INT32_MAX}}) {
    const PackedSequences plan = pack_documents(lengths, seq_len, 7);
    ASSERT_EQ(plan.count(), 1) << seq_len;
    EXPECT_EQ(plan.sequence(0).size(), lengths.size());
    EXPECT_EQ(plan.padding, seq_len - tokens);
  }
  EXPECT_GT(pack_documents(lengths, tokens - 1, 7).count(), 1);
}

// Sizes of documents: own texts with a longer text of the teacher's, some with a shorter one, some without one.
std::vector<DocumentSize> mixed_sizes(int64_t count, int64_t longest, int64_t teacher_longest) {
  const auto lengths = testing::mixed_lengths(count, longest);
  std::mt19937 random(5);
  std::vector<DocumentSize> sizes;
  for (const int64_t length : lengths) {
    const auto kind = random() % 10;
    const int64_t more = static_cast<int64_t>(random() % static_cast<uint64_t>(teacher_longest));
    sizes.push_back(
        kind == 0       ? DocumentSize{length, DocumentSize::kSameText}
            : kind == 1 ? DocumentSize{0, 0}
            : kind == 2 ? DocumentSize{length, 1 + more}
                        : DocumentSize{length, std::min(length + more / 8, teacher_longest)});
  }
  return sizes;
}

TEST(Packing, WithATeacherStreamBothTextsFitAndNoDocumentComesTwice) {
  for (const auto& [seq_len, teacher_seq_len] :
       std::vector<std::pair<int64_t, int64_t>>{{300, 300}, {300, 900}, {700, 300}, {5000, 300}}) {
    for (const auto key : {std::optional<uint64_t>{}, std::optional<uint64_t>{3}}) {
      const auto sizes = mixed_sizes(4000, 300, 300);
      const PackedSequences plan = pack_documents(sizes, seq_len, teacher_seq_len, key);
      std::set<std::pair<uint32_t, uint32_t>> seen;
      int64_t tokens = 0, teacher_tokens = 0;
      for (int64_t sequence = 0; sequence < plan.count(); ++sequence) {
        int64_t used = 0, teacher_used = 0;
        for (const Piece& piece : plan.sequence(sequence)) {
          EXPECT_TRUE(seen.emplace(piece.document, piece.part).second);
          const DocumentSize& size = sizes[piece.document];
          EXPECT_EQ(piece.both_texts(), size.teacher_tokens != DocumentSize::kSameText);
          const int64_t length =
              piece.both_texts() ? size.tokens : std::min(size.tokens - piece.part * plan.part_len, plan.part_len);
          EXPECT_GT(length, 0);
          used += length;
          teacher_used += piece.both_texts() ? size.teacher_tokens : length;
        }
        EXPECT_GT(used, 0);
        EXPECT_LE(used, seq_len);
        EXPECT_LE(teacher_used, teacher_seq_len);
        tokens += used;
        teacher_tokens += teacher_used;
      }
      int64_t expected = 0;
      for (const DocumentSize& size : sizes) {
        expected += size.tokens;
      }
      EXPECT_EQ(tokens, expected);
      EXPECT_EQ(plan.padding, plan.count() * seq_len - tokens);
      EXPECT_EQ(plan.teacher_padding, plan.count() * teacher_seq_len - teacher_tokens);
    }
  }
}

TEST(Packing, WithATeacherStreamLongSequencesHoldAllDocuments) {
  const auto sizes = mixed_sizes(300, 300, 300);
  EXPECT_EQ(pack_documents(sizes, 1 << 20, 1 << 20, 7).count(), 1);
  EXPECT_EQ(pack_documents({DocumentSize{4, 3}, DocumentSize{2, 3}}, 1000, 1000, std::nullopt).count(), 1);
}

// The stream that fills more sequences loses little; equal texts are packed as documents without a second text are.
TEST(Packing, WithATeacherStreamLosesLittleToPadding) {
  std::vector<DocumentSize> longer, same;
  const auto lengths = testing::mixed_lengths(200000, 1500);
  for (const int64_t length : lengths) {
    longer.push_back({length, length + 200});
    same.push_back({length, length});
  }
  const PackedSequences plan = pack_documents(longer, 2048, 2048, 1);
  EXPECT_LT(static_cast<double>(plan.teacher_padding) / static_cast<double>(plan.count() * 2048), 0.01);
  // The two streams fill nearly as many sequences: long documents fill the student's first, short ones the teacher's.
  const PackedSequences balanced = pack_documents(longer, 2048, 2900, 1);
  EXPECT_LT(static_cast<double>(balanced.padding) / static_cast<double>(balanced.count() * 2048), 0.12);

  const PackedSequences pairs = pack_documents(same, 2048, 2048, 1), plain = pack_documents(lengths, 2048, 1);
  ASSERT_EQ(pairs.sequence_begin, plain.sequence_begin);
  for (size_t i = 0; i < plain.pieces.size(); ++i) {
    ASSERT_EQ(pairs.pieces[i].document, plain.pieces[i].document);
  }
}

TEST(Packing, DependsOnTheKeyOnly) {
  const auto lengths = testing::mixed_lengths(500, 100);
  const auto documents = [&](std::optional<uint64_t> key) {
    std::vector<uint32_t> out;
    for (const Piece& piece : pack_documents(lengths, 128, key).pieces) {
      out.push_back(piece.document);
    }
    return out;
  };
  EXPECT_EQ(documents(1), documents(1));
  EXPECT_NE(documents(1), documents(2));
  EXPECT_NE(documents(1), documents(std::nullopt));
}

TEST(Concat, SequencesCoverTheStream) {
  for (const int64_t total : {1, 2, 9, 10, 11, 12}) {
    std::vector<int64_t> lengths(total, 1);
    const ConcatSequences plan = concat_documents(lengths, 5, std::nullopt);
    EXPECT_EQ(plan.tokens(), total);
    EXPECT_EQ(plan.count(), std::max<int64_t>((total + 3) / 5, 1)) << total;
  }
}

TEST(Permutation, IsABijectionForEverySizeAndKey) {
  for (uint64_t size = 1; size < 70; ++size) {
    for (uint64_t key = 0; key < 5; ++key) {
      const Permutation permutation(size, key);
      std::set<uint64_t> seen;
      for (uint64_t i = 0; i < size; ++i) {
        EXPECT_LT(permutation(i), size);
        seen.insert(permutation(i));
      }
      EXPECT_EQ(seen.size(), size);
    }
  }
}

// Chi-square over positions: 5 cells each, 20000 keys; 99.99 % of fair permutations stay below 23.5 for 4 degrees.
TEST(Permutation, SendsAnElementEverywhereEquallyOften) {
  for (uint64_t from = 0; from < 5; ++from) {
    std::array<double, 5> count = {};
    for (uint64_t key = 0; key < 20000; ++key) {
      ++count[Permutation(5, derive_key(99, key))(from)];
    }
    double chi_square = 0;
    for (const double c : count) {
      chi_square += (c - 4000) * (c - 4000) / 4000;
    }
    EXPECT_LT(chi_square, 23.5) << from;
  }
}

TEST(Shuffle, IsAPermutationAndFair) {
  std::array<double, 6> count = {};
  for (uint64_t key = 0; key < 24000; ++key) {
    std::vector<int> items = {0, 1, 2};
    shuffle(items, derive_key(7, key));
    ++count[items[0] * 2 + (items[1] > items[2] ? 1 : 0)];
  }
  double chi_square = 0;
  for (const double c : count) {
    chi_square += (c - 4000) * (c - 4000) / 4000;
  }
  EXPECT_LT(chi_square, 25.7); // 99.99 % for 5 degrees of freedom
}

TEST(Mixer, GivesEachSourceItsShareEverywhere) {
  const std::vector<std::vector<double>> cases = {
      {1, 1}, {0.7, 0.2, 0.1}, {3, 1e-7}, {1, 2, 3, 4, 5, 6, 7}, {100, 1, 1, 1}};
  for (const auto& weights : cases) {
    const Mixer mixer(weights);
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<int64_t> given(weights.size(), 0);
    for (int64_t sample = 0; sample < 3 * Mixer::kPeriod; ++sample) {
      const Mixer::Place place = mixer.locate(sample);
      ASSERT_EQ(place.sample, given[place.source]++) << sample;
      for (size_t i = 0; i < weights.size(); ++i) {
        const double share = weights[i] / sum * static_cast<double>(sample + 1);
        // Up to two samples of unevenness and one per period from the rounding of weights.
        ASSERT_NEAR(static_cast<double>(given[i]), share, 2.0 + 3.0) << sample << " " << i;
      }
    }
  }
}

TEST(Mixer, RefusesWeightsThatMakeNoSense) {
  for (const double weight : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_ANY_THROW(Mixer({1.0, weight})) << weight;
  }
  EXPECT_ANY_THROW(Mixer({}));
}

// Every piece once, in at least so many sequences, none of them empty, of about the same number of pieces.
TEST(Spread, PiecesAreDividedOverMoreSequences) {
  const std::vector<int64_t> lengths = testing::mixed_lengths(100, 60);
  PackedSequences packed = pack_documents(lengths, 1024, 3);
  const PackedSequences before = packed;
  ASSERT_LT(before.count(), 40);
  spread(packed, 40);
  EXPECT_EQ(packed.count(), 40);
  EXPECT_EQ(packed.pieces.size(), before.pieces.size());
  EXPECT_EQ(packed.padding, before.padding + (40 - before.count()) * 1024);
  std::set<uint32_t> seen;
  for (int64_t i = 0; i < packed.count(); ++i) {
    EXPECT_THAT(packed.sequence(i), ::testing::SizeIs(::testing::AllOf(::testing::Ge(1U), ::testing::Le(6U))));
    for (const Piece& piece : packed.sequence(i)) {
      EXPECT_TRUE(seen.insert(piece.document).second);
    }
  }
  EXPECT_EQ(seen.size(), lengths.size());
  spread(packed, 1000); // there are not more sequences than pieces
  EXPECT_EQ(packed.count(), 100);
  PackedSequences same = before;
  spread(same, before.count() - 1);
  EXPECT_EQ(same.sequence_begin, before.sequence_begin);
}

} // namespace
} // namespace distill::data
