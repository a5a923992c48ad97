#include "data/base/sha256.h"

#include <gtest/gtest.h>

namespace distill::base {
namespace {

// FIPS 180-4 examples and NIST's million-a vector.
TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(hex(sha256("", 0)), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc", 3)), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string two_blocks = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
  EXPECT_EQ(
      hex(sha256(two_blocks.data(), two_blocks.size())),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1000000, 'a');
  EXPECT_EQ(
      hex(sha256(million.data(), million.size())), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesOfAnySizeGiveTheSameDigest) {
  std::string message;
  for (int i = 0; i < 300; ++i) {
    message.push_back(static_cast<char>(i * 7));
  }
  const Digest whole = sha256(message.data(), message.size());
  for (size_t piece = 1; piece <= 130; ++piece) {
    Sha256 hash;
    for (size_t at = 0; at < message.size(); at += piece) {
      hash.update(message.data() + at, std::min(piece, message.size() - at));
    }
    EXPECT_EQ(hash.finish(), whole) << piece;
  }
}

} // namespace
} // namespace distill::base
