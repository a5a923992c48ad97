// Which row kernel runs, and in which geometry.
#include "losses/rows/cuda/launch.h"

#include <algorithm>
#include <array>

#include "losses/rows/cuda/cluster/choose_size.h"
#include "losses/rows/cuda/device_functions.cuh"

namespace distill::losses {

namespace {

int64_t bytes_of(ElementType type) {
  return type == ElementType::kFloat64 ? 8 : (type == ElementType::kFloat32 ? 4 : 2);
}

bool starts_at_multiples(const void* data, int64_t stride_bytes, int64_t of) {
  return data == nullptr ||
      (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(of) == 0 && stride_bytes % of == 0);
}

// Whether all rows of logits start at multiples of `of` bytes.
bool logits_start_at_multiples(const RowArgs& args, int64_t of) {
  const int64_t bytes = bytes_of(args.logits_type);
  return starts_at_multiples(args.student, args.student_stride * bytes, of) &&
      starts_at_multiples(args.teacher, args.teacher_stride * bytes, of);
}

// Whether the call is what launch_cluster_unit or launch_cluster_capped compute.
bool is_usual(const RowArgs& args) {
  const LossOptions& o = args.options;
  if (args.logits_type != ElementType::kFloat32 || o.temperature != 1 || o.label_smoothing > 0 ||
      args.student_bias != nullptr || args.teacher_bias != nullptr) {
    return false;
  }
  const Divergence divergence = effective_divergence(o);
  return args.teacher == nullptr || divergence == Divergence::kJsd || divergence == Divergence::kForwardKl ||
      divergence == Divergence::kReverseKl;
}

// Asked once, on the first device used (nodes have one kind of GPU).
int automatic_cluster(int64_t vocab, bool teacher) {
  const auto ask = [](bool with_teacher) {
    ClustersAtOnce all{};
    for (int size = 2; size <= kMaxCluster; ++size) {
      all[static_cast<size_t>(size)] = clusters_at_once(with_teacher, size);
    }
    return all;
  };
  static const std::array<ClustersAtOnce, 2> at_once{ask(false), ask(true)};
  return best_cluster_size(vocab, at_once[teacher ? 1 : 0]);
}

const char* why_not_cluster(const RowArgs& args) {
  if (args.logits_type == ElementType::kFloat64) {
    return "fp64 logits";
  }
  if (args.vocab > INT32_MAX / 2) {
    return "the vocabulary is too large";
  }
  if (!logits_start_at_multiples(args, 4)) {
    return "rows that do not start at multiples of 4 bytes";
  }
  int device = 0;
  int major = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess || major != 9) {
    return "the device is not of compute capability 9";
  }
  return nullptr;
}

const char* launch_rows_cluster(const RowArgs& args, void* stream, int cluster_size) {
  if (cluster_size < 2 || cluster_size > kMaxCluster || cluster_plan(args.vocab, cluster_size).tiles > kMaxTiles) {
    return "the cluster row kernel cannot hold a row of this width with this cluster size";
  }
  ClusterPlan plan = cluster_plan(args.vocab, cluster_size);
  const int64_t gradient_bytes = bytes_of(args.gradient_type);
  plan.bulk_copies = logits_start_at_multiples(args, 16);
  plan.vector_stores =
      starts_at_multiples(args.gradient, args.gradient_stride * gradient_bytes, kClusterVector * gradient_bytes);
  if (is_usual(args)) {
    const bool capped = args.options.student_softcap > 0 || args.options.teacher_softcap > 0;
    return capped ? launch_cluster_capped(args, plan, cluster_size, stream)
                  : launch_cluster_unit(args, plan, cluster_size, stream);
  }
  return args.logits_type == ElementType::kFloat32 ? launch_cluster_general(args, plan, cluster_size, stream)
                                                   : launch_cluster_bf16(args, plan, cluster_size, stream);
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
    const int size =
        launch.cluster_size == 0 ? automatic_cluster(args.vocab, args.teacher != nullptr) : launch.cluster_size;
    if (problem == nullptr && size > 0) {
      return launch_rows_cluster(args, stream, size);
    }
    if (launch.strategy == RowStrategy::kCluster) {
      return problem == nullptr ? "the cluster row kernel cannot hold a row of this width" : problem;
    }
  }
  return launch_rows_streaming(args, static_cast<cudaStream_t>(stream));
}

} // namespace distill::losses
