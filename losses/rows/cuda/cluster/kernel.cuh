// The row kernel on a cluster of blocks: a row's logits are read once. Each thread copies its own columns of the next
// rows into its own part of shared memory, so that no thread waits for the copies of another one. A row passes three
// phases:
//   1. normalise   maxima and sums of exponentials of the online softmax, from shared memory;
//   2. columns     the row's sums, and a and q of each column into registers (divergences that need no sum of q a
//                  write their gradient here); the row's place in shared memory is free for the copies of later rows;
//   3. gradient    from a and q, once the sum of q a is known.
// Phases 2 and 3 need numbers of the whole row, which the blocks reduce over the cluster through distributed shared
// memory (reduce.cuh). Phase 1 of the next row runs between phases 2 and 3, so that no reduction is waited for idly.
// Two rows in the time of one thread:
//
//   time ------------------------------------------------------------------------------------------------------>
//   row r      | normalise |        | columns |                           | gradient |
//   row r + 1                                 | normalise |                          | columns |
//   row r + 2                                                                                  | normalise |
//   reduced    |           |stats r>|         |                           |          |         |
//                                             |sums r ~~~~~~~~~~~~~~~~~~~>|                    |sums r + 1 ~~~~
//                                                         |stats r + 1 ~~~~~~~~~~~~~>|
//   copied     tiles of the rows after r + 1, each into the place of the tile that the columns phase has just read
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "losses/rows/cuda/cluster/stages.cuh"

namespace distill::losses::cluster {

// args: see RowArgs, [R, V] logits of type Logit. A cluster of cluster_size blocks takes one row at a time; cluster n
// of the grid takes rows n, n + clusters, ... Dynamic shared memory: Geometry::kBytes.
// The phases stay in one function: moving them out changes the machine code. stages.cuh holds the stages that can move
// without a change.
template <int kTiles, typename Logit, Divergence kDivergence, bool kTeacher, bool kGeneral>
__global__ __launch_bounds__(kThreads, (Geometry<kTiles, Logit, kTeacher>::kBlocks)) void rows_cluster(
    const __grid_constant__ RowArgs args, const __grid_constant__ RowConstants<float> c,
    const __grid_constant__ ClusterPlan plan, const __grid_constant__ int cluster_size) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  using G = Geometry<kTiles, Logit, kTeacher>;
  constexpr int kSlots = G::kSlots;
  // Whether a and q stay in registers from phase 2 to phase 3; otherwise phase 2 writes the gradient.
  constexpr bool kKeeps = kUsesQa<kDivergence>;
  extern __shared__ __align__(128) unsigned char shared[];
  const int tid = static_cast<int>(threadIdx.x);
  const int rank = static_cast<int>(blockIdx.x) % cluster_size;
  auto& reduce_slots = *reinterpret_cast<ClusterReduceSlots<kWarps>*>(shared + kSlots * G::kSlotBytes);
  ClusterReduce<kWarps> reduce{reduce_slots, cluster_size, rank, tid / kWarp, tid % kWarp};
  reduce.init();

  const int rows = static_cast<int>(args.num_rows);
  // This block's slice of every row, and this thread's columns of it.
  const int first_column = rank * plan.slice;
  const int existing = static_cast<int>(min(max(args.vocab - first_column, int64_t{0}), int64_t{plan.slice}));
  const int mine = tid * kVector;
  Share share;
  share.first = first_column + mine;
  share.full = existing < mine + kVector ? 0 : (existing - mine - kVector) / kTileColumns + 1;
  share.part = min(max(existing - mine - share.full * kTileColumns, 0), kVector);
  Columns<G, Logit, kGeneral> columns{
      args, c, plan, share, shared_address(shared) + static_cast<uint32_t>(tid) * G::kVectorBytes};
  const auto student_side = [&](int tile, float(&z)[kVector]) { columns.student(tile, z); };
  const auto teacher_side = [&](int tile, float(&z)[kVector]) { columns.teacher(tile, z); };
  const auto metric = [&](int row, TokenMetric m) -> float& {
    return static_cast<float*>(args.metrics)[m * args.metrics_stride + row];
  };
  const auto zero = [&](int row) { write_zeros(args, plan, columns, rank == 0 && tid == 0, row); };

  // The row in phase 2, and the later rows whose copies have begun.
  int ahead[G::kRowsAhead + 1];
  Loader<G, Logit, kTeacher> loader(
      args, share, static_cast<int>(blockIdx.x) / cluster_size, static_cast<int>(gridDim.x) / cluster_size);
  for_constants<kSlots>([&](auto s) {
    constexpr int kSlot = decltype(s)::value;
    if constexpr (kSlot % kTiles == 0) {
      loader.next_row(zero);
      ahead[kSlot / kTiles] = loader.row();
    }
    loader.template issue<kSlot % kTiles>(columns.base + kSlot * G::kSlotBytes);
  });
  // The barriers exist and every block of the cluster runs before any block sends a number.
  cluster_barrier();

  // Phase 1: maxima and normalising sums, posted to the cluster.
  float student_max = 0; // this thread's
  float teacher_max = 0;
  const auto normalise = [&](int parity) {
    OnlineSums student;
    OnlineSums teacher;
    float zs[2][kVector]; // a tile, and the next one, which is read before it is used
    float zt[2][kVector];
    const auto read = [&](int i) {
      wait_for_tile<kSlots>(i);
      columns.student(i, zs[i % 2]);
      if constexpr (kTeacher) {
        columns.teacher(i, zt[i % 2]);
      }
    };
    read(0);
    student.begin(zs[0]);
    if constexpr (kTeacher) {
      teacher.begin(zt[0]);
    }
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (i + 1 < kTiles && columns.exists(i + 1)) {
        read(i + 1);
      }
      if (columns.exists(i)) {
        student.template add<kGeneral>(zs[i % 2], c);
        if constexpr (kTeacher) {
          teacher.template add<kGeneral>(zt[i % 2], c);
        }
      }
    }
    student_max = student.max;
    teacher_max = teacher.max;
    const SidePartial student_part = columns.part(student, student_side);
    reduce.post_stats(parity, student_part, kTeacher ? columns.part(teacher, teacher_side) : SidePartial{}, c);
  };

  if (ahead[0] < rows) {
    normalise(0);
  }
  for (uint32_t turn = 0; ahead[0] < rows; ++turn) {
    const int row = ahead[0];
    const int parity = static_cast<int>(turn & 1U);
    const uint32_t phase = (turn >> 1U) & 1U;
    const int target = args.targets == nullptr ? -1 : static_cast<int>(args.targets[row]);
    const float weight = args.token_weights == nullptr ? 1.0F : static_cast<const float*>(args.token_weights)[row];

    reduce.wait_stats(parity, phase);
    SideStats<float> student;
    SideStats<float> teacher;
    reduce.stats(parity, c, student, teacher);
    if constexpr (!kTeacher) {
      teacher = SideStats<float>{};
    }
    const RowFactors<float> factors = row_factors(c, student, teacher, weight);
    if (kKeeps && reduce.lane == 0) {
      reduce_slots.factors[parity][reduce.warp] = make_float4(factors.soft, factors.hard, factors.uniform, 0.0F);
    }

    // Phase 2: the columns.
    RowSums<float> sums;
    const auto visit = [&](int tile, int j, float zs, float zt, RowSums<float>& add) {
      if constexpr (kGeneral) {
        if (c.label_smoothing > 0) {
          add.below_max += j < share.valid(tile) ? student.max - zs : 0.0F;
        }
      }
      if constexpr (kTeacher) {
        return column<kDivergence, kGeneral>(zs, zt, student, teacher, c, add);
      } else {
        return column(zs, student, c, add);
      }
    };
    if (student_max == student.max) {
      reduce.post_best(parity, 0, columns.first_of(student.max, student_side));
    }
    if (kTeacher && teacher_max == teacher.max) {
      reduce.post_best(parity, 1, columns.first_of(teacher.max, teacher_side));
    }
    if (tid == 0) {
      // The thread with the label's column, if it is in this block.
      const int local = target - first_column;
      reduce_slots.label_thread[parity] = local >= 0 && local < existing ? local % kTileColumns / kVector : -1;
    }
    const auto has_label = [&] {
      const int local = target - first_column;
      return local >= 0 && local < existing && local % kTileColumns / kVector == tid;
    };
    if (has_label()) {
      const int local = target - first_column;
      const int tile = local / kTileColumns;
      const int at = local % kVector;
      float label_logit = 0;
      float teacher_logit = 0;
      read_column<kTeacher>(columns, tile, at, label_logit, teacher_logit);
      RowSums<float> unused;
      const ColumnResult<float> r = visit(tile, at, label_logit, teacher_logit, unused);
      const float taken = factors.label * (kGeneral ? label_slope(label_logit, c) : 1.0F);
      reduce_slots.label[parity] = make_float4(r.a, kGeneral ? r.lq : r.q, taken, label_logit);
      if constexpr (kTeacher) { // here, so that no block sends the teacher's logit to another one
        metric(row, kTeacherCe) = teacher_ce(student, teacher, teacher_logit);
      }
    }
    float a[kKeeps ? kTiles : 1][kVector];
    float q[kKeeps ? kTiles : 1][kVector]; // in general log2 q, from which all else follows
    for_constants<kTiles>([&](auto constant) {
      constexpr int i = decltype(constant)::value;
      const uint32_t place = columns.place(i);
      if (columns.exists(i)) {
        float zs[kVector];
        float zt[kVector] = {};
        columns.student(i, zs);
        if constexpr (kTeacher) {
          columns.teacher(i, zt);
        }
        [[maybe_unused]] float g[kVector];
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const ColumnResult<float> r = visit(i, j, zs[j], zt[j], sums);
          if constexpr (kKeeps) {
            a[i][j] = r.a;
            q[i][j] = kGeneral ? r.lq : r.q;
          } else {
            g[j] = gradient_of<kDivergence, kGeneral>(r.a, kGeneral ? r.lq : r.q, 0.0F, student, factors, c);
          }
        }
        if constexpr (!kKeeps) {
          if (args.gradient != nullptr) {
            columns.write(row, i, g);
          }
        }
      }
      if constexpr ((i + kSlots) % kTiles == 0) {
        loader.next_row(zero);
      }
      loader.template issue<(i + kSlots) % kTiles>(place);
    });
    // Writes the label's column again, now with the label's part; called by the thread that wrote it without.
    const auto write_label = [&](float mean, const RowFactors<float>& f) {
      const int local = (args.targets == nullptr ? -1 : static_cast<int>(args.targets[row])) - first_column;
      const float4 kept = reduce_slots.label[parity];
      const float g = gradient_of<kDivergence, kGeneral>(kept.x, kept.y, mean, student, f, c);
      columns.write_one(row, local - mine, g - kept.z);
    };
    if (!kKeeps && args.gradient != nullptr && has_label()) {
      write_label(0.0F, factors);
    }
    columns.next_slots();
    reduce.post_sums(parity, sums, c);

#pragma unroll
    for (int n = 0; n < G::kRowsAhead; ++n) {
      ahead[n] = ahead[n + 1];
    }
    ahead[G::kRowsAhead] = loader.row();
    if (ahead[0] < rows) {
      normalise(1 - parity);
    }

    // Phase 3: the gradient. One warp of one block writes the row's metrics; the blocks take turns, so that the extra
    // work does not delay the same block in every row.
    const bool finishes =
        tid / kWarp == kWarps - 1 && static_cast<int>(turn % static_cast<uint32_t>(cluster_size)) == rank;
    if (kKeeps || finishes || tid < kWarp) {
      reduce.wait_sums(parity, phase);
    }
    if constexpr (kKeeps) {
      if (args.gradient != nullptr) {
        const float mean = reduce.template mean<kDivergence>(parity);
        __syncwarp();
        const float4 kept = reduce_slots.factors[parity][reduce.warp];
        const RowFactors<float> again{kept.x, kept.y, kept.z, 0.0F};
        columns.write_row(row, [&](int tile, int j) {
          return gradient_of<kDivergence, kGeneral>(a[tile][j], q[tile][j], mean, student, again, c);
        });
        if (reduce_slots.label_thread[parity] == tid) {
          write_label(mean, again);
        }
      }
    }
    if (finishes) {
      SideStats<float> student_again; // merged again: cheaper than registers through two phases
      SideStats<float> teacher_again;
      reduce.stats(parity, c, student_again, teacher_again);
      RowEpilogue<float> end;
      const RowSums<float> all = reduce.sums(parity, c, end);
      if (tid % kWarp == 0) {
        end.has_teacher = kTeacher;
        end.has_label = args.targets != nullptr;
        end.label = end.has_label ? args.targets[row] : -1;
        end.token_weight = args.token_weights == nullptr ? 1.0F : static_cast<const float*>(args.token_weights)[row];
        end.vocab = args.vocab;
        end.saved = args.saved == nullptr ? nullptr : static_cast<float*>(args.saved) + row;
        finish_row(
            static_cast<float*>(args.metrics) + row, args.metrics_stride, c, student_again,
            kTeacher ? teacher_again : SideStats<float>{}, all, end);
        if (!kTeacher || !end.has_label) {
          metric(row, kTeacherCe) = 0;
        }
      }
    }
    if (tid == 0) {
      reduce.expect(parity); // for the row after the next one
    }
  }
  // No block ends while another block may still send to it.
  cluster_barrier();
#endif
}

template <int kTiles, typename Logit, Divergence kDivergence, bool kTeacher, bool kGeneral>
const char* launch_as(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  const auto kernel = rows_cluster<kTiles, Logit, kDivergence, kTeacher, kGeneral>;
  constexpr int kBytes = Geometry<kTiles, Logit, kTeacher>::kBytes;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(cluster_size);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster_size));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(kBytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;

  // How many clusters run at once; asked once per size, on the first device used (nodes have one kind of GPU).
  static std::array<std::atomic<int>, kMaxCluster + 1> at_once{};
  int clusters = at_once[static_cast<size_t>(cluster_size)].load();
  if (clusters == 0) {
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes) != cudaSuccess ||
        cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) != cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess || clusters == 0) {
      cudaGetLastError();
      return "the pipelined row kernel does not fit this device";
    }
    at_once[static_cast<size_t>(cluster_size)].store(clusters);
  }
  const int64_t used = std::min<int64_t>(clusters, args.num_rows);
  config.gridDim = dim3(static_cast<unsigned>(used * cluster_size));
  if (cudaLaunchKernelEx(&config, kernel, args, row_constants<float>(args), plan, cluster_size) != cudaSuccess) {
    return launch_error();
  }
  return launch_error();
}

template <typename Logit, Divergence kDivergence, bool kTeacher, bool kGeneral>
const char* launch(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  if constexpr (!kGeneral) {
    switch (plan.tiles) {
      case 5:
        return launch_as<5, Logit, kDivergence, kTeacher, false>(args, plan, cluster_size, stream);
      case 6:
        return launch_as<6, Logit, kDivergence, kTeacher, false>(args, plan, cluster_size, stream);
      case 7:
        return launch_as<7, Logit, kDivergence, kTeacher, false>(args, plan, cluster_size, stream);
      case 8:
        return launch_as<8, Logit, kDivergence, kTeacher, false>(args, plan, cluster_size, stream);
      default:
        return "row kernel: no such number of tiles";
    }
  } else {
    return launch_as<kMaxTiles, Logit, kDivergence, kTeacher, true>(args, plan, cluster_size, stream);
  }
}

// Any divergence, temperature, softcap, bias and label smoothing.
template <typename Logit>
const char* launch_general(const RowArgs& args, const ClusterPlan& plan, int cluster_size, void* stream) {
  if (args.teacher == nullptr) {
    return launch<Logit, Divergence::kNone, false, true>(args, plan, cluster_size, stream);
  }
  return with_divergence(effective_divergence(args.options), [&](auto divergence) {
    return launch<Logit, decltype(divergence)::value, true, true>(args, plan, cluster_size, stream);
  });
}

} // namespace distill::losses::cluster
