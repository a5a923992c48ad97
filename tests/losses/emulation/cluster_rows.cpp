// The cluster row kernel is compiled for a CPU in the geometries and modes that tests run, and in no others: each takes
// half a second to compile.
#define __CUDA_ARCH__ 900
#include <stdexcept>
#include <type_traits>

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
  // Slices of more than 9 tiles.
  constexpr bool kLong = (kMode == Mode::kUnit || kMode == Mode::kUnitLoss) &&
      !std::is_same_v<Logit, cluster::ShiftedBf16> &&
      (kDivergence == Divergence::kJsd || kDivergence == Divergence::kForwardKl || kDivergence == Divergence::kNone);
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
  if constexpr (kLong && std::is_same_v<Logit, float>) {
    if (plan.tiles == kMaxTiles) {
      return run<kMaxTiles, Logit, kDivergence, kTeacher, kMode>(args, plan, cluster_size);
    }
  }
  if constexpr (kLong) {
    if (plan.tiles == kLongTiles) {
      return run<kLongTiles, Logit, kDivergence, kTeacher, kMode>(args, plan, cluster_size);
    }
  }
  throw std::runtime_error("not compiled for this number of tiles");
}

template <typename Logit, Mode kMode, Divergence... kDivergences>
void run_one_of(const RowArgs& args, int cluster_size) {
  bool found = false;
  const auto run_if = [&](auto divergence) {
    constexpr Divergence kDivergence = decltype(divergence)::value;
    if (effective_divergence(args.options) == kDivergence) {
      found = true;
      run_tiles<Logit, kDivergence, true, kMode>(args, cluster_size);
    }
  };
  (run_if(std::integral_constant<Divergence, kDivergences>{}), ...);
  if (!found) {
    throw std::runtime_error("not compiled for this divergence");
  }
}

template <typename Logit, Mode kMode>
void run_divergence(const RowArgs& args, int cluster_size) {
  using enum Divergence;
  if (args.teacher == nullptr) {
    if constexpr (kMode != Mode::kGeneral) {
      return run_tiles<Logit, kNone, false, kMode>(args, cluster_size);
    }
    throw std::runtime_error("not compiled for labels alone");
  } else if constexpr (kMode == Mode::kUnit && sizeof(Logit) == 4) {
    run_one_of<Logit, kMode, kJsd, kForwardKl, kSkewForwardKl, kSkewReverseKl, kTotalVariation>(args, cluster_size);
  } else if constexpr (kMode == Mode::kGeneral) {
    run_one_of<Logit, kMode, kJsd>(args, cluster_size);
  } else if constexpr (cluster::kKeepsExponentials<kMode>) {
    run_one_of<Logit, kMode, kJsd, kForwardKl, kReverseKl>(args, cluster_size);
  } else {
    run_one_of<Logit, kMode, kJsd, kForwardKl>(args, cluster_size);
  }
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
    case Mode::kCappedTempered:
      return run_divergence<float, Mode::kCappedTempered>(args, cluster_size);
    case Mode::kUnitLoss:
      return run_divergence<float, Mode::kUnitLoss>(args, cluster_size);
    case Mode::kCappedLoss:
      return run_divergence<float, Mode::kCappedLoss>(args, cluster_size);
    case Mode::kGeneral:
      return run_divergence<float, Mode::kGeneral>(args, cluster_size);
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
