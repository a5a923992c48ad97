#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <string>
#include <string_view>

// Files that survive a crash: the changes for which these functions have returned ok are on the disk. Errors are
// Internal and name the file, the action and the system's reason.
namespace distill::base {

// A file that is being written. Its bytes are on the disk once sync() or close() has returned ok; its entry in its
// folder is once sync_folder() has, too.
class DurableFile {
 public:
  // Creates an empty file, or empties one that exists.
  static absl::StatusOr<DurableFile> create(const std::string& path);
  // Leaves a file that exists as it is, for write_at(); creates an empty one where there is none.
  static absl::StatusOr<DurableFile> overwrite(const std::string& path);
  // Writes after the end of the file; creates it where there is none.
  static absl::StatusOr<DurableFile> append_to(const std::string& path);

  DurableFile(DurableFile&& other) noexcept;
  DurableFile& operator=(DurableFile&& other) noexcept;
  ~DurableFile();

  const std::string& path() const {
    return path_;
  }
  absl::Status write(std::string_view bytes);
  // Cuts the file, or extends it with zeros for which no memory or block is taken.
  absl::Status resize(int64_t bytes);
  // Writes at this place, whatever write() has written. Several threads may call it.
  absl::Status write_at(int64_t offset, std::string_view bytes) const;
  // Lets the system begin to put what has been written on the disk, and does not wait for it: sync() then has less to
  // do. Where the file system cannot, nothing happens.
  void start_writeback() const;
  // May run on another thread than write(): then it covers the writes that have returned.
  absl::Status sync() const;
  // Syncs the file and closes it, also where an error occurs.
  absl::Status close();

 private:
  DurableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  static absl::StatusOr<DurableFile> open(const std::string& path, int flags);

  std::string path_;
  int fd_ = -1;
};

// Creates or replaces a file in place and syncs it. A crash may leave a part of it.
absl::Status write_file(const std::string& path, std::string_view content);

// Creates or replaces a file: writes "<path>.partial", syncs it, renames it and syncs the folder. After a crash or an
// error, the old file or the new one is there as a whole.
absl::Status replace_file(const std::string& path, std::string_view content);

// Syncs a file that something else has written.
absl::Status sync_file(const std::string& path);

// Syncs the entries of a folder: files that have been created, renamed or removed in it.
absl::Status sync_folder(const std::string& path);

// Ends of the names of folders that are made beside one that is written, and removed without a look at what is in them:
// no user names a folder of his own like that, such as a copy of a model.
inline constexpr const char* kUnfinishedFolder = ".distill-unfinished";
inline constexpr const char* kReplacedFolder = ".distill-replaced";

// Publishes a folder whose files are complete and synced: syncs it, renames it to its final name and syncs the parent
// folder. An older folder of that name is replaced, by way of the name with kReplacedFolder; where the rename fails, it
// stays.
// `target` is a path with a parent and without a slash at its end.
absl::Status publish_folder(const std::string& complete, const std::string& target);

} // namespace distill::base
