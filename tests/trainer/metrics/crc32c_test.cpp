#include "trainer/metrics/crc32c.h"

#include <gtest/gtest.h>

namespace distill::metrics {
namespace {

// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string ascending;
  for (char byte = 0; byte < 32; ++byte) {
    ascending.push_back(byte);
  }
  EXPECT_EQ(crc32c(ascending), 0x46dd794eU);
  EXPECT_EQ(crc32c(""), 0U);
}

} // namespace
} // namespace distill::metrics
