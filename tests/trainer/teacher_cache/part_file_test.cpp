#include "trainer/teacher_cache/part_file.h"

#include <gmock/gmock.h>

#include "tests/trainer/teacher_cache/cache_fixture.h"
#include "trainer/teacher_cache/contexts.h"

namespace distill::teacher_cache {
namespace {

using testing::HasSubstr;

class PartFileTest : public CacheTest {
 protected:
  std::string part() {
    open_data({5, 12, 9});
    write_cache(8);
    return read_file(part_path(folder_.string(), 0));
  }
};

TEST_F(PartFileTest, APartReadsBackWhatWasWritten) {
  const std::string file = part();
  const auto index = parse_part(file, "part").value();
  EXPECT_EQ(index.head.part, 0);
  EXPECT_EQ(index.head.row_bytes, 8);
  ASSERT_EQ(index.stretches.size(), 3);
  EXPECT_EQ(index.stretches[1].document, 1);
  EXPECT_EQ(index.stretches[1].rows, 8);
  EXPECT_EQ(index.stretches[2].begin, 8);
  EXPECT_EQ(index.stretches[2].rows, 3); // the document's last token has no target
  EXPECT_EQ(index.offsets, (std::vector<uint64_t>{64, 64 + 4 * 8, 64 + 12 * 8}));
  const auto rows = rows_of(index.stretches[1]);
  EXPECT_EQ(file.substr(index.offsets[1], 64), std::string(reinterpret_cast<const char*>(rows.data()), 64));
}

TEST_F(PartFileTest, ATruncatedPartIsRefused) {
  const std::string file = part();
  for (size_t size = 0; size < file.size(); ++size) {
    const absl::Status status = parse_part(file.substr(0, size), "part").status();
    ASSERT_TRUE(absl::IsDataLoss(status)) << size << ": " << status;
    ASSERT_THAT(std::string(status.message()), HasSubstr("part: ")) << size;
  }
}

TEST_F(PartFileTest, AFlippedBitOutsideOfTheRowsIsRefused) {
  const std::string file = part();
  const size_t rows_end = 64 + 15 * 8;
  for (size_t at = 0; at < file.size(); ++at) {
    std::string changed = file;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    const bool in_rows = at >= 64 && at < rows_end;
    EXPECT_EQ(parse_part(changed, "part").ok(), in_rows) << at;
  }
}

TEST_F(PartFileTest, AnotherVersionIsNamedWithBoth) {
  std::string file = part();
  file[8] = 7;
  const absl::Status status = parse_part(file, "part").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 1 or 2, found 7"));
}

TEST_F(PartFileTest, ContextsReadBackFromTheSecondVersion) {
  open_data({5, 12, 9});
  for (const uint32_t version : {kPartVersion, kContextVersion}) {
    auto writer = PartWriter::create(path("part"), manifest_.id(), 0, 8, version).value();
    for (const uint64_t context : {kSequenceStart, uint64_t{0xfedcba9876543210}}) {
      StretchEntry entry{};
      entry.document = 1;
      entry.tokens = 2;
      entry.context = context;
      ASSERT_TRUE(writer.append(entry, std::string(16, 'x')).ok());
    }
    ASSERT_TRUE(writer.finish().ok());
    const auto index = parse_part(read_file(path("part")), "part").value();
    ASSERT_EQ(index.stretches.size(), 2);
    const bool has_contexts = version == kContextVersion;
    EXPECT_EQ(index.stretches[0].context, has_contexts ? kSequenceStart : 0);
    EXPECT_EQ(index.stretches[1].context, has_contexts ? 0xfedcba9876543210 : 0);
    EXPECT_EQ(index.stretches[1].document, 1);
    EXPECT_EQ(index.stretches[1].rows, 2);
    EXPECT_EQ(std::filesystem::file_size(path("part")), 64 + 4 * 8 + 2 * (has_contexts ? 40 : 32) + 64);
  }
}

TEST_F(PartFileTest, AFileWithoutItsNameIsNotComplete) {
  open_data({5});
  auto writer = PartWriter::create(part_path(folder_.string(), 3), manifest_.id(), 3, 8).value();
  EXPECT_TRUE(complete_parts(folder_.string())->empty());
  ASSERT_TRUE(writer.finish().ok());
  EXPECT_EQ(*complete_parts(folder_.string()), std::vector<int64_t>{3});
  EXPECT_FALSE(std::filesystem::exists(part_path(folder_.string(), 3) + ".partial"));
}

TEST_F(PartFileTest, OnlyNamesOfPartsCount) {
  for (const char* name : {"part-1.dtc", "part-000000001.dtc", "part-0000000x.dtc", "part-00000002.dtc.partial"}) {
    write(name, std::string("x"));
  }
  write("part-00000012.dtc", std::string("x"));
  EXPECT_EQ(*complete_parts(folder_.string()), std::vector<int64_t>{12});
}

} // namespace
} // namespace distill::teacher_cache
