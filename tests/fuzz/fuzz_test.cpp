#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include "tests/fuzz/targets.h"

namespace distill::fuzz {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<uint8_t>;

constexpr int kRandomInputs = 3000; // for each file of the corpus

// Every file of a target's corpus; found-* were once read wrongly.
std::vector<std::pair<std::string, Bytes>> corpus(const Target& target) {
  std::vector<std::pair<std::string, Bytes>> files;
  for (const auto& entry : fs::directory_iterator(fs::path(DISTILL_FUZZ_CORPUS) / target.name)) {
    std::ifstream stream(entry.path(), std::ios::binary);
    files.emplace_back(
        entry.path().filename().string(),
        Bytes(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()));
  }
  std::sort(files.begin(), files.end());
  return files;
}

class FuzzTest : public testing::TestWithParam<Target> {
 protected:
  // Nothing but ok, or an error that names the file.
  absl::Status read(const Bytes& input) {
    // Of the exact size, so that the sanitizers see a read past the end.
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[input.size()]);
    std::copy(input.begin(), input.end(), exact.get());
    const absl::Status status = GetParam().read(exact.get(), input.size());
    const std::string message(status.message());
    EXPECT_TRUE(status.ok() || message.find(kSource) != std::string::npos) << message;
    return status;
  }
};

TEST_P(FuzzTest, TheCorpusIsRead) {
  ASSERT_FALSE(corpus(GetParam()).empty());
  for (const auto& [name, content] : corpus(GetParam())) {
    const absl::Status status = read(content);
    EXPECT_TRUE(status.ok() || name.starts_with("found-")) << name << ": " << status;
  }
}

TEST_P(FuzzTest, EveryTruncationIsReadOrRefused) {
  for (const auto& [name, content] : corpus(GetParam())) {
    for (size_t size = 0; size < content.size(); ++size) {
      read(Bytes(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size))).IgnoreError();
    }
  }
}

TEST_P(FuzzTest, RandomChangesAreReadOrRefused) {
  std::mt19937 random(20260101);
  const auto below = [&random](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (const auto& [name, content] : corpus(GetParam())) {
    for (int i = 0; i < kRandomInputs && !content.empty(); ++i) {
      Bytes changed = content;
      for (size_t changes = 1 + below(4); changes > 0; --changes) {
        const size_t at = below(changed.size());
        switch (below(5)) {
          case 0: // a bit
            changed[at] ^= static_cast<uint8_t>(1u << below(8));
            break;
          case 1: // a byte that means something in a text, or nothing at all
            changed[at] = static_cast<uint8_t>("0-9{}[],:\"\\\n \t#&*!\xff\x00"[below(21)]);
            break;
          case 2: // a huge or negative number
            for (size_t j = at; j < std::min(changed.size(), at + 8); ++j) {
              changed[j] = changed[at] >= '0' && changed[at] <= '9' ? '9' : 0xff;
            }
            break;
          case 3: // a stretch goes
            changed.erase(
                changed.begin() + static_cast<std::ptrdiff_t>(at),
                changed.begin() + static_cast<std::ptrdiff_t>(std::min(changed.size(), at + 1 + below(16))));
            break;
          default: { // a stretch stands twice
            const Bytes stretch(
                changed.begin() + static_cast<std::ptrdiff_t>(at),
                changed.begin() + static_cast<std::ptrdiff_t>(std::min(changed.size(), at + 1 + below(32))));
            changed.insert(changed.begin() + static_cast<std::ptrdiff_t>(at), stretch.begin(), stretch.end());
          }
        }
        if (changed.empty()) {
          break;
        }
      }
      read(changed).IgnoreError();
    }
  }
}

TEST(Corpus, HasAFolderForEachTargetAndNoOther) {
  std::set<std::string> folders, names;
  for (const auto& entry : fs::directory_iterator(DISTILL_FUZZ_CORPUS)) {
    folders.insert(entry.path().filename().string());
  }
  for (const Target& target : targets()) {
    names.insert(target.name);
  }
  EXPECT_EQ(folders, names);
}

INSTANTIATE_TEST_SUITE_P(, FuzzTest, testing::ValuesIn(targets()), [](const auto& target) {
  return std::string(target.param.name);
});

} // namespace
} // namespace distill::fuzz
