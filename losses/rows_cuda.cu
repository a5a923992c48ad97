// Which row kernel runs, and in which geometry.
#include "losses/rows_cuda.h"

#include <algorithm>

#include "losses/rows_cluster.cuh"

namespace distill::losses {

namespace {

// Columns of a tile; a slice is made of these.
int tile_columns(int threads) {
  return threads * kVector;
}

bool aligned(const void* data, int64_t stride, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * bytes % 16 == 0;
}

int logit_bytes(const RowArgs& args) {
  return args.logits_type == ElementType::kFloat32 ? 4 : 2;
}

RowMode mode_of(const RowArgs& args) {
  const LossOptions& o = args.options;
  const bool general = o.temperature != 1 || o.student_softcap > 0 || o.teacher_softcap > 0;
  if (args.teacher == nullptr) {
    return general ? RowMode::kGeneralHard : RowMode::kHard;
  }
  if (general) {
    return RowMode::kGeneral;
  }
  switch (effective_divergence(o)) {
    case Divergence::kJsd:
      return RowMode::kJsd;
    case Divergence::kForwardKl:
      return RowMode::kForwardKl;
    case Divergence::kReverseKl:
      return RowMode::kReverseKl;
    default:
      return RowMode::kGeneral;
  }
}

// The longest slice that works: the register tiles, and in shared memory all but two stages of the ring.
int most_vectors(int stages) {
  return std::min(kRegisterVectors, stages) + std::max(stages - 2, 0);
}

ClusterPlan plan_for(const RowArgs& args, int cluster_size, int threads) {
  ClusterPlan plan;
  const int64_t slice = (args.vocab + cluster_size - 1) / cluster_size;
  plan.slice = static_cast<int>((slice + 7) / 8 * 8);
  plan.vectors = (plan.slice + tile_columns(threads) - 1) / tile_columns(threads);
  const int sides = args.teacher == nullptr ? 1 : 2;
  const int fixed = cluster_detail::shared_bytes(threads, logit_bytes(args), sides, cluster_size, 0);
  plan.stages = std::min(
      kMaxStages,
      (cluster_detail::available_shared(threads) - fixed) /
          (sides * cluster_detail::tile_bytes(threads, logit_bytes(args))));
  return plan;
}

// The fewest blocks whose registers hold the row, else the fewest that hold it at all; 0 where none do.
int automatic_cluster(const RowArgs& args, int threads) {
  for (const int size : {1, 2, 3, 4, 5, 6, 7, 8}) {
    if (plan_for(args, size, threads).vectors <= kRegisterVectors) {
      return size;
    }
  }
  for (const int size : {8, 16}) {
    const ClusterPlan plan = plan_for(args, size, threads);
    if (plan.vectors <= most_vectors(plan.stages)) {
      return size;
    }
  }
  return 0;
}

const char* why_not_cluster(const RowArgs& args) {
  if (args.logits_type == ElementType::kFloat64) {
    return "fp64 logits";
  }
  if (args.vocab > INT32_MAX / 2) {
    return "the vocabulary is too large";
  }
  const int64_t gradient_bytes = args.gradient_type == ElementType::kBFloat16 ? 2 : 4;
  if (!aligned(args.student, args.student_stride, logit_bytes(args)) ||
      (args.teacher != nullptr && !aligned(args.teacher, args.teacher_stride, logit_bytes(args))) ||
      (args.gradient != nullptr && !aligned(args.gradient, args.gradient_stride, gradient_bytes))) {
    return "rows that do not start at multiples of 16 bytes";
  }
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major != 9) {
    return "the device is not of compute capability 9";
  }
  return nullptr;
}

const char* launch_rows_cluster(const RowArgs& args, void* stream, int cluster_size, int threads) {
  const ClusterPlan plan = plan_for(args, cluster_size, threads);
  if (cluster_size < 1 || cluster_size > kMaxCluster || plan.vectors > most_vectors(plan.stages)) {
    return "the cluster row kernel cannot hold a row of this width with this cluster size";
  }
  const RowMode mode = mode_of(args);
  return threads == 256 ? launch_cluster_256(args, plan, cluster_size, mode, stream)
                        : launch_cluster_512(args, plan, cluster_size, mode, stream);
}

} // namespace

const char* launch_rows(const RowArgs& args, void* stream, const RowLaunch& launch) {
  if (args.num_rows == 0) {
    return nullptr;
  }
  if (args.num_rows > INT32_MAX) {
    return "more than 2^31 rows";
  }
  if (launch.strategy != RowStrategy::kStreaming) {
    const char* problem = why_not_cluster(args);
    const int threads = launch.threads == 0 ? 512 : launch.threads;
    const int size = launch.cluster_size == 0 ? automatic_cluster(args, threads) : launch.cluster_size;
    if (problem == nullptr && size > 0) {
      return launch_rows_cluster(args, stream, size, threads);
    }
    if (launch.strategy == RowStrategy::kCluster) {
      return problem == nullptr ? "the cluster row kernel cannot hold a row of this width" : problem;
    }
  }
  return launch_rows_streaming(args, static_cast<cudaStream_t>(stream));
}

} // namespace distill::losses
