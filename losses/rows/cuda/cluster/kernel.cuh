// This kernel runs on a cluster of blocks and reads a row's logits once. One warp of each block copies the block's
// slice of the next rows into shared memory, tile by tile (tiles.cuh); worker threads take the same columns of every
// tile. A row passes three phases:
//   1. normalise   maxima and sums of exponentials of the online softmax, from shared memory;
//   2. columns     the row's sums, and a and q of each column (divergences that need no sum of q a write their gradient
//                  here); the slots of tiles whose a and q stay in registers are free for the copies of later rows;
//   3. gradient    from a and q, once the mean of a is known; the slots of the other tiles are free.
// Phases 2 and 3 need numbers of the whole row. One more warp of each block, the reducer, merges them over the cluster
// (reducer.cuh) while the workers work on other rows: the second part of the next row's normalise phase lies between a
// row's columns and its gradient, the first part of the one after that between the gradient and the next columns.
// This is how rows follow each other in the time of one worker:
//
//   time ------------------------------------------------------------------------------------------------------>
//   row r      | columns |               | gradient |
//   row r + 1            | 2nd part of  |                             | columns |
//              1st part  |  normalise   |                                       |              | gradient |
//   row r + 2                                       | 1st part of    |         | 2nd part of |
//                                                   |  normalise     |         |  normalise  |
//   reducer              |sums r ~~~~~~~>|          |                           |sums r + 1 ~~>|
//                                       |stats r + 1 ~~~~~~~~~~~~~~~~>|
//   copied     tiles of the rows after r + 1, each into a slot that is free
//
// Where a slice leaves no room for the whole next row, the order after the columns of r is: second part of normalise
// r + 1; gradient of the stored tiles; third part of normalise; gradient of the tiles in registers, while stats r + 1
// travel.
#pragma once

#include <type_traits>

#include "losses/rows/cuda/cluster/column_terms.cuh"
#include "losses/rows/cuda/cluster/reducer.cuh"
#include "losses/rows/cuda/cluster/stages.cuh"

namespace distill::losses::cluster {

// args: see RowArgs, [R, V] logits of type Logit. A cluster of cluster_size blocks takes one row at a time; cluster n
// of the grid takes rows n, n + clusters, ... Dynamic shared memory: Geometry::kBytes.
// The phases stay in one function: moving them out changes the machine code. stages.cuh holds the stages that can move
// without a change.
template <int kTiles, typename Logit, Divergence kDivergence, bool kTeacher, Mode kMode>
__global__
__launch_bounds__((Geometry<kTiles, Logit, kTeacher, kUsesQa<kDivergence>>::kThreads), (Geometry<kTiles, Logit, kTeacher, kUsesQa<kDivergence>>::kBlocks)) void rows_cluster(
    const __grid_constant__ RowArgs args, const __grid_constant__ RowConstants<float> c,
    const __grid_constant__ ClusterPlan plan, const __grid_constant__ int cluster_size) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // The constant says whether a and q are kept from phase 2 to phase 3; otherwise phase 2 writes the gradient.
  constexpr bool kKeeps = kUsesQa<kDivergence>;
  constexpr bool kGeneral = kMode == Mode::kGeneral;
  using G = Geometry<kTiles, Logit, kTeacher, kKeeps>;
  unsigned char* const shared = launched_memory();
  auto& slots = *reinterpret_cast<RowSlots*>(shared + G::kReduceOffset);
  const int tid = static_cast<int>(threadIdx.x) - G::kHelpers; // the number of a worker; the helpers' are negative
  const int rank = static_cast<int>(blockIdx.x) % cluster_size;
  const int first_row = static_cast<int>(blockIdx.x) / cluster_size;
  const int row_step = static_cast<int>(gridDim.x) / cluster_size;
  const int rows = static_cast<int>(args.num_rows);
  // Every row has a slice that is this block's.
  const int first_column = rank * plan.slice;
  const int existing = static_cast<int>(min(max(args.vocab - first_column, int64_t{0}), int64_t{plan.slice}));
  init_slots(slots);
  const uint32_t first_slot = shared_address(shared);
  if (threadIdx.x < G::kSlots) {
    const uint32_t own = first_slot + threadIdx.x * G::kSlotStride;
    barrier_init_at(full_barrier<G>(own), plan.bulk_copies ? 1 : kWarp);
    barrier_init_at(empty_barrier<G>(own), kWarps * kArrivalsOfWarp);
    publish_barriers();
  }
  // After this, the barriers exist and every block of the cluster runs, before any block sends a number.
  cluster_barrier();

  const RowCursor rows_of_cluster(args, first_row, row_step);
  if (tid < 0) {
    if constexpr (G::kMovesRegisters) {
      give_registers<kReducerRegisters>();
    }
    // The first warp reduces, the second one copies.
    const int helper = static_cast<int>(threadIdx.x) / kWarp;
    const int lane_of_helper = static_cast<int>(threadIdx.x) % kWarp;
    if (helper == 1) {
      const TileCopies<G, Logit, kTeacher> copies{args, first_slot, first_column, existing};
      if (!plan.bulk_copies) {
        copies.by_words(rows_of_cluster, lane_of_helper);
      } else if (lane_of_helper == 0) {
        copies.in_bulk(rows_of_cluster);
      }
    }
    if (helper > 0) {
      __syncwarp();
      cluster_barrier();
      return;
    }
    const Reducer<kDivergence, kTeacher, kMode> reducer{
        args, c, slots, cluster_size, rank, lane_of_helper, first_column, existing};
    int before = -1; // the previous row
    uint32_t turn = 0;
    // The blocks take turns in writing a row's metrics.
    const auto metrics_of_previous = [&] {
      if (before >= 0 && static_cast<int>((turn - 1) % static_cast<uint32_t>(cluster_size)) == rank) {
        reducer.write_metrics(before, static_cast<int>((turn - 1) & 1U));
      }
    };
    RowCursor cursor = rows_of_cluster;
    for (int row = cursor.next([](int) {}); row < rows; row = cursor.next([](int) {})) {
      reducer.reduce(row, turn, metrics_of_previous);
      before = row;
      ++turn;
    }
    metrics_of_previous();
    // No block ends while another block may still send to it.
    cluster_barrier();
    return;
  }

  if constexpr (G::kMovesRegisters) {
    take_registers<kWorkerRegisters>();
  }
  const int lane = tid % kWarp;
  const int warp = tid / kWarp;
  const int mine = tid * kVector;
  Share share; // this thread's columns
  share.first = first_column + mine;
  share.columns = existing - mine;
  Columns<G, Logit, kMode> columns{
      args,
      c,
      plan,
      share,
      __reduce_max_sync(kAllLanes, (share.columns + kTileColumns - 1) / kTileColumns),
      shared_address(shared),
      shared_address(shared) + static_cast<uint32_t>(tid) * G::kVectorBytes};
  const auto student_side = [&](int tile, float(&z)[kVector]) { columns.student(tile, z); };
  const auto teacher_side = [&](int tile, float(&z)[kVector]) { columns.teacher(tile, z); };
  const KeptExponentials<G, Logit, kTeacher, kDivergence, kMode> exponentials{args, c, columns};
  const auto zero = [&](int row) { write_zeros(args, plan, columns, rank == 0 && tid == 0, row); };

  RowCursor cursor = rows_of_cluster;
  int row = cursor.next(zero);

  // Phase 1 finds maxima and sums of exponentials of tiles [begin, end), all constants; `ahead`: 0 for the row at the
  // current slot, kTiles for the one after it.
  OnlineSums student_sums;
  OnlineSums teacher_sums;
  uint32_t next_exponents_tiles = 0; // from KeptExponentials::keep()
  const auto normalise = [&](auto begin, auto end, auto ahead) {
    constexpr int kBegin = decltype(begin)::value;
    for_constants<decltype(end)::value - kBegin>([&](auto step) {
      constexpr int i = kBegin + decltype(step)::value;
      constexpr int kPlace = i + decltype(ahead)::value;
      if (columns.exists(i)) {
        columns.wait(kPlace);
        float zs[kVector];
        float zt[kVector];
        columns.template first_read<kTeacher, (kPlace >= kTiles)>(columns.place(kPlace), i, zs, zt);
        if constexpr (i == 0) {
          next_exponents_tiles = 0;
          student_sums = {};
          teacher_sums = {};
          if constexpr (kKeepsExponentials<kMode>) {
            exponentials.begin(zs, zt, student_sums, teacher_sums);
          } else {
            student_sums.begin(zs, c);
            if constexpr (kTeacher) {
              teacher_sums.begin(zt, c);
            }
          }
        }
        if constexpr (kKeepsExponentials<kMode>) {
          exponentials.keep(columns.place(kPlace), i, zs, zt, student_sums, teacher_sums, next_exponents_tiles);
        } else {
          student_sums.template add<kMode>(zs, c);
          if constexpr (kTeacher) {
            teacher_sums.template add<kMode>(zt, c);
          }
        }
      }
    });
  };
  using First = std::integral_constant<int, 0>;
  using Early = std::integral_constant<int, G::kEarlyTiles>;
  using Middle = std::integral_constant<int, G::kMiddleTiles>;
  using Tiles = std::integral_constant<int, kTiles>;
  // These are of the row whose columns are next: this thread's maxima, or the bases that KeptExponentials::row() needs.
  float student_reference = 0;
  float teacher_reference = 0;
  uint32_t exponents_tiles = 0;
  const auto hand_in = [&](int parity, int of_row) {
    SidePartial student_part;
    SidePartial teacher_part;
    if constexpr (kKeepsExponentials<kMode>) {
      exponentials.parts(of_row, student_sums, teacher_sums, next_exponents_tiles, student_part, teacher_part);
      student_reference = student_sums.base;
      teacher_reference = teacher_sums.base;
      exponents_tiles = next_exponents_tiles;
    } else {
      student_part = columns.part(student_sums, student_side);
      if constexpr (kTeacher) {
        teacher_part = columns.part(teacher_sums, teacher_side);
      }
      student_reference = student_sums.max;
      teacher_reference = teacher_sums.max;
    }
    hand_in_stats(slots, parity, warp, lane, student_part, teacher_part, c);
  };

  columns.next_row(row);
  columns.begin();
  if (row < rows) {
    normalise(First{}, Early{}, First{});
    normalise(Early{}, Tiles{}, First{});
    hand_in(0, row);
  }
  for (uint32_t turn = 0; row < rows; ++turn) {
    const int parity = static_cast<int>(turn & 1U);
    const uint32_t phase = (turn >> 1U) & 1U;
    const int next = cursor.next(zero);
    // The first tiles of the row after this one are there.
    columns.next_row(next);
    if (next < rows) {
      normalise(First{}, Early{}, Tiles{});
    }

    // Phase 2 computes the columns.
    barrier_wait(slots.row_ready + parity, phase);
    const RowNumbers& numbers = slots.row[parity];
    const SideStats<float> student = numbers.student;
    const SideStats<float> teacher = kTeacher ? numbers.teacher : SideStats<float>{};
    RowFactors<float> early_factors = kKeeps ? RowFactors<float>{} : numbers.factors;
    RowSums<float> sums;
    // p_weight r + q_weight has two constants of the launch, and an instruction can read only one of them there.
    RowConstants<float> held = c;
    held.p_weight = in_register(c.p_weight);
    constexpr bool kSeries = kSeriesNearZero<kDivergence, kMode>;
    const auto visit_one = [&](float zs, float zt, RowSums<float>& add) {
      if constexpr (kTeacher) {
        return column<kDivergence, kSeries>(zs, zt, student, teacher, held, add);
      } else {
        return column(zs, student, c, add);
      }
    };
    const auto visit = [&](int tile, const float(&zs)[kVector], const float(&zt)[kVector], auto& results) {
      if constexpr (kGeneral) {
        if (c.label_smoothing > 0) {
#pragma unroll
          for (int j = 0; j < kVector; ++j) {
            sums.below_max += j < share.valid(tile) ? student.max - zs[j] : 0.0F;
          }
        }
      }
      if constexpr (kPairsFromRatio<kDivergence, kMode>) {
        float lp[kVector];
        float lq[kVector];
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          lq[j] = log2_prob(zs[j], student, c);
          lp[j] = log2_prob(zt[j], teacher, c);
        }
        ColumnPair<float> pairs[kVector];
        pairs_from_ratio(lp, lq, pairs);
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          results[j] = column_of_pair<kDivergence, kSeries>(pairs[j], lp[j], lq[j], held, sums);
        }
      } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          results[j] = visit_one(zs[j], zt[j], sums);
        }
      }
    };
    // Two numbers are kept of a column: kept_a(), or its gradient where that needs no sum of q a; and `kept` of
    // gradient_of().
    const auto finish_column = [&](const ColumnResult<float>& r, float slope, float& first, float& second) {
      second = kept_q<kMode>(r, slope);
      first = kKeeps ? kept_a(r.a) : early_gradient<kDivergence, kMode>(r, slope, student, early_factors, c);
    };
    [[maybe_unused]] KeptRow kept;
    if (kCaps<kMode> || kKeepsExponentials<kMode> || !columns.whole(kTiles - 1)) {
      fence_before_copies(); // it orders the stores of the first phase
    }
    if constexpr (kKeepsExponentials<kMode>) {
      // Bases from what the warp has handed in are up to 4 % faster than from registers, but with softcaps 10 % slower.
      constexpr bool kReadsBases = kTeacher && !kCaps<kMode>;
      const float student_base = kReadsBases ? slots.stats_of_warp[parity][0][warp].base : student_reference;
      const float teacher_base = kReadsBases ? slots.stats_of_warp[parity][1][warp].base : teacher_reference;
      kept = exponentials.row(numbers, student_base, teacher_base, exponents_tiles);
      early_factors = kept.of_units(early_factors);
    } else {
      if (student_reference == student.max) {
        atomicMin(&slots.best[parity][0], columns.first_of(student.max, student_side));
      }
      if (kTeacher && teacher_reference == teacher.max) {
        atomicMin(&slots.best[parity][1], columns.first_of(teacher.max, teacher_side));
      }
    }
    if (numbers.label_thread == tid) {
      const int tile = numbers.label_column / kTileColumns;
      const int at = numbers.label_column % kVector;
      ColumnResult<float> r;
      float label_logit = 0;
      if constexpr (kKeepsExponentials<kMode>) {
        r = exponentials.label(kept, held, tile, at);
        label_logit = numbers.label_logit;
      } else {
        float teacher_logit = 0;
        read_column<kTeacher>(columns, tile, at, label_logit, teacher_logit);
        RowSums<float> unused;
        r = visit_one(label_logit, teacher_logit, unused);
        if constexpr (kTeacher) { // a worker does it, so that no block sends the teacher's logit to another one
          static_cast<float*>(args.metrics)[kTeacherCe * args.metrics_stride + row] =
              teacher_ce(c, student, teacher, teacher_logit);
        }
      }
      float4 of_label = make_float4(0, 0, slope_of<kMode>(label_logit, c), label_logit);
      finish_column(r, of_label.z, of_label.x, of_label.y);
      slots.label[parity] = of_label;
    }
    float a[kKeeps ? G::kRegisterTiles : 1][kVector];
    float q[kKeeps ? G::kRegisterTiles : 1][kVector]; // kept_q
    const auto write = [&](auto type, int tile, const float(&g)[kVector]) {
      columns.write_as(columns.template gradient_at<decltype(type)>(row), tile, g);
    };
    // Keeps or writes the results of a tile's columns: a, or the gradient, and q.
    const auto finish_tile = [&](auto gradient_type, auto tile, const float(&first)[kVector],
                                 [[maybe_unused]] const float(&second)[kVector]) {
      using Gradient = decltype(gradient_type);
      constexpr int i = decltype(tile)::value;
      if constexpr (!kKeeps) {
        if constexpr (!std::is_same_v<Gradient, None>) {
          write(Gradient{}, i, first);
        }
      } else if constexpr (i < G::kRegisterTiles) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          a[i][j] = first[j];
          q[i][j] = second[j];
        }
      } else {
        const uint32_t store = columns.store(columns.place(i), i);
        write_vector(store, first, kFloats);
        write_vector(store + G::kStoredSideBytes, second, kFloats);
      }
    };
    const auto release = [&](auto tile) {
      constexpr int i = decltype(tile)::value;
      if constexpr (!G::kStoredInSlots || i < G::kRegisterTiles) {
        columns.release(columns.slot, i, lane);
      }
    };
    // Without this attribute the compiler does not inline the longest of these, whose variables then lie in memory.
    const auto columns_phase = [&](auto gradient_type) __attribute__((always_inline)) {
      if constexpr (kKeepsExponentials<kMode> && kTeacher) { // without a teacher it does not pay
        if (exponentials.fast(kept)) {
          typename decltype(exponentials)::Tile tiles[2]; // the next one is read before the current one is computed
          exponentials.read(0, tiles[0]);
          for_constants<kTiles>([&](auto tile) {
            constexpr int i = decltype(tile)::value;
            if constexpr (i + 1 < kTiles) {
              exponentials.read(i + 1, tiles[(i + 1) % 2]);
            }
            if (columns.exists(i)) {
              float first[kVector];
              float second[kVector];
              exponentials.visit_fast(kept, held, tiles[i % 2], finish_column, sums, first, second);
              finish_tile(gradient_type, tile, first, second);
            }
            release(tile);
          });
          return;
        }
      }
      for_constants<kTiles>([&](auto tile) {
        constexpr int i = decltype(tile)::value;
        if (columns.exists(i)) {
          float first[kVector];
          float second[kVector];
          if constexpr (kKeepsExponentials<kMode>) {
            exponentials.visit(kept, held, i, finish_column, sums, first, second);
          } else {
            float zs[kVector];
            float zt[kVector] = {};
            columns.student(i, zs);
            if constexpr (kTeacher) {
              columns.teacher(i, zt);
            }
            ColumnResult<float> results[kVector];
            visit(i, zs, zt, results);
#pragma unroll
            for (int j = 0; j < kVector; ++j) {
              finish_column(results[j], slope_of<kMode>(zs[j], c), first[j], second[j]);
            }
          }
          finish_tile(gradient_type, tile, first, second);
        }
        release(tile);
      });
    };
    // Writes the label's column again, now with the label's part; the thread that wrote it without calls this.
    const auto write_label = [&](float g) { columns.write_one(row, numbers.label_column - mine, g); };
    if constexpr (kKeeps) {
      columns_phase(None{});
    } else {
      if (args.gradient == nullptr) {
        columns_phase(None{});
      } else if (args.gradient_type == ElementType::kBFloat16) {
        columns_phase(__nv_bfloat16{});
      } else {
        columns_phase(float{});
      }
      if (args.gradient != nullptr && numbers.label_thread == tid) {
        write_label(slots.label[parity].x - early_factors.label * slots.label[parity].z);
      }
    }
    if constexpr (kKeeps && G::kStoredInSlots && G::kStoredTiles > 0) {
      fence_before_copies();
    }
    if constexpr (kKeepsExponentials<kMode> && kTeacher) {
      kept.finish(sums);
    }
    hand_in_sums(slots, parity, warp, lane, sums, c);
    const uint32_t slot = columns.slot;
    columns.next_slots();

    const auto hand_in_next = [&] { hand_in(1 - parity, next); };
    if (next < rows) {
      normalise(Early{}, Middle{}, First{});
      if constexpr (G::kMiddleTiles == kTiles) {
        hand_in_next();
      }
    }

    // Phase 3 writes the gradient of `count` tiles from `begin` on, the first after the last. mean: of the row's a.
    const auto factors_of_row = [&] {
      return kKeepsExponentials<kMode> ? kept.of_units(numbers.factors) : numbers.factors;
    };
    const auto gradient_phase = [&](auto begin, auto count, float mean) {
      const RowFactors<float> factors = factors_of_row();
      const auto gradient_of_tiles = [&](auto gradient_type) {
        using Gradient = decltype(gradient_type);
        for_constants<decltype(count)::value>([&](auto step) {
          constexpr int i = (decltype(begin)::value + decltype(step)::value) % kTiles;
          const uint32_t place = columns.place_from(slot, i);
          if (columns.exists(i)) {
            float first[kVector];
            [[maybe_unused]] float second[kVector];
            if constexpr (i < G::kRegisterTiles) {
#pragma unroll
              for (int j = 0; j < kVector; ++j) {
                first[j] = a[i][j];
                second[j] = q[i][j];
              }
            } else {
              const uint32_t store = columns.store(place, i);
              read_vector(store, first, kFloats);
              read_vector(store + G::kStoredSideBytes, second, kFloats);
            }
            if constexpr (!std::is_same_v<Gradient, None>) {
              float g[kVector];
#pragma unroll
              for (int j = 0; j < kVector; ++j) {
                g[j] = gradient_of<kDivergence, kMode>(a_of(first[j]), second[j], mean, numbers.student, factors, c);
              }
              write(Gradient{}, i, g);
            }
          }
          if constexpr (G::kStoredInSlots && i >= G::kRegisterTiles) {
            columns.release(slot, i, lane);
          }
        });
      };
      if (args.gradient == nullptr) {
        gradient_of_tiles(None{});
      } else if (args.gradient_type == ElementType::kBFloat16) {
        gradient_of_tiles(__nv_bfloat16{});
      } else {
        gradient_of_tiles(float{});
      }
    };
    // The stored tiles come first, since copies wait for their slots. Where the last tiles of the next row are among
    // these copies, the gradient of the other tiles is written while that row's first reduction runs.
    using Registers = std::integral_constant<int, G::kRegisterTiles>;
    using Stored = std::integral_constant<int, G::kStoredTiles>;
    constexpr bool kLater = G::kMiddleTiles < kTiles;
    float mean = 0;
    if constexpr (kKeeps) {
      barrier_wait(slots.mean_ready + parity, phase);
      mean = slots.mean[parity];
      gradient_phase(Registers{}, std::conditional_t<kLater, Stored, Tiles>{}, mean);
    }
    if constexpr (kLater) {
      if (next < rows) {
        normalise(Middle{}, Tiles{}, First{});
        hand_in_next();
      }
    }
    if constexpr (kKeeps) {
      if constexpr (kLater) {
        gradient_phase(First{}, Registers{}, mean);
      }
      if (args.gradient != nullptr && numbers.label_thread == tid) {
        const float4 of_label = slots.label[parity];
        const RowFactors<float> factors = factors_of_row();
        write_label(
            gradient_of<kDivergence, kMode>(a_of(of_label.x), of_label.y, mean, numbers.student, factors, c) -
            factors.label * of_label.z);
      }
    }
    row = next;
  }
  // No block ends while another block may still send to it.
  cluster_barrier();
#endif
}

} // namespace distill::losses::cluster
