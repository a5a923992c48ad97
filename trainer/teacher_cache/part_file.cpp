#include "trainer/teacher_cache/part_file.h"

#include <absl/strings/str_cat.h>

#include <cstring>
#include <filesystem>

#include "data/base/checksum.h"
#include "data/base/status_macros.h"

namespace distill::teacher_cache {
namespace {

constexpr uint64_t kMaxRowBytes = uint64_t{1} << 32;
constexpr int64_t kWritebackBytes = int64_t{32} << 20; // at a time, so that the end of a part waits for little

absl::Status damaged(const std::string& source, const std::string& what) {
  return absl::DataLossError(absl::StrCat(source, ": ", what));
}

uint64_t foot_checksum(const PartHead& head, const PartFoot& foot) {
  base::Checksum sum;
  sum.update(&head, sizeof(head));
  sum.update(&foot, offsetof(PartFoot, checksum));
  return sum.value();
}

absl::StatusOr<PartHead> parse_head(std::string_view file, const std::string& source) {
  PartHead head;
  if (file.size() < sizeof(PartHead) + sizeof(PartFoot)) {
    return damaged(
        source,
        absl::StrCat(
            "truncated: expected at least ", sizeof(PartHead) + sizeof(PartFoot), " bytes, found ", file.size()));
  }
  std::memcpy(&head, file.data(), sizeof(head));
  if (std::memcmp(head.magic, kPartMagic, sizeof(head.magic)) != 0) {
    return damaged(source, absl::StrCat("is no part of a teacher's cache: it does not begin with ", kPartMagic));
  }
  if (head.version != kPartVersion && head.version != kContextVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        source, ": head field `version`: expected ", kPartVersion, " or ", kContextVersion, ", found ", head.version,
        "; this program reads no other version: capture again"));
  }
  if (head.head_bytes != sizeof(PartHead) || head.row_bytes == 0 || head.row_bytes > kMaxRowBytes) {
    return damaged(
        source,
        absl::StrCat(
            "head: expected ", sizeof(PartHead), " head_bytes and row_bytes of 1 to ", kMaxRowBytes, ", found ",
            head.head_bytes, " and ", head.row_bytes));
  }
  return head;
}

absl::StatusOr<PartFoot> parse_foot(std::string_view file, const PartHead& head, const std::string& source) {
  PartFoot foot;
  std::memcpy(&foot, file.data() + file.size() - sizeof(foot), sizeof(foot));
  if (std::memcmp(foot.magic, kFootMagic, sizeof(foot.magic)) != 0) {
    return damaged(
        source, absl::StrCat("truncated or damaged: expected ", kFootMagic, " near its end, found other bytes"));
  }
  if (const uint64_t sum = foot_checksum(head, foot); sum != foot.checksum) {
    return damaged(
        source,
        absl::StrCat(
            "head or foot is damaged: expected checksum ", base::checksum_text(foot.checksum), ", found ",
            base::checksum_text(sum)));
  }
  const uint64_t around = sizeof(PartHead) + sizeof(PartFoot);
  const uint64_t between = file.size() - around;
  const uint64_t entry = stretch_bytes(head.version);
  const bool fits = foot.file_bytes == file.size() && foot.stretches <= between / entry &&
      foot.rows <= between / head.row_bytes && foot.rows * head.row_bytes + foot.stretches * entry == between;
  if (!fits) {
    return damaged(
        source,
        absl::StrCat(
            "foot: expected ", foot.rows, " rows of ", head.row_bytes, " bytes and ", foot.stretches, " stretches in ",
            foot.file_bytes, " bytes, found a file of ", file.size()));
  }
  return foot;
}

} // namespace

absl::StatusOr<PartIndex> parse_part(std::string_view file, const std::string& source) {
  PartIndex index;
  ASSIGN_OR_RETURN(index.head, parse_head(file, source));
  ASSIGN_OR_RETURN(const PartFoot foot, parse_foot(file, index.head, source));
  const size_t entry_bytes = stretch_bytes(index.head.version);
  const std::string_view table =
      file.substr(sizeof(PartHead) + foot.rows * index.head.row_bytes, foot.stretches * entry_bytes);
  if (const uint64_t sum = base::checksum(table.data(), table.size()); sum != foot.table_checksum) {
    return damaged(
        source,
        absl::StrCat(
            "its table is damaged: expected checksum ", base::checksum_text(foot.table_checksum), ", found ",
            base::checksum_text(sum)));
  }
  index.stretches.resize(foot.stretches);
  for (size_t i = 0; i < index.stretches.size(); ++i) {
    std::memcpy(&index.stretches[i], table.data() + i * entry_bytes, entry_bytes);
  }
  uint64_t rows = 0;
  for (size_t i = 0; i < index.stretches.size(); ++i) {
    const StretchEntry& entry = index.stretches[i];
    if (entry.tokens == 0 || entry.rows > entry.tokens || entry.rows > foot.rows - rows) {
      return damaged(
          source,
          absl::StrCat(
              "stretch ", i, ": expected at least one token, at most as many rows as tokens and ", foot.rows - rows,
              " rows that are left, found ", entry.tokens, " tokens and ", entry.rows, " rows"));
    }
    index.offsets.push_back(sizeof(PartHead) + rows * index.head.row_bytes);
    rows += entry.rows;
  }
  if (rows != foot.rows) {
    return damaged(source, absl::StrCat("foot: expected the ", rows, " rows of its stretches, found ", foot.rows));
  }
  return index;
}

absl::StatusOr<PartWriter> PartWriter::create(
    const std::string& path, const base::Digest& cache_id, int64_t part, int64_t row_bytes, uint32_t version) {
  PartHead head{};
  std::memcpy(head.magic, kPartMagic, sizeof(head.magic));
  head.version = version;
  head.head_bytes = sizeof(PartHead);
  head.row_bytes = static_cast<uint64_t>(row_bytes);
  head.part = static_cast<uint64_t>(part);
  std::memcpy(head.cache_id, cache_id.data(), cache_id.size());
  ASSIGN_OR_RETURN(base::DurableFile file, base::DurableFile::create(path + ".partial"));
  PartWriter writer(path, std::move(file), head);
  RETURN_IF_ERROR(writer.file_.write({reinterpret_cast<const char*>(&head), sizeof(head)}));
  return writer;
}

absl::Status PartWriter::append(StretchEntry stretch, std::string_view rows) {
  stretch.rows = static_cast<uint32_t>(rows.size() / head_.row_bytes);
  stretch.checksum = base::checksum(rows.data(), rows.size());
  RETURN_IF_ERROR(file_.write(rows));
  table_.push_back(stretch);
  rows_ += stretch.rows;
  if (bytes() - writeback_ >= kWritebackBytes) {
    file_.start_writeback();
    writeback_ = bytes();
  }
  return absl::OkStatus();
}

absl::Status PartWriter::finish() {
  std::string table;
  for (const StretchEntry& entry : table_) {
    table.append(reinterpret_cast<const char*>(&entry), stretch_bytes(head_.version));
  }
  PartFoot foot{};
  foot.rows = rows_;
  foot.stretches = table_.size();
  foot.file_bytes = static_cast<uint64_t>(bytes()) + table.size() + sizeof(foot);
  foot.table_checksum = base::checksum(table.data(), table.size());
  std::memcpy(foot.magic, kFootMagic, sizeof(foot.magic));
  foot.checksum = foot_checksum(head_, foot);
  RETURN_IF_ERROR(file_.write(table));
  RETURN_IF_ERROR(file_.write({reinterpret_cast<const char*>(&foot), sizeof(foot)}));
  RETURN_IF_ERROR(file_.close());
  std::error_code error;
  std::filesystem::rename(path_ + ".partial", path_, error);
  if (error) {
    return absl::InternalError(absl::StrCat(path_, ": cannot rename from .partial: ", error.message()));
  }
  return base::sync_folder(std::filesystem::path(path_).parent_path().string());
}

} // namespace distill::teacher_cache
