// The backward pass of the orthogonal memory on tensor cores: one kernel, one pass backward in
// time, no sums across blocks.
//
// Means are recomputed from the sums that forward left for each chunk. With P = Q B^T, U = dY B^T,
// p the softmax of the logits scale m * P and n the number of tokens in the memory, per token
//   da = p * (m * U - p . (m * U)),   dm = (p * U + scale P * da) / n,   dP = scale m * da,
// the gradient of codes, dC, is the sum of dm over the tokens that read them (scan.h), and
//   dQ = dP B,   dF = dC B,   dB = sum of (p * m)^T dY + dP^T Q + dC^T F,
// dB in registers from the first chunk to the last; rows of a batch are added up afterwards. What
// dropout multiplies p by in y goes to U and, for dB, to p * m (dropout.h). Whole: dC is known
// where a segment lies in a chunk. Sums of dm over others, or over all of a row without segments,
// are left to whole.h, which makes their dF.
//
// A warp has columns of the sums, all tokens of them: it projects codes on its rows of the basis
// and scans them, and scans dm, without waiting for others. dQ, dF and the codes' share of dB of a
// chunk are made when the next chunk is there, so that three barriers a chunk do: the chunk and dC
// are there; the reads are; dm is. dC needs a tile of its own for that.
//
// At 128 columns a block has eight warps, two teams that share dB. Both make P and U, of which a
// lane keeps one of its two rows; one team makes dQ, the other dF; U lies where dP was. Two stages
// of tiles where a block can have 221 KiB of shared memory (heads of 64: 108 KiB); one where it has
// 163 KiB (sm_80; heads of 64: 99 KiB): nothing is copied while a chunk is computed, dC takes the
// place of p * m, and barriers are six. Heads of 32 have two stages, and dC in that place, which
// takes a fourth barrier: with its own tile a block would have 58,880 bytes of shared memory, and
// three would share a multiprocessor instead of four.
//
// Where heads are few a causal call may be split into runs of chunks. What each run adds to the
// gradients of the sums before it is then made first, by this kernel without dQ, dF and dB
// (sums_only).
//
// Bytes per token and head: 10 d for q, f, dy, dq and df, 8 r / 64 for the sums; operations 16 d r.
// d = r = 64: 648 bytes, 65,500 operations, and some 490 KiB of a chunk through shared memory.
// Whole, without segments: 6 d bytes, 10 d r operations, some 330 KiB of a chunk, besides the sums
// and dF. Heads of 128, r = 128: 1296 bytes, 328,000 operations and some 1.6 MiB.
#include "attention/primitives/orthogonal_memory/cuda/gradients.h"

namespace linnet::cuda::orthogonal_memory_fast {
namespace {

// Blocks per multiprocessor that registers are bounded for.
template <int D>
constexpr int kBlocks = D < 64    ? 4
                        : D < 128 ? 2
                                  : 1;

template <int D, int stages>
__global__ __launch_bounds__(Warps<D>::kThreads, kBlocks<D>) void orthogonal_memory_fast_backward(
    const __grid_constant__ Backward a) {
  using Part = ScanPart<D, Warps<D>::kWarps>;
  constexpr int kStride = Layout<D, stages>::kStride;
  SharedArena arena;
  const Layout<D, stages> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = thread / 32 % 4, team = thread / 32 / 4;
  const bool reads_codes = a.reads_codes();
  const bool has_queries = !kTwoTeams<D> || team == 0;
  const bool has_codes = reads_codes && (!kTwoTeams<D> || team == 1);
  const int heads = static_cast<int>(a.q.H), head = static_cast<int>(blockIdx.x % heads);
  const int64_t row = blockIdx.x / heads, time = a.q.T;
  const int chunks = static_cast<int>((time + kChunk - 1) / kChunk);
  const int run = static_cast<int>(blockIdx.y) + (a.sums_only ? 1 : 0);
  const int first = run * a.split.chunks, last = first + min(chunks - first, a.split.chunks);
  const int64_t of_run = (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * a.rank;
  // Whole: the column of the sums that a lane has of its warp's.
  constexpr int kColumns = D / Warps<D>::kWarps;
  const int element = thread / 32 * kColumns + lane;
  const bool is_column = lane < kColumns, has_element = is_column && element < a.rank;

  AsyncCopies copies;
  TokenFlags flags;
  RunningSums<D, Warps<D>::kWarps> sums{};
  int phase = 0;
  const auto begin = [&](int number) {
    const int64_t token = int64_t{number} * kChunk;
    const int on = number % stages * kChunk * kStride;
    begin_copy<D, Warps<D>>(copies, shared.q + on, {a.q, a.query_mask, row, token, head, 0});
    begin_copy<D, Warps<D>>(copies, shared.dy + on, {a.dy, a.query_mask, row, token, head, 0});
    if (reads_codes) {
      begin_copy<D, Warps<D>>(copies, shared.f + on, {a.f, a.code_mask, row, token, head, 0});
    }
    copies.commit();
    if (thread < kChunk) flags.load(a, row, token + thread);
    const float* saved = a.saved.sums + (a.entry(row, chunks, number) * heads + head) * 2 * a.rank;
    if (a.whole) {
      if (has_element) sums = {{saved[element]}, {saved[a.rank + element]}};
    } else {
      sums = {Part::load(saved, a.rank), Part::load(saved + a.rank, a.rank)};
      phase = a.saved.phases[row * chunks + number];
    }
  };
  RunningGradients<D, Warps<D>::kWarps> running{};
  const auto store_sums = [&](int64_t entries, int64_t entry) {
    if (!has_element) return;
    float* to = a.dsums + ((row * entries + entry) * heads + head) * 2 * a.rank + element;
    to[0] = running.completed.values[0];
    to[a.rank] = running.window.values[0];
  };

  load_basis<D, Warps<D>::kThreads>(a, head, shared.basis);
  if (!a.whole && a.dcompleted_out != nullptr) {
    running.completed = Part::load(a.dcompleted_out + of_run, a.rank);
  }
  if (!a.whole && a.dpartial_out != nullptr) {
    running.window = Part::load(a.dpartial_out + of_run, a.rank);
  }
  StateTile<D, D, Warps<D>> dbasis;
  dbasis.load(nullptr, nullptr, {});
  const auto seen_by = [&](int64_t token, int half) {
    const int64_t t = token + warp * 16 + half * 8 + lane / 4;
    return t < time ? a.tokens[row * time + t] : 0;
  };
  // Of a chunk of which all dP and dC are there: dQ, dF, and the codes' share of dB.
  const auto finish = [&](int number) {
    const int64_t token = int64_t{number} * kChunk;
    const int on = number % stages * kChunk * kStride;
    float along[2] = {}, shares[2];
    for (int half = 0; half < 2; ++half) {
      shares[half] = seen_by(token, half) > 0 ? a.code_share : a.empty_code_share;
    }
    const auto expand_to = [&](auto queries_too, auto codes_too) {
      expand_gradients<D, decltype(queries_too)::value, decltype(codes_too)::value>(
          shared, on, shares, warp, lane, {a.dq, a.query_mask, row, token + warp * 16, head, 0},
          {a.df, a.code_mask, row, token + warp * 16, head, 0}, along);
    };
    if (has_queries && has_codes) {
      if constexpr (!kTwoTeams<D>) expand_to(std::true_type{}, std::true_type{});
    } else if (has_queries) {
      expand_to(std::true_type{}, std::false_type{});
    } else if (has_codes) {
      if constexpr (kTwoTeams<D>) expand_to(std::false_type{}, std::true_type{});
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = sum_of_row(along[half]);
      const int64_t t = token + warp * 16 + half * 8 + lane / 4;
      if (a.df_dot_f == nullptr || !has_codes || lane % 4 != 0 || t >= time) continue;
      a.df_dot_f[(row * time + t) * heads + head] = sum;
    }
    if (reads_codes) dbasis.template add<false>(shared.dcodes, shared.f + on);
  };
  Chunk chunk{0, 0, 0, 0, a.window, a.inclusive};
  if (stages > 1) begin(last - 1);
  for (int number = last - 1; number >= first - 1; --number) {
    uint32_t* words = shared.flags + (number & 1) * kFlagWords;
    const auto receive = [&] {
      copies.wait<0>();
      if (thread < kChunk) flags.publish(words, warp, lane);
    };
    if (stages > 1 && number >= first) receive();
    __syncthreads();  // this chunk is there, and dC of the one after
    if (number + 1 < last && !a.sums_only) finish(number + 1);
    if (number < first) break;
    const int64_t token = int64_t{number} * kChunk;
    const int on = number % stages * kChunk * kStride;
    if (stages == 1) {
      __syncthreads();  // nobody reads the chunk after any more
      begin(number);
      receive();
      __syncthreads();  // this chunk is there
    }
    chunk.length = static_cast<int>(min(int64_t{kChunk}, time - token));
    chunk.phase = phase;
    chunk.read(words);

    // Of the chunk's sums a warp has columns.
    auto before = sums;
    if (reads_codes) {
      project_columns<D, Warps<D>::kWarps>(shared.f + on, shared.basis, shared.sums, lane);
      __syncwarp();  // the warp's codes are there
    }
    if (!a.whole) {
      before.scan(chunk, shared.sums);
    } else if (is_column && reads_codes) {
      before.sum_segments(chunk, shared.sums + element, kStride);
    } else if (is_column) {
      before.fill(shared.sums + element, kStride);
    }
    __syncthreads();  // the tokens' reads are there; nobody reads the other stage and dP any more
    if (stages > 1 && number > first) begin(number - 1);
    const int own = (warp * 16 + lane / 4) * kStride + lane % 4 * 2;
    Projections<D> projections;
    projections.weights = shared.weights + own;
    projections.gradients = shared.gradients + own;
    projections.team = team;
    projections.load(shared.q + on, shared.dy + on, shared.basis, warp, lane);
#pragma unroll
    for (int i = 0; i < projections.kRows; ++i) {
      const int half = projections.half_of(i);
      const int64_t seen = seen_by(token, half);
      float share = a.share;
      if (a.drops) {
        KeptWeights<D> kept;
        kept.draw(a, row, token + warp * 16 + half * 8 + lane / 4, head, lane);
        projections.drop_outputs(i, kept);
        share *= a.dropout.keep;
      }
      read_gradients<D>(shared.sums, warp, lane, i, seen > 0 ? 1 / static_cast<float>(seen) : 0.0f,
                        share, a, projections);
      if (a.drops) projections.drop_weights(i);
    }
    __syncthreads();  // dm, p * m and dP are there
    if (!a.sums_only) {
      dbasis.template add<false>(shared.weights, shared.dy + on);
      dbasis.template add<false>(shared.gradients, shared.q + on);
    }
    if (!Layout<D, stages>::kSeparatesCodes) __syncthreads();  // nobody reads p * m any more
    if (!a.whole) {
      running.scan(chunk, shared.sums, shared.dcodes);
    } else if (is_column) {
      running.sum_segments(chunk, shared.sums + element, shared.dcodes + element, kStride);
    }
    if (a.whole && reads_codes) {
      store_sums(chunks, number);
      running.completed = running.window = {};
    }
  }
  if (!a.whole) {
    const bool stores = run == 0 || a.sums_only;
    if (stores && a.dcompleted != nullptr) {
      Part::store(running.completed, a.dcompleted + of_run, a.rank, 0);
    }
    if (a.inclusive) running.window = {};
    if (stores && a.dpartial != nullptr) {
      Part::store(running.window, a.dpartial + of_run, a.rank, 1);
    }
  } else if (!reads_codes) {
    store_sums(gridDim.y, blockIdx.y);
  }
  if (a.sums_only || !dbasis.has_part()) return;
  const int width = static_cast<int>(a.q.K);
  float* to = a.dbasis + of_run * width;
#pragma unroll
  for (int i = 0; i < dbasis.kRows; ++i) {
#pragma unroll
    for (int j = 0; j < dbasis.kColumns; ++j) {
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int l = dbasis.row(i, part / 2), column = dbasis.column(j) + part % 2;
        if (l < a.rank && column < width) to[l * width + column] = dbasis.memory[i][j].values[part];
      }
    }
  }
}

// Calls run with the width of tiles and their stages, as constants: two where they fit a block.
template <typename Run>
auto with_stages(int64_t width, const Run& run) {
  return with_tile<128>(width, [&](auto tile) {
    constexpr int D = decltype(tile)::value;
    if constexpr (D >= 64) {
      if (shared_bytes<Layout<D, 2>>() > shared_memory_limit()) {
        return run(tile, std::integral_constant<int, 1>{});
      }
    }
    return run(tile, std::integral_constant<int, 2>{});
  });
}

}  // namespace

size_t backward_shared_memory(int64_t width) {
  return with_stages(width, [](auto tile, auto stages) {
    return shared_bytes<Layout<decltype(tile)::value, decltype(stages)::value>>();
  });
}

int64_t backward_blocks(int64_t width) {
  return with_tile<128>(width, [](auto tile) { return kBlocks<decltype(tile)::value>; });
}

void backward(const Backward& call) {
  const int runs = call.split.runs - (call.sums_only ? 1 : 0);
  with_stages(call.q.K, [&](auto tile, auto stages) {
    constexpr int D = decltype(tile)::value, kStages = decltype(stages)::value;
    launch({"orthogonal_memory_fast_backward",
            dim3(blocks_for(call.q.B * call.q.H, 1), static_cast<unsigned>(runs)),
            Warps<D>::kThreads, shared_bytes<Layout<D, kStages>>()},
           orthogonal_memory_fast_backward<D, kStages>, call);
  });
}

}  // namespace linnet::cuda::orthogonal_memory_fast
