#include "trainer/teacher_cache/part_thread.h"

#include <absl/strings/str_format.h>
#include <pthread.h>

#include <filesystem>

#include "data/base/status_macros.h"
#include "trainer/device/libtorch_messages.h"
#include "trainer/teacher_cache/cache_folder.h"

namespace distill::teacher_cache {

PartThread::PartThread(std::string folder, Manifest manifest)
    : folder_(std::move(folder)),
      manifest_(std::move(manifest)),
      cache_id_(manifest_.id()),
      row_bytes_(manifest_.rows.row_bytes()),
      thread_([this] { work(); }) {
  ::pthread_setname_np(thread_.native_handle(), "cache parts");
}

PartThread::~PartThread() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    queue_.clear();
  }
  changed_.notify_all();
  thread_.join();
  drop();
}

// Waits for room in the queue. The device is idle meanwhile, if it has made the newest of the rows that it was asked
// for.
void PartThread::wait_for_room(std::unique_lock<std::mutex>& lock) {
  constexpr std::chrono::milliseconds kLook{1};
  const auto has_room = [this] { return queue_.size() < kQueued || !status_.ok(); };
  while (!has_room()) {
    const bool idle = newest_ == nullptr || newest_->query();
    const Clock::time_point start = Clock::now();
    changed_.wait_for(lock, kLook, has_room);
    times_.idle_seconds += idle ? std::chrono::duration<double>(Clock::now() - start).count() : 0;
  }
}

void PartThread::push(RowsToWrite rows) {
  std::unique_lock lock(mutex_);
  wait_for_room(lock);
  newest_ = rows.copied;
  if (status_.ok()) {
    queue_.push_back(std::move(rows));
  }
  lock.unlock();
  changed_.notify_all();
}

absl::Status PartThread::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

int64_t PartThread::parts() const {
  const std::lock_guard lock(mutex_);
  return parts_;
}

int64_t PartThread::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

PartThread::Times PartThread::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

absl::Status PartThread::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return (queue_.empty() && !busy_) || !status_.ok(); });
  return status_;
}

void PartThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (stop_) {
      return;
    }
    const RowsToWrite rows = std::move(queue_.front());
    queue_.pop_front();
    busy_ = true;
    lock.unlock();
    changed_.notify_all();
    absl::Status status;
    try {
      status = write(rows);
    } catch (const std::exception& error) {
      status = absl::InternalError(device::error_text(error));
    }
    if (!status.ok()) {
      drop();
    }
    lock.lock();
    busy_ = false;
    bytes_ += rows.rows_RW.numel();
    parts_ += status.ok() && rows.last ? 1 : 0;
    if (!status.ok()) {
      status_ = status;
      queue_.clear();
    }
    changed_.notify_all();
  }
}

absl::Status PartThread::check(const RowsToWrite& rows) const {
  const uint8_t* row = rows.rows_RW.const_data_ptr<uint8_t>();
  size_t number = 0;
  for (const StretchEntry& stretch : rows.stretches) {
    for (uint32_t i = 0; i < stretch.rows; ++i, ++number, row += row_bytes_) {
      if (const std::string problem = new_row_problem(manifest_.rows, row); !problem.empty()) {
        const int64_t token =
            number < rows.tokens.size() ? rows.tokens[number] : static_cast<int64_t>(stretch.begin) + i;
        return absl::DataLossError(absl::StrFormat(
            "%s: document %d, token %d: the teacher predicts what is no distribution: %s",
            manifest_.data.at(stretch.shard).path, stretch.document, token, problem));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status PartThread::write(const RowsToWrite& rows) {
  if (rows.part != writing_) {
    drop();
    ASSIGN_OR_RETURN(
        writer_,
        PartWriter::create(part_path(folder_, rows.part), cache_id_, rows.part, row_bytes_, manifest_.part_version()));
    writing_ = rows.part;
  }
  if (rows.copied != nullptr) {
    rows.copied->synchronize();
  }
  {
    const std::lock_guard lock(mutex_);
    times_.last = Clock::now();
    times_.first = times_.batches++ == 0 ? times_.last : times_.first;
  }
  RETURN_IF_ERROR(check(rows));
  const char* bytes = reinterpret_cast<const char*>(rows.rows_RW.const_data_ptr<uint8_t>());
  for (const StretchEntry& stretch : rows.stretches) {
    const size_t size = static_cast<size_t>(stretch.rows) * static_cast<size_t>(row_bytes_);
    RETURN_IF_ERROR(writer_->append(stretch, {bytes, size}));
    bytes += size;
  }
  if (!rows.last) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(writer_->finish());
  writer_.reset();
  writing_ = -1;
  return absl::OkStatus();
}

// Removes the part that is being written.
void PartThread::drop() {
  if (writer_) {
    writer_.reset();
    std::error_code ignored;
    std::filesystem::remove(part_path(folder_, writing_) + ".partial", ignored);
  }
  writing_ = -1;
}

} // namespace distill::teacher_cache
