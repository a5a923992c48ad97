// The cluster row kernel, compiled for a CPU in as many geometries and modes as a test can wait for.
#define __CUDA_ARCH__ 900
#include <stdexcept>

#include "losses/rows/cuda/cluster/choose_mode.h"
#include "losses/rows/cuda/cluster/choose_size.h"
#include "losses/rows/cuda/cluster/kernel.cuh"
#include "tests/losses/emulation/rows.h"

namespace distill::losses::testing {

namespace {

using cluster::Mode;

template <int kTiles, typename Logit, Divergence kDivergence, bool kTeacher, Mode kMode>
void run(const RowArgs& args, const ClusterPlan& plan, int cluster_size) {
  using G = cluster::Geometry<kTiles, Logit, kTeacher, kUsesQa<kDivergence>>;
  static_assert(G::kBytes <= emulation::kSharedBytes);
  const int clusters = args.num_rows > 1 ? 2 : 1;
  const RowConstants<float> constants = row_constants<float>(args);
  emulation::run_grid(clusters * cluster_size, G::kThreads, cluster_size, [&] {
    cluster::rows_cluster<kTiles, Logit, kDivergence, kTeacher, kMode>(args, constants, plan, cluster_size);
  });
}

template <typename Logit, Divergence kDivergence, bool kTeacher, Mode kMode>
void run_tiles(const RowArgs& args, int cluster_size) {
  const ClusterPlan plan = cluster_plan(args, cluster_size);
  if constexpr (kMode == Mode::kGeneral) {
    if (plan.tiles <= 8) {
      return run<8, Logit, kDivergence, kTeacher, kMode>(args, plan, cluster_size);
    }
  } else if (plan.tiles == 5) {
    return run<5, Logit, kDivergence, kTeacher, kMode>(args, plan, cluster_size);
  } else if (plan.tiles == 9) {
    return run<9, Logit, kDivergence, kTeacher, kMode>(args, plan, cluster_size);
  }
  throw std::runtime_error("not compiled for this number of tiles");
}

template <typename Logit, Mode kMode>
void run_divergence(const RowArgs& args, int cluster_size) {
  if (args.teacher == nullptr) {
    return run_tiles<Logit, Divergence::kNone, false, kMode>(args, cluster_size);
  }
  switch (effective_divergence(args.options)) {
    case Divergence::kJsd:
      return run_tiles<Logit, Divergence::kJsd, true, kMode>(args, cluster_size);
    case Divergence::kForwardKl:
      return run_tiles<Logit, Divergence::kForwardKl, true, kMode>(args, cluster_size);
    default:
      break;
  }
  if constexpr (kMode == Mode::kUnit && sizeof(Logit) == 4) {
    switch (effective_divergence(args.options)) {
      case Divergence::kSkewForwardKl:
        return run_tiles<Logit, Divergence::kSkewForwardKl, true, kMode>(args, cluster_size);
      case Divergence::kSkewReverseKl:
        return run_tiles<Logit, Divergence::kSkewReverseKl, true, kMode>(args, cluster_size);
      case Divergence::kTotalVariation:
        return run_tiles<Logit, Divergence::kTotalVariation, true, kMode>(args, cluster_size);
      default:
        break;
    }
  }
  throw std::runtime_error("not compiled for this divergence");
}

template <typename Logit>
void run_mode(const RowArgs& args, int cluster_size) {
  switch (cluster_mode(args)) {
    case Mode::kUnit:
      return run_divergence<Logit, Mode::kUnit>(args, cluster_size);
    case Mode::kTempered:
      return run_divergence<Logit, Mode::kTempered>(args, cluster_size);
    case Mode::kCapped:
      return run_divergence<float, Mode::kCapped>(args, cluster_size);
    case Mode::kGeneral:
      if constexpr (!std::is_same_v<Logit, cluster::ShiftedBf16>) {
        return run_divergence<Logit, Mode::kGeneral>(args, cluster_size);
      }
      break;
  }
}

} // namespace

void emulate_cluster_rows(const RowArgs& args, int cluster_size) {
  if (args.logits_type == ElementType::kFloat32) {
    run_mode<float>(args, cluster_size);
  } else if (cluster_plan(args, cluster_size).shifted) {
    run_mode<cluster::ShiftedBf16>(args, cluster_size);
  } else {
    run_mode<__nv_bfloat16>(args, cluster_size);
  }
}

} // namespace distill::losses::testing
