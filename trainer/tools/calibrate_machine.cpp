#include "trainer/tools/calibrate_machine.h"

#include <absl/time/clock.h>
#include <absl/time/time.h>
#include <torch/headeronly/version.h>

#include <chrono>

#include "trainer/device/device_hooks.h"
#include "trainer/device/device_info.h"
#include "trainer/device/host_slab.h"
#include "trainer/device/nvml.h"
#include "trainer/models/ops/attention.h"
#include "trainer/models/ops/float8.h"
#include "trainer/optim/adamw_kernel.h"
#include "trainer/plan/machine_table.h"
#include "trainer/setup/join_ranks.h"
#include "trainer/setup/resolve_environment.h"
#include "trainer/setup/warm_up.h"
#include "trainer/sharding/mesh.h"
#include "trainer/sharding/side_stream.h"

namespace distill::trainer {
namespace {

// Sizes of the timed operations: as large as those of a step, small enough to finish in seconds.
struct Sizes {
  int64_t rows, inner, columns; // product [rows, inner] x [inner, columns]
  int64_t tokens, heads, key_heads; // of an attention of head_dim 128
  int64_t copy_bytes; // moved by a streaming kernel and by a copy to the host
  int64_t unit; // elements that a collective moves
  int64_t updated; // parameters that the host updates
};
constexpr std::chrono::seconds kLeaveTimeout{30};
constexpr Sizes kDevice{8192, 4096, 14336, 4096, 32, 8, int64_t{1} << 30, int64_t{220'000'000}, int64_t{1} << 26};
constexpr Sizes kHost{512, 1024, 2048, 512, 8, 2, int64_t{1} << 26, int64_t{4'000'000}, int64_t{1} << 20};

class Stopwatch {
 public:
  explicit Stopwatch(at::Device device) : device_(device) {}

  // Measures the seconds of one run of `work`: the median of five timings, each of enough repetitions to be timed.
  template <typename Work>
  double seconds(const Work& work) const {
    work();
    int64_t repeats = 1;
    for (double took = timed(work, 1); took < kShortest && repeats < 256; took = timed(work, repeats)) {
      repeats *= 2;
    }
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      times.push_back(timed(work, repeats) / static_cast<double>(repeats));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  static constexpr double kShortest = 0.02;

  template <typename Work>
  double timed(const Work& work, int64_t repeats) const {
    device::synchronize(device_);
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < repeats; ++i) {
      work();
    }
    device::synchronize(device_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  at::Device device_;
};

class Calibration {
 public:
  Calibration(const Environment& environment, const sharding::Mesh& mesh)
      : device_(environment.device),
        dtype_(environment.student_dtype),
        mesh_(mesh),
        sizes_(device_.is_cuda() ? kDevice : kHost),
        watch_(device_) {}

  // `outside`: bytes of the device outside the allocator before the ranks joined.
  absl::StatusOr<plan::Machine> run(const std::string& file, int64_t outside);

 private:
  at::TensorOptions options() const {
    return at::TensorOptions().device(device_).dtype(dtype_);
  }
  void outside_memory(int64_t before_join);
  void streaming();
  void products();
  double flops_of(double seconds, size_t operand_bytes) const;
  void attention();
  absl::Status host_copies();
  absl::Status host_updates();
  void collectives();

  at::Device device_;
  at::ScalarType dtype_;
  const sharding::Mesh& mesh_;
  Sizes sizes_;
  Stopwatch watch_;
  plan::Machine likely_machine_; // has what cannot be measured here: collectives of one rank, other nodes
  plan::Machine machine_;
};

void Calibration::outside_memory(int64_t before_join) {
  constexpr double kGiB = 1 << 30;
  constexpr int kCommunicators = 3; // gather, reduce, world
  if (!device_.is_cuda()) {
    return;
  }
  open_communicators(mesh_, device_);
  const int64_t joined = device::bytes_outside_allocator(device_);
  const int64_t others = device::bytes_of_other_processes(device_);
  machine_.context_gib = static_cast<double>(before_join - others + device::kLoadedLater) / kGiB;
  machine_.communicator_gib = mesh_.world == nullptr
      ? likely_machine_.communicator_gib
      : static_cast<double>(joined - before_join) / kGiB / kCommunicators;
}

void Calibration::streaming() {
  const at::Tensor from = at::zeros({sizes_.copy_bytes}, options().dtype(at::kByte));
  at::Tensor to = at::empty_like(from);
  machine_.memory_bytes = 2 * static_cast<double>(sizes_.copy_bytes) / watch_.seconds([&] { to.copy_(from); });
  at::Tensor small = at::zeros({64}, options());
  machine_.launch_seconds = watch_.seconds([&] { small.add_(1); });
}

void Calibration::products() {
  const at::Tensor a = at::randn({sizes_.rows, sizes_.inner}, options());
  const at::Tensor b = at::randn({sizes_.columns, sizes_.inner}, options());
  at::Tensor c = at::empty({sizes_.rows, sizes_.columns}, options());
  machine_.matmul_flops = flops_of(watch_.seconds([&] { at::mm_out(c, a, b.t()); }), a.nbytes() + b.nbytes());
  machine_.float8_flops = device_.is_cuda() ? 0 : machine_.matmul_flops; // a CPU computes them in fp32
  if (device::computes_float8(device_)) {
    const models::Float8Rows a8 = models::float8_rows(a), b8 = models::float8_rows(b);
    machine_.float8_flops = flops_of(
        watch_.seconds([&] { c = models::float8_linear(a8, b8, dtype_); }),
        a8.values_RC.nbytes() + b8.values_RC.nbytes());
  }
}

// Returns the speed of a product that took `seconds` and read `operand_bytes`. The plan counts operations and traffic
// separately.
double Calibration::flops_of(double seconds, size_t operand_bytes) const {
  const auto element = static_cast<double>(c10::elementSize(dtype_));
  const double result_bytes = static_cast<double>(sizes_.rows * sizes_.columns) * element;
  const double traffic = (static_cast<double>(operand_bytes) + result_bytes) / machine_.memory_bytes;
  const double flops = 2.0 * static_cast<double>(sizes_.rows * sizes_.inner) * static_cast<double>(sizes_.columns);
  return flops / std::max(seconds - traffic, 0.5 * seconds);
}

void Calibration::attention() {
  constexpr int64_t kHeadDim = 128;
  const models::SequenceInfo seq = models::dense_sequences(/*batch=*/1, sizes_.tokens, device_);
  const at::Tensor q = at::randn({sizes_.tokens, sizes_.heads, kHeadDim}, options());
  const at::Tensor k = at::randn({sizes_.tokens, sizes_.key_heads, kHeadDim}, options());
  const at::Tensor v = at::randn_like(k);
  const double flops =
      2.0 * static_cast<double>(sizes_.tokens * sizes_.tokens) * static_cast<double>(sizes_.heads * kHeadDim);
  const double scale = 1.0 / std::sqrt(static_cast<double>(kHeadDim));
  models::AttentionResult out;
  machine_.attention_forward_flops =
      flops / watch_.seconds([&] { out = models::attention_forward(q, k, v, seq, {scale}); });
  const at::Tensor dout = at::randn_like(out.out_NQ);
  at::Tensor dq = at::empty_like(q), dk = at::empty_like(k), dv = at::empty_like(v);
  machine_.attention_backward_flops =
      2.5 * flops / watch_.seconds([&] { models::attention_backward(dout, q, k, v, out, seq, {scale}, dq, dk, dv); });
}

absl::Status Calibration::host_copies() {
  auto slab = device::HostSlab::allocate(sizes_.copy_bytes, device_, /*processes_on_host=*/8, "--calibrate");
  if (!slab.ok()) {
    return slab.status();
  }
  at::Tensor host = device::HostSlab::take(*slab, sizes_.copy_bytes);
  at::Tensor on_device = at::empty({sizes_.copy_bytes}, options().dtype(at::kByte));
  const double out = watch_.seconds([&] { host.copy_(on_device, /*non_blocking=*/true); });
  const double in = watch_.seconds([&] { on_device.copy_(host, /*non_blocking=*/true); });
  const auto bytes = static_cast<double>(sizes_.copy_bytes);
  // If several ranks copy at the same time, they share the host memory's bandwidth.
  machine_.host_bytes = bytes / (mesh_.world_size > 1 ? in : std::max(out, in));
  machine_.host_store_bytes = bytes / out * static_cast<double>(mesh_.world_size);
  if (!device_.is_cuda()) {
    machine_.copy_cost = 1; // one after the other
    return absl::OkStatus();
  }
  // The products are timed with and without overlapped copies.
  const at::Tensor a = at::randn({sizes_.rows, sizes_.inner}, options());
  const at::Tensor b = at::randn({sizes_.inner, sizes_.columns}, options());
  at::Tensor c = at::empty({sizes_.rows, sizes_.columns}, options());
  const auto compute = [&] {
    for (int i = 0; i < 24; ++i) {
      at::mm_out(c, a, b);
    }
  };
  const sharding::SideStream side(device_);
  const double alone = watch_.seconds(compute);
  const double both = watch_.seconds([&] {
    side.run([&] { host.copy_(on_device, /*non_blocking=*/true); });
    compute();
  });
  machine_.copy_cost = std::clamp((both - alone) / out, 0.0, 1.0);
  return absl::OkStatus();
}

// The host updates parameters in the memory that a run uses, on as many threads, while copies run in both directions.
absl::Status Calibration::host_updates() {
  const int64_t n = sizes_.updated;
  auto slab = device::HostSlab::allocate(
      16 * n + 2 * n + 2 * sizes_.copy_bytes + 8 * device::HostSlab::kAlignment, device_, mesh_.world_size,
      "--calibrate");
  if (!slab.ok()) {
    return slab.status();
  }
  const auto take = [&](int64_t bytes) { return device::HostSlab::take(*slab, bytes); };
  const at::Tensor copy = take(2 * n);
  std::vector<at::Tensor> values; // parameters, gradient, moments
  for (int i = 0; i < 4; ++i) {
    values.push_back(take(4 * n).view(at::kFloat).fill_(0.5));
  }
  const float one = 1, zero = 0;
  optim::AdamWFactors factors{};
  optim::adamw_factors_on_cpu({1e-6, 0.9, 0.95, 1e-8, 0.1, &one, &one, &zero, &factors});
  optim::AdamWArgs args{};
  args.params = values[0].mutable_data_ptr<float>();
  args.gradient = values[1].const_data_ptr();
  args.exp_avg = values[2].mutable_data_ptr();
  args.exp_avg_sq = values[3].mutable_data_ptr();
  args.bf16_copy = copy.mutable_data_ptr();
  args.n = n;
  args.factors = &factors;
  const sharding::StateMemory shared{.processes = mesh_.world_size};
  const auto update = [&] { optim::adamw_on_cpu(args, static_cast<int>(shared.update_threads())); };
  update();
  const sharding::SideStream in(device_), out(device_);
  const at::Tensor from = take(sizes_.copy_bytes), on_device = at::empty_like(from, options().dtype(at::kByte));
  at::Tensor to = take(sizes_.copy_bytes), arrives = at::empty_like(on_device);
  for (int i = 0; device_.is_cuda() && i < 30; ++i) { // longer than the updates
    in.run([&] { arrives.copy_(from, /*non_blocking=*/true); });
    out.run([&] { to.copy_(on_device, /*non_blocking=*/true); });
  }
  constexpr int kUpdates = 6;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kUpdates; ++i) {
    update();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kUpdates;
  device::synchronize(device_);
  constexpr double kBytes = 7 * 4 + 2; // of a parameter: three are read and written, one read, one written
  machine_.host_update_bytes = kBytes * static_cast<double>(n * mesh_.world_size) / seconds;
  return absl::OkStatus();
}

void Calibration::collectives() {
  if (mesh_.gather == nullptr) { // cannot be measured on one rank
    machine_.gather_bytes = likely_machine_.gather_bytes;
    machine_.reduce_bytes = likely_machine_.reduce_bytes;
    machine_.node_bytes = likely_machine_.node_bytes;
    machine_.overlap_cost = likely_machine_.overlap_cost;
    return;
  }
  const int64_t ranks = mesh_.shard_size;
  const int64_t shard = sizes_.unit / ranks;
  const double share = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  const at::Tensor part = at::zeros({shard}, options());
  at::Tensor whole = at::zeros({shard * ranks}, options());
  const auto gather = [&] { mesh_.gather->all_gather(whole, part); };
  // Every rank makes the same number of rounds, since collectives must match.
  const auto time = [&](const auto& work, int rounds) {
    work();
    device::synchronize(device_);
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) {
      work();
    }
    device::synchronize(device_);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / rounds;
  };
  const double gather_seconds = time(gather, 20);
  machine_.gather_bytes = share * static_cast<double>(whole.nbytes()) / gather_seconds;
  const at::Tensor full = at::zeros({shard * ranks}, options().dtype(at::kFloat));
  at::Tensor sum = at::zeros({shard}, options().dtype(at::kFloat));
  const double reduce_seconds = time([&] { mesh_.reduce->reduce_scatter(sum, full); }, 20);
  machine_.reduce_bytes = share * static_cast<double>(full.nbytes()) / reduce_seconds;
  machine_.node_bytes = std::min(machine_.gather_bytes, likely_machine_.node_bytes);
  if (!device_.is_cuda()) {
    machine_.overlap_cost = 1; // one after the other
    return;
  }
  const at::Tensor a = at::randn({sizes_.rows, sizes_.inner}, options());
  const at::Tensor b = at::randn({sizes_.inner, sizes_.columns}, options());
  at::Tensor c = at::empty({sizes_.rows, sizes_.columns}, options());
  const auto compute = [&] {
    for (int i = 0; i < 4; ++i) {
      at::mm_out(c, a, b);
    }
  };
  const sharding::SideStream side(device_);
  const double alone = time(compute, 10);
  const double both = time(
      [&] {
        side.run(gather);
        compute();
      },
      10);
  machine_.overlap_cost = std::clamp((both - alone) / gather_seconds, 0.0, 2.0);
}

absl::StatusOr<plan::Machine> Calibration::run(const std::string& file, int64_t outside) {
  const device::DeviceInfo info = device::device_info(device_);
  machine_.name = absl::StrFormat("%s, %d rank(s)", info.name, mesh_.world_size);
  machine_.measurement = plan::Measurement{
      .device = info.name,
      .driver = device_.is_cuda() ? device::nvidia_driver_version() : "",
      .libtorch = TORCH_VERSION,
      .date = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())};
  machine_.source = machine_.measurement->text();
  likely_machine_ =
      device_.is_cuda() ? plan::machine_with_device(info.name).value_or(plan::h200()) : plan::generic_cpu();
  machine_.memory_gib = static_cast<double>(info.memory_bytes) / (1 << 30);
  machine_.host_gib = static_cast<double>(device::device_info(at::kCPU).memory_bytes) / (1 << 30);
  outside_memory(outside);
  streaming();
  products();
  attention();
  absl::Status status = host_copies();
  status = status.ok() ? host_updates() : status;
  status = sharding::agree(mesh_, status);
  if (!status.ok()) {
    return status;
  }
  collectives();
  if (mesh_.is_main()) {
    status = plan::write_machine(machine_, file);
  }
  status = sharding::agree(mesh_, status);
  return status.ok() ? absl::StatusOr<plan::Machine>(machine_) : status;
}

} // namespace

absl::StatusOr<std::string> calibrate_machine(
    const config::Config& config, const launch::RankInfo& ranks, const std::string& file) {
  auto environment = resolve_environment(config, ranks.local_gpu);
  if (!environment.ok()) {
    return environment.status();
  }
  configure_libtorch(config.train, *environment);
  load_libraries(*environment);
  const int64_t outside = device::bytes_outside_allocator(environment->device);
  config::Config all = config; // every rank, one after the other in one shard axis
  all.parallel.shard = 0;
  all.parallel.replicate = 1;
  all.train.micro_batch_size = 1;
  all.train.global_batch_size = ranks.world_size;
  const auto mesh = join_ranks(all, ranks, environment->device);
  if (!mesh.ok()) {
    return mesh.status();
  }
  const auto machine = Calibration(*environment, **mesh).run(file, outside);
  if (!machine.ok()) {
    return machine.status();
  }
  sharding::leave(**mesh, environment->device, kLeaveTimeout); // what was measured is written, however the ranks end
  return absl::StrFormat(
      "%s (%s)\n  products            %10.2f TFLOP/s\n  float8 products     %10.2f TFLOP/s\n"
      "  attention forward   %10.2f TFLOP/s\n"
      "  attention backward  %10.2f TFLOP/s\n  device memory       %10.2f GB/s\n  host copies         %10.2f GB/s\n"
      "  to the host, all    %10.2f GB/s\n  updates on the host %10.2f GB/s\n"
      "  all-gather          %10.2f GB/s\n  reduce-scatter      %10.2f GB/s\n"
      "  driver, libraries   %10.2f GiB\n  a communicator      %10.2f GiB\nwritten to %s; use it with "
      "memory.machine=%s\n",
      machine->name, machine->source, machine->matmul_flops / 1e12, machine->float8_flops / 1e12,
      machine->attention_forward_flops / 1e12, machine->attention_backward_flops / 1e12, machine->memory_bytes / 1e9,
      machine->host_bytes / 1e9, machine->host_store_bytes / 1e9, machine->host_update_bytes / 1e9,
      machine->gather_bytes / 1e9, machine->reduce_bytes / 1e9, machine->context_gib, machine->communicator_gib, file,
      file);
}

} // namespace distill::trainer
