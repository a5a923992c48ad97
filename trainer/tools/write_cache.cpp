#include "trainer/tools/write_cache.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "data/base/status_macros.h"
#include "data/prefetch.h"
#include "trainer/config/teachers.h"
#include "trainer/device/memory_tracker.h"
#include "trainer/float8_gate/gate.h"
#include "trainer/loader/batch_loader.h"
#include "trainer/metrics/log.h"
#include "trainer/metrics/task_progress.h"
#include "trainer/run_folder/folder_lock.h"
#include "trainer/setup/disk_space.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/memory_setup.h"
#include "trainer/setup/resolve_environment.h"
#include "trainer/setup/run_context.h"
#include "trainer/step/loaded_models.h"
#include "trainer/teacher/capture_step.h"
#include "trainer/teacher_cache/cache_folder.h"
#include "trainer/teacher_cache/part_thread.h"
#include "trainer/teacher_cache/rows_to_write.h"
#include "trainer/tools/capture_plan.h"
#include "trainer/tools/captured_mass.h"

namespace distill::trainer {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using sharding::agree;

constexpr int64_t kPrefetched = 4; // micro-batches

int64_t samples_of(const std::vector<CapturePart>& parts) {
  int64_t samples = 0;
  for (const CapturePart& part : parts) {
    for (const data::SampleRange& range : part.micro_batches) {
      samples += range.count;
    }
  }
  return samples;
}

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

class Capture {
 public:
  Capture(const RunContext& context, const launch::StopSignal& stop)
      : context_(context), config_(context.config()), mesh_(context.mesh()), stop_(stop) {}

  absl::StatusOr<CaptureResult> run();

 private:
  // A micro-batch of a part.
  struct Round {
    int64_t part = -1; // number of the part's file; -1: this is padding, since other ranks have more
    data::SampleRange samples;
    bool last = false; // of the part's micro-batches
  };

  absl::Status prepare();
  absl::Status look_at_earlier();
  absl::Status check_precision() const;
  absl::Status write_head();
  absl::StatusOr<std::vector<CapturePart>> missing_parts() const;
  std::vector<Round> own_rounds(const std::vector<CapturePart>& parts, int64_t data) const;
  absl::Status capture_data(const std::vector<CapturePart>& parts, int64_t data);
  teacher_cache::RowsToWrite compute(const data::Batch& batch, const Round& round);
  std::vector<std::string> speed_lines(int64_t samples) const;

  const RunContext& context_;
  const config::Config& config_;
  const sharding::Mesh& mesh_;
  const launch::StopSignal& stop_;
  std::unique_ptr<FolderLock> lock_; // on rank 0
  CaptureInputs inputs_;
  CapturePlan plan_;
  TeacherAlone teacher_;
  std::unique_ptr<CaptureStep> step_;
  std::unordered_map<const data::Shard*, uint32_t> shard_number_;
  std::unique_ptr<teacher_cache::PartThread> writer_;
  std::unique_ptr<metrics::TaskProgress> progress_; // on rank 0
  Clock::time_point start_; // when the first micro-batch was asked for
  double data_seconds_ = 0; // time that this thread waited for micro-batches
  bool stopped_ = false;
};

absl::Status Capture::prepare() {
  const std::string& folder = config_.teacher.cache;
  if (mesh_.is_main()) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) {
      return absl::InternalError(absl::StrCat(folder, ": cannot create: ", error.message()));
    }
    ASSIGN_OR_RETURN(lock_, FolderLock::take(folder));
  }
  ASSIGN_OR_RETURN(inputs_, open_capture_inputs(config_, context_.environment()));
  ASSIGN_OR_RETURN(
      plan_,
      plan_capture(config_, context_.environment(), inputs_, mesh_.world_size, context_.ranks().local_world_size));
  for (const auto& data : inputs_.data) {
    for (const data::Shard* shard : data->shards()) {
      const auto& files = plan_.manifest.data;
      const auto same = std::find_if(files.begin(), files.end(), [&](const teacher_cache::DataFile& file) {
        return std::equal(file.header_hash.begin(), file.header_hash.end(), shard->header().header_hash);
      });
      shard_number_[shard] = static_cast<uint32_t>(same - files.begin());
    }
  }
  return mesh_.is_main() ? check_space(plan_, folder, bytes_below(folder)) : absl::OkStatus();
}

// Checks on rank 0, before the teacher is read, that the files in the folder are of this capture: they stay as they
// are.
absl::Status Capture::look_at_earlier() {
  if (!mesh_.is_main()) {
    return absl::OkStatus();
  }
  const std::string& folder = config_.teacher.cache;
  ASSIGN_OR_RETURN(const auto found, earlier_capture(folder, plan_.manifest));
  plan_.manifest.head = found ? found->head : std::nullopt;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; found && !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".partial" && it->is_regular_file(error)) { // a process that was killed has left it
      fs::remove(it->path(), error);
    }
  }
  return absl::OkStatus();
}

// Refuses a float8 teacher that is too far from the exact one, as a training run does. All ranks call it.
absl::Status Capture::check_precision() const {
  const auto error = float8_gate::check_teacher(
      config_, context_.environment(), mesh_, inputs_.teacher.model(),
      *inputs_.data.back()); // data.eval, if there is some
  RETURN_IF_ERROR(config::of_teacher(config_, error.status()));
  if (*error && mesh_.is_main()) {
    metrics::log_info(absl::StrCat(
        "float8 ", config::text_of_teacher(config_), " against the same in its compute dtype: ", (*error)->text()));
  }
  return absl::OkStatus();
}

// All ranks gather the head of hidden states, and rank 0 writes it; then it makes the folder a cache.
absl::Status Capture::write_head() {
  const teacher_cache::TeacherHead head =
      gather_head(*teacher_.weights, plan_.manifest.rows, inputs_.teacher.vocabulary(), mesh_.is_main());
  if (!mesh_.is_main()) {
    return absl::OkStatus();
  }
  const bool renumbered = plan_.manifest.vocabulary.has_value();
  ASSIGN_OR_RETURN(
      plan_.manifest.head,
      teacher_cache::write_head(
          config_.teacher.cache, config_.teacher, head,
          {renumbered ? &config_.student : &config_.teacher, renumbered ? plan_.manifest.vocab_size : 0}));
  return teacher_cache::begin_cache(config_.teacher.cache, plan_.manifest);
}

// The parts that the folder lacks as rank 0 sees it, the same on every rank.
absl::StatusOr<std::vector<CapturePart>> Capture::missing_parts() const {
  at::Tensor there = at::zeros({static_cast<int64_t>(plan_.parts.size())}, at::kLong); // 1 for each part that is
  absl::Status status;
  if (mesh_.is_main()) {
    const auto found = teacher_cache::complete_parts(config_.teacher.cache);
    status = found.status();
    for (const int64_t part : found.value_or(std::vector<int64_t>())) {
      if (part < there.numel()) {
        there[part] = 1;
      }
    }
  }
  RETURN_IF_ERROR(agree(mesh_, status));
  if (mesh_.host != nullptr) {
    mesh_.host->all_reduce(there);
  }
  std::vector<CapturePart> parts = plan_.parts;
  std::erase_if(parts, [&](const CapturePart& part) { return there.const_data_ptr<int64_t>()[part.number] != 0; });
  return parts;
}

// Lists the micro-batches of this rank's share of the parts of one data set. Every rank has the same number of them.
std::vector<Capture::Round> Capture::own_rounds(const std::vector<CapturePart>& parts, int64_t data) const {
  std::vector<std::vector<Round>> of_rank(static_cast<size_t>(mesh_.data_size()));
  int64_t next = 0;
  for (const CapturePart& part : parts) {
    if (part.data != data) {
      continue;
    }
    std::vector<Round>& rounds = of_rank[static_cast<size_t>(next++ % mesh_.data_size())];
    for (const data::SampleRange& range : part.micro_batches) {
      rounds.push_back({part.number, range, /*last=*/false});
    }
    rounds.back().last = true;
  }
  size_t most = 0;
  for (const std::vector<Round>& rounds : of_rank) {
    most = std::max(most, rounds.size());
  }
  std::vector<Round> own = std::move(of_rank[static_cast<size_t>(mesh_.data_rank())]);
  const int64_t end = inputs_.data[static_cast<size_t>(data)]->num_samples(); // from here on there is padding alone
  own.resize(most, Round{-1, {end, 1}, false});
  return own;
}

// Computes the rows of a micro-batch, which are then on their way to the host.
teacher_cache::RowsToWrite Capture::compute(const data::Batch& batch, const Round& round) {
  const at::Tensor rows_RW = step_->run(batch);
  if (round.part < 0) {
    return {};
  }
  teacher_cache::RowsToWrite out = teacher_cache::rows_to_write(
      batch, rows_RW, [this](const data::Shard& shard) { return shard_number_.at(&shard); });
  out.part = round.part;
  out.last = round.last;
  return out;
}

absl::Status Capture::capture_data(const std::vector<CapturePart>& parts, int64_t data) {
  const std::vector<Round> rounds = own_rounds(parts, data);
  data::Prefetcher prefetcher(
      inputs_.data[static_cast<size_t>(data)], [&](int64_t i) { return rounds[static_cast<size_t>(i)].samples; },
      static_cast<int64_t>(rounds.size()), kPrefetched, "capture data");
  BatchLoader::Hooks hooks;
  hooks.asked_to_stop = [this] { return stop_.received() != 0; };
  hooks.own_writing = [this] { return sharding::WritingRanks{.failed = writer_->status().ok() ? 0 : 1}; };
  hooks.take_writing = [this](const sharding::WritingRanks& ranks) {
    if (ranks.failed == 0) {
      return absl::OkStatus();
    }
    const absl::Status own = writer_->status();
    return own.ok() ? absl::AbortedError("another rank could not write to the cache; its message says why") : own;
  };
  BatchLoader loader(mesh_, prefetcher, /*micro_batches=*/1, std::move(hooks));
  for (const Round& round : rounds) {
    mesh_.report_progress(round.part, "capture");
    const Clock::time_point asked = Clock::now();
    ASSIGN_OR_RETURN(const std::optional<GlobalBatch> batch, loader.next());
    data_seconds_ += seconds_between(asked, Clock::now());
    if (!batch) {
      stopped_ = true;
      return absl::OkStatus();
    }
    teacher_cache::RowsToWrite rows = compute(batch->micro_batches.front(), round);
    if (round.part >= 0) {
      writer_->push(std::move(rows));
    }
    if (progress_) {
      progress_->add(mesh_.samples_together(config_.train.micro_batch_size));
    }
  }
  return absl::OkStatus();
}

// Reports the speed of the whole capture, and of the time in which rows came one micro-batch after the other.
// `samples`: of all ranks.
std::vector<std::string> Capture::speed_lines(int64_t samples) const {
  const double seconds = seconds_between(start_, Clock::now());
  const teacher_cache::PartThread::Times times = writer_->times();
  const auto speed = [this](int64_t sequences, double time) {
    return time > 0 ? static_cast<double>(sequences * config_.data.seq_len) / time : 0;
  };
  std::vector<std::string> lines = {absl::StrFormat(
      "cache: %s is complete; %d sequences in %.1f s, %.4g tok/s, until everything was on the disk",
      config_.teacher.cache, samples, seconds, speed(samples, seconds))};
  if (times.batches > 1) {
    const double between = seconds_between(times.first, times.last);
    const int64_t further = (times.batches - 1) * mesh_.samples_together(config_.train.micro_batch_size);
    lines.push_back(absl::StrFormat(
        "cache: the first rows came after %.2f s, the others at %.4g tok/s, and %.2f s after the last ones they were "
        "on the disk; the device waited %.2f s for the disk, this rank %.2f s for data",
        seconds_between(start_, times.first), speed(further, between), seconds_between(times.last, Clock::now()),
        times.idle_seconds, data_seconds_));
  }
  return lines;
}

absl::StatusOr<CaptureResult> Capture::run() {
  RETURN_IF_ERROR(agree(mesh_, prepare()));
  const std::string& folder = config_.teacher.cache;
  RETURN_IF_ERROR(
      sharding::check_equal_on_all_ranks(mesh_, "the manifest of the cache", teacher_cache::to_json(plan_.manifest)));
  RETURN_IF_ERROR(agree(mesh_, look_at_earlier()));
  ASSIGN_OR_RETURN(const std::vector<CapturePart> parts, missing_parts());
  if (mesh_.is_main()) {
    for (const std::string& line : plan_.lines(folder)) {
      metrics::log_info(line);
    }
    if (const size_t done = plan_.parts.size() - parts.size(); done > 0) {
      metrics::log_info(
          absl::StrFormat("cache: %d of %d parts are there and stay as they are", done, plan_.parts.size()));
    }
  }
  limit_memory(config_, context_.environment(), plan_.memory, plan_.overflows);
  RETURN_IF_ERROR(agree(mesh_, check_precision()));
  ASSIGN_OR_RETURN(teacher_, load_teacher_alone(config_, context_.environment(), mesh_, inputs_.teacher.model()));
  step_ = std::make_unique<CaptureStep>(
      config_, *teacher_.weights, plan_.manifest.rows,
      models::BlockFunctions{.tile_tokens = config_.memory.forward_tile_tokens()});
  RETURN_IF_ERROR(check_captured_mass(config_, inputs_, *teacher_.weights, *step_, mesh_));
  RETURN_IF_ERROR(agree(mesh_, write_head()));
  share_head(mesh_, plan_.manifest);
  writer_ = std::make_unique<teacher_cache::PartThread>(folder, plan_.manifest);
  if (mesh_.is_main()) {
    progress_ =
        std::make_unique<metrics::TaskProgress>("capture", samples_of(parts), "sequences", config_.run.progress);
  }
  start_ = Clock::now();
  for (size_t data = 0; data < inputs_.data.size() && !stopped_; ++data) {
    RETURN_IF_ERROR(capture_data(parts, static_cast<int64_t>(data)));
  }
  progress_.reset();
  RETURN_IF_ERROR(agree(mesh_, stopped_ ? absl::OkStatus() : writer_->finish()));
  if (mesh_.is_main() && !stopped_) {
    for (const std::string& line : speed_lines(samples_of(parts))) {
      metrics::log_info(line);
    }
    if (device::is_tracking()) {
      metrics::log_info(absl::StrFormat(
          "memory: %d bytes of tensors at the peak of rank 0, %d planned", device::memory_use().peak(),
          plan_.memory.peak()));
    }
  }
  return CaptureResult{stopped_};
}

} // namespace

absl::Status write_cache_dry_run(const config::Config& config, const launch::RankInfo& ranks) {
  const int64_t started = std::max(ranks_to_start(config, ranks), ranks.world_size);
  const config::Config own = capture_config(config, started);
  ASSIGN_OR_RETURN(const Environment environment, resolve_environment(own));
  ASSIGN_OR_RETURN(const CaptureInputs inputs, open_capture_inputs(own, environment));
  ASSIGN_OR_RETURN(
      const CapturePlan plan,
      plan_capture(own, environment, inputs, started, std::max(started, ranks.local_world_size)));
  const std::string& folder = own.teacher.cache;
  RETURN_IF_ERROR(earlier_capture(folder, plan.manifest).status());
  for (const std::string& line : plan.lines(folder)) {
    std::puts(line.c_str());
  }
  RETURN_IF_ERROR(check_space(plan, folder, bytes_below(folder)));
  std::puts("dry run: everything checks out; nothing was written");
  return absl::OkStatus();
}

absl::StatusOr<CaptureResult> write_cache(
    const config::Config& config, const launch::RankInfo& ranks, const launch::StopSignal& stop) {
  const config::Config own = capture_config(config, ranks.world_size);
  ASSIGN_OR_RETURN(const std::unique_ptr<RunContext> context, RunContext::join(own, ranks, stop));
  try {
    auto result = Capture(*context, stop).run();
    if (result.ok()) {
      context->leave();
    }
    return result;
  } catch (const sharding::CommunicationError& error) {
    return context->lost_ranks(0, error.what());
  }
}

} // namespace distill::trainer
