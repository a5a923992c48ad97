#include "trainer/checkpoint/checkpoint_writer.h"

#include "data/base/status_macros.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/verified_file.h"
#include "trainer/device/libtorch_messages.h"
#include "trainer/hf/safetensors.h"

namespace distill::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

absl::StatusOr<std::vector<hf::SafetensorsWriter::Entry>> file_entries(const std::vector<NamedTensor>& tensors) {
  std::vector<hf::SafetensorsWriter::Entry> entries;
  for (const NamedTensor& named : tensors) {
    ASSIGN_OR_RETURN(std::string dtype, hf::safetensors_dtype(named.tensor.scalar_type()));
    entries.emplace_back(named.name, hf::TensorInfo{std::move(dtype), named.tensor.sizes().vec(), 0, 0});
  }
  return entries;
}

// Converts exceptions, which must not leave a thread, to a status.
absl::Status guarded(const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    return absl::InternalError(device::error_text(error));
  }
}

} // namespace

std::string Saved::text() const {
  return absl::StrFormat(
      "saved %s: %.3g GB written in %.2f s, training stood still for %.3f s%s", folder,
      1e-9 * static_cast<double>(bytes), write_seconds, stall_seconds,
      wait_seconds < 0.01 ? "" : absl::StrFormat(" and then waited %.2f s for the end of the writing", wait_seconds));
}

CheckpointWriter::CheckpointWriter(
    CheckpointWriterOptions options, RunInfo info, sharding::ModelShards& model, optim::AdamW& optimizer,
    const sharding::Mesh& mesh)
    : options_(std::move(options)), info_(std::move(info)), model_(model), optimizer_(optimizer), mesh_(mesh) {
  if (options_.copy_memory.defined()) {
    snapshot_ = std::make_unique<Snapshot>(options_.copy_memory, model.options().device);
  }
}

CheckpointWriter::~CheckpointWriter() {
  if (saving_ && saving_->work.valid()) {
    saving_->work.wait();
  }
}

absl::Status CheckpointWriter::begin(const TrainState& state) {
  TORCH_CHECK(!saving_, "a checkpoint is being saved already");
  const Clock::time_point began = Clock::now();
  const absl::Status made =
      sharding::agree(mesh_, mesh_.is_main() ? make_partial(options_.run_dir, state.step) : absl::OkStatus());
  if (!made.ok()) {
    return made;
  }
  saving_.emplace();
  saving_->state = state;
  saving_->began = began;
  if (mesh_.replicate_rank == 0) { // all replicas have the same shards
    std::vector<NamedTensor> tensors = state_tensors(model_, optimizer_);
    saving_->tensor_bytes = state_bytes(tensors);
    if (snapshot_) {
      snapshot_->take(tensors);
    }
    start([this, tensors = std::move(tensors)] {
      if (snapshot_) {
        snapshot_->copy();
      }
      return write_shards(tensors);
    });
  }
  saving_->stall_seconds = seconds_since(began);
  return absl::OkStatus();
}

void CheckpointWriter::start(std::function<absl::Status()> work) {
  if (snapshot_) {
    saving_->work = std::async(std::launch::async, [work = std::move(work)] { return guarded(work); });
  } else {
    saving_->result = guarded(work);
  }
}

// Writes the snapshot, if there is one; otherwise the tensors themselves.
absl::Status CheckpointWriter::write_shards(const std::vector<NamedTensor>& tensors) {
  const fs::path folder = partial_folder(options_.run_dir, saving_->state.step);
  ASSIGN_OR_RETURN(const auto entries, file_entries(tensors));
  BlockSums sums;
  const auto sink = [&](const char* data, size_t size) {
    sums.update(data, size);
    saving_->file_bytes += static_cast<int64_t>(size);
    saving_->written = saving_->file_bytes;
    if (!snapshot_) { // on the thread that waits
      report_waiting();
    }
  };
  ASSIGN_OR_RETURN(
      auto writer, hf::SafetensorsWriter::create((folder / rank_file(mesh_.shard_rank)).string(), entries, {}, sink));
  absl::Status status;
  if (snapshot_) {
    status = snapshot_->read([&](const at::Tensor& bytes) { return writer->append(bytes); });
  } else {
    for (const NamedTensor& named : tensors) {
      status = status.ok() ? writer->append(named.tensor.cpu().contiguous()) : status;
    }
  }
  if (status.ok()) {
    status = writer->finish();
  }
  saving_->block_sums = sums.finish();
  return status;
}

void CheckpointWriter::report_waiting() const {
  if (options_.waiting) {
    options_.waiting(saving_->written, saving_->tensor_bytes);
  }
}

void CheckpointWriter::before_update() {
  if (snapshot_) {
    snapshot_->before_update();
  }
}

// Takes the thread's result, if it has ended.
void CheckpointWriter::collect_result() {
  if (saving_->work.valid() && saving_->work.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    saving_->result = saving_->work.get();
  }
}

sharding::WritingRanks CheckpointWriter::own_writing() {
  if (!saving_) {
    return {};
  }
  collect_result();
  return {saving_->work.valid() ? 1 : 0, saving_->result.ok() ? 0 : 1};
}

// All-gathers the checksums of the ranks' files.
std::vector<std::vector<uint64_t>> CheckpointWriter::exchange_sums() {
  if (mesh_.host == nullptr) {
    return {saving_->block_sums};
  }
  const int64_t own_bytes = saving_->file_bytes;
  mesh_.host->broadcast(at::from_blob(&saving_->file_bytes, {1}, at::kLong), /*root=*/0);
  TORCH_CHECK(
      mesh_.replicate_rank != 0 || own_bytes == saving_->file_bytes, "the ranks' shards differ in size: ", own_bytes,
      " bytes on rank ", mesh_.rank, ", ", saving_->file_bytes, " on rank 0");
  const int64_t blocks = (saving_->file_bytes + kBlockBytes - 1) / kBlockBytes;
  saving_->block_sums.resize(static_cast<size_t>(blocks));
  const at::Tensor own = at::from_blob(saving_->block_sums.data(), {blocks}, at::kLong);
  at::Tensor all = at::empty({mesh_.world_size * blocks}, at::kLong);
  mesh_.host->all_gather(all, own);
  std::vector<std::vector<uint64_t>> sums;
  for (int64_t rank = 0; rank < mesh_.shard_size; ++rank) {
    const auto* first = reinterpret_cast<const uint64_t*>(all.const_data_ptr<int64_t>()) + rank * blocks;
    sums.emplace_back(first, first + blocks);
  }
  return sums;
}

absl::Status CheckpointWriter::publish_on_main(const std::vector<std::vector<uint64_t>>& sums) {
  Index index;
  index.state = saving_->state;
  index.info = info_;
  index.shard = mesh_.shard_size;
  index.replicate = mesh_.replicate_size;
  std::vector<models::UnitLayout> layouts;
  for (int64_t unit = 0; unit < model_.num_units(); ++unit) {
    layouts.push_back(model_.unit(unit).layout);
  }
  index.units = describe_units(layouts);
  for (int64_t rank = 0; rank < mesh_.shard_size; ++rank) {
    ShardFile file;
    file.name = rank_file(rank);
    file.bytes = saving_->file_bytes;
    file.block_sums = sums[static_cast<size_t>(rank)];
    for (const models::UnitLayout& layout : layouts) {
      const sharding::ShardRange range = sharding::shard_range(layout.numel, rank, mesh_.shard_size);
      file.ranges.push_back({range.begin, range.numel});
    }
    index.files.push_back(std::move(file));
  }
  if (options_.before_publish) {
    RETURN_IF_ERROR(options_.before_publish());
  }
  RETURN_IF_ERROR(publish(options_.run_dir, index));
  remove_old(options_.run_dir, index.state.step, options_.keep);
  return absl::OkStatus();
}

std::optional<absl::StatusOr<Saved>> CheckpointWriter::advance(const sharding::WritingRanks& ranks) {
  if (!saving_ || ranks.writing > 0) {
    return std::nullopt;
  }
  if (ranks.failed > 0) {
    return end(
        saving_->result.ok()
            ? absl::AbortedError(absl::StrFormat("%d other rank(s) failed; their messages say why", ranks.failed))
            : saving_->result);
  }
  if (saving_->publishing) {
    return end(absl::OkStatus());
  }
  saving_->publishing = true;
  auto all_sums = exchange_sums();
  if (mesh_.is_main()) {
    start([this, all_sums = std::move(all_sums)] { return publish_on_main(all_sums); });
  }
  return std::nullopt;
}

absl::StatusOr<Saved> CheckpointWriter::end(absl::Status status) {
  Saved saved;
  saved.step = saving_->state.step;
  saved.folder = checkpoint_folder(options_.run_dir, saved.step).string();
  saved.bytes = saving_->file_bytes * mesh_.shard_size;
  saved.stall_seconds = saving_->stall_seconds + (snapshot_ ? snapshot_->stall_seconds() : 0);
  saved.wait_seconds = saving_->wait_seconds;
  saved.write_seconds = seconds_since(saving_->began);
  saving_.reset();
  if (status.ok()) {
    return saved;
  }
  if (mesh_.is_main()) {
    std::error_code ignored;
    fs::remove_all(partial_folder(options_.run_dir, saved.step), ignored);
  }
  return absl::Status(
      status.code(), absl::StrCat("checkpoint of step ", saved.step, ": ", std::string(status.message())));
}

std::optional<absl::StatusOr<Saved>> CheckpointWriter::finish() {
  const Clock::time_point began = Clock::now();
  while (saving_) {
    constexpr std::chrono::milliseconds kReport{100};
    while (saving_->work.valid() && saving_->work.wait_for(kReport) != std::future_status::ready) {
      report_waiting();
    }
    const int64_t failed = sharding::sum_over_ranks(mesh_, own_writing().failed);
    saving_->wait_seconds = seconds_since(began);
    if (auto result = advance({.writing = 0, .failed = failed})) {
      return result;
    }
  }
  return std::nullopt;
}

} // namespace distill::checkpoint
