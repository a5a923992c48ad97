#include "trainer/hf/staged_writer.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/base/checksum.h"
#include "data/base/durable_file.h"
#include "data/base/status_macros.h"

namespace distill::hf {
namespace {

constexpr int64_t kBufferBytes = int64_t{16} << 20;
constexpr size_t kMostThreads = 8;
constexpr size_t kFurtherBuffers = 4; // that are filled, copied or summed while each thread writes one

// A part of a file in host memory.
struct Buffer {
  at::Tensor bytes; // uint8 [kBufferBytes]
  std::optional<c10::Event> copied; // of pinned buffers: a device has copied all values
  int64_t size = 0;
  int64_t offset = 0; // in the file
  int users = 0; // threads that still read it; 0: it is free
};

} // namespace

struct StagedWriter::State {
  std::optional<at::Device> device; // a GPU whose values the buffers can take
  std::vector<Buffer> buffers;
  Buffer* filling = nullptr; // by the caller
  std::optional<base::DurableFile> file;
  int64_t file_bytes = 0, appended = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Buffer*> to_write, to_sum; // in the file's order
  bool ends = false;
  absl::Status status; // the first error of a thread
  base::Checksum checksum;
  std::vector<std::thread> threads;

  // The next buffer of a queue, whose values are in host memory; null: the threads end.
  Buffer* next(std::deque<Buffer*>& queue) {
    Buffer* buffer = nullptr;
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return ends || !queue.empty(); });
      if (queue.empty()) {
        return nullptr;
      }
      buffer = queue.front();
      queue.pop_front();
    }
    if (buffer->copied) {
      buffer->copied->synchronize();
    }
    return buffer;
  }
  void done(Buffer* buffer, const absl::Status& result) {
    const std::lock_guard lock(mutex);
    status.Update(result);
    --buffer->users;
    changed.notify_all();
  }
  static std::string_view content(const Buffer& buffer) {
    return {static_cast<const char*>(buffer.bytes.const_data_ptr()), static_cast<size_t>(buffer.size)};
  }
  void write_buffers() {
    while (Buffer* buffer = next(to_write)) {
      done(buffer, file->write_at(buffer->offset, content(*buffer)));
    }
  }
  void sum_buffers() {
    while (Buffer* buffer = next(to_sum)) {
      const std::string_view bytes = content(*buffer);
      checksum.update(bytes.data(), bytes.size());
      done(buffer, absl::OkStatus());
    }
  }

  // A buffer with room for at least one element of `element_bytes`, at a place that is a multiple of them.
  absl::Status make_room(int64_t element_bytes) {
    if (filling != nullptr && (filling->size % element_bytes != 0 || filling->size + element_bytes > kBufferBytes)) {
      hand_over();
    }
    if (filling != nullptr) {
      return absl::OkStatus();
    }
    std::unique_lock lock(mutex);
    const auto is_free = [](const Buffer& buffer) { return buffer.users == 0; };
    auto found = buffers.end();
    changed.wait(lock, [&] {
      found = std::find_if(buffers.begin(), buffers.end(), is_free);
      return found != buffers.end() || !status.ok();
    });
    RETURN_IF_ERROR(status);
    filling = &*found;
    filling->size = 0;
    filling->offset = appended;
    return absl::OkStatus();
  }
  void hand_over() {
    Buffer* buffer = std::exchange(filling, nullptr);
    if (buffer->copied) {
      buffer->copied->record(c10::impl::VirtualGuardImpl(device->type()).getStream(*device));
    }
    const std::lock_guard lock(mutex);
    buffer->users = 2;
    to_write.push_back(buffer);
    to_sum.push_back(buffer);
    changed.notify_all();
  }
  void count(int64_t bytes) {
    filling->size += bytes;
    appended += bytes;
  }
  bool all_free() const {
    return std::all_of(buffers.begin(), buffers.end(), [](const Buffer& buffer) { return buffer.users == 0; });
  }
  // Waits until the threads are done with all that has been appended.
  absl::Status drain() {
    if (filling != nullptr) {
      hand_over();
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return all_free(); });
    return status;
  }
  // Makes the buffers such that this GPU can fill them.
  absl::Status pin(at::Device gpu) {
    if (device == gpu) {
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(drain());
    for (Buffer& buffer : buffers) {
      buffer.bytes = at::empty({kBufferBytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
      buffer.copied.emplace(gpu.type());
    }
    device = gpu;
    return absl::OkStatus();
  }
};

StagedWriter::StagedWriter(int threads) : state_(std::make_unique<State>()) {
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const size_t writers = threads > 0 ? static_cast<size_t>(threads) : std::min(cores, kMostThreads);
  state_->buffers.resize(writers + kFurtherBuffers);
  for (Buffer& buffer : state_->buffers) {
    buffer.bytes = at::empty({kBufferBytes}, at::kByte);
  }
  for (size_t i = 0; i < writers; ++i) {
    state_->threads.emplace_back([state = state_.get()] { state->write_buffers(); });
  }
  state_->threads.emplace_back([state = state_.get()] { state->sum_buffers(); });
}

StagedWriter::~StagedWriter() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->to_write.clear();
    state_->to_sum.clear();
    state_->ends = true;
    state_->changed.notify_all();
  }
  for (std::thread& thread : state_->threads) {
    thread.join();
  }
  for (Buffer& buffer : state_->buffers) { // a copy into pinned memory must not outlive it
    if (buffer.copied) {
      buffer.copied->synchronize();
    }
  }
}

absl::Status StagedWriter::begin(const std::string& path, int64_t bytes, bool keep_pages) {
  TORCH_CHECK(!state_->file, path, ": another file is being written");
  auto file = keep_pages ? base::DurableFile::overwrite(path) : base::DurableFile::create(path);
  RETURN_IF_ERROR(file.status());
  RETURN_IF_ERROR(file->resize(bytes));
  state_->file.emplace(*std::move(file));
  state_->file_bytes = bytes;
  state_->appended = 0;
  state_->checksum.reset();
  return absl::OkStatus();
}

absl::Status StagedWriter::append(const at::Tensor& values, at::ScalarType dtype) {
  TORCH_CHECK(values.is_contiguous(), "a contiguous tensor is expected");
  if (values.is_cuda()) {
    RETURN_IF_ERROR(state_->pin(values.device()));
  }
  const at::Tensor flat = values.view({-1});
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  for (int64_t done = 0; done < flat.numel();) {
    RETURN_IF_ERROR(state_->make_room(element));
    Buffer& buffer = *state_->filling;
    const int64_t count = std::min(flat.numel() - done, (kBufferBytes - buffer.size) / element);
    at::Tensor place = buffer.bytes.narrow(0, buffer.size, count * element).view(dtype);
    // Rounded on the device, so that half of the bytes cross the bus.
    place.copy_(flat.narrow(0, done, count).to(dtype), /*non_blocking=*/true);
    state_->count(count * element);
    done += count;
  }
  return absl::OkStatus();
}

absl::Status StagedWriter::append_bytes(std::string_view bytes) {
  while (!bytes.empty()) {
    RETURN_IF_ERROR(state_->make_room(1));
    Buffer& buffer = *state_->filling;
    const auto count = std::min<size_t>(bytes.size(), static_cast<size_t>(kBufferBytes - buffer.size));
    std::copy_n(bytes.data(), count, static_cast<char*>(buffer.bytes.mutable_data_ptr()) + buffer.size);
    state_->count(static_cast<int64_t>(count));
    bytes.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> StagedWriter::finish() {
  TORCH_CHECK(state_->file, "no file is being written");
  RETURN_IF_ERROR(state_->drain());
  base::DurableFile file = *std::move(state_->file);
  state_->file.reset();
  TORCH_CHECK(
      state_->appended == state_->file_bytes, file.path(), ": ", state_->appended, " bytes written of ",
      state_->file_bytes, " announced");
  RETURN_IF_ERROR(file.close());
  return state_->checksum.value();
}

} // namespace distill::hf
