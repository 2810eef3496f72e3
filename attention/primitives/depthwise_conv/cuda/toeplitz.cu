// Convolutions with one filter per head of up to 65 taps, on tensor cores. 16 tokens of y are a
// product [16,80] [80,V]: on the left the Toeplitz matrix of the taps, on the right the tokens that
// the 16 reach. The matrix is the same for all tokens and stays in registers (5 operands [16,16]);
// the tokens lie in shared memory as they are stored.
//
// A block scans a run of tokens of one head and one tile of 64 channels, in tiles of 64 tokens of
// which three lie in a ring: the last two, which its four warps read, and the next, which is being
// copied. Counted from the last token that it reaches, every convolution is causal: a window ends
// with tile i, whose y belongs to tokens `after` earlier. Where rows have spans, taps that reach
// another one become 0 in the operands of that tile.
//
// Backward is the same with dy as the source and the taps from the other end. With X the 16 tokens
// of x that belong to the 16 of dx, the gradients of the taps are the sums along the diagonals of
// X dY^T [16,80], which is summed in registers over all tiles of a run; its diagonals once, at the
// end.
//
// Bytes per token and channel: 4 forward, 6 backward, and 64 tokens of the source more per run,
// which has at least 256. Operations: 160 forward, 320 backward.
#include "attention/primitives/depthwise_conv/cuda/fast.h"
#include "attention/tensor_core/fragments.h"
#include "attention/tensor_core/tile_copies.h"

namespace linnet::cuda::depthwise_conv_fast {
namespace {

using tensor_core::Eight;
using tensor_core::operator+=;
using tensor_core::TilePlace;

constexpr int kTile = tensor_core::kChunk;  // tokens
constexpr int kColumns = 64;                // channels
constexpr int kThreads = tensor_core::kTileThreads, kWarps = kThreads / 32;
constexpr int kStride = kColumns + tensor_core::kPadding;
constexpr int kSteps = kTile / 16 + 1;  // operands that 16 tokens reach
constexpr int kDiagonals = kSteps * 16 + 15;

template <bool backward>
struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : ring(arena.take<kernel_bf16>(size_t{3} * kTile * kStride)),
        own(arena.take<kernel_bf16>((backward ? size_t{2} : size_t{1}) * kTile * kStride)),
        sums(arena.take<float>(backward ? kWarps * kDiagonals : 1)) {}
  kernel_bf16* ring;
  // Backward: x of the tokens of `out`, two stages. Only the warp itself reads its rows; results
  // leave by way of them.
  kernel_bf16* own;
  float* sums;

  // Tile `tile` >= -1 of the run.
  __device__ __forceinline__ kernel_bf16* source(int tile) const {
    return ring + (tile + 1) % 3 * (kTile * kStride);
  }
  __device__ __forceinline__ kernel_bf16* others(int tile) const {
    return own + (backward ? tile % 2 * (kTile * kStride) : 0);
  }
};

// Where a block works.
struct Place {
  int64_t row, head, channel;
  int64_t first;  // token of the row that there is

  template <typename E>
  __device__ __forceinline__ bool has(const Line<E>& line, int64_t token, int column) const {
    return channel + column < line.now.K && line.counts(row, token, first);
  }
  template <typename E>
  __device__ __forceinline__ E* at(const Line<E>& line, int64_t token, int column) const {
    return line.at(row, token, head) + channel + column;
  }
  // Tokens of the row itself from `token` >= 0 on.
  template <typename E>
  __device__ __forceinline__ TilePlace<E> tile(const Line<E>& line, int64_t token) const {
    return {line.now, line.mask, row, token, static_cast<int>(head), static_cast<int>(channel)};
  }
};

// Begins to copy 64 tokens from `token` on; zeros for tokens that do not count. Only tiles that
// begin before the row ask of each token where it is.
template <int unrolled>
__device__ __forceinline__ void begin_copy(AsyncCopies& copies, kernel_bf16* tile,
                                           const Line<const kernel_bf16>& from, const Place& place,
                                           int64_t token) {
  if (token >= 0) {
    tensor_core::begin_copy<kColumns, tensor_core::FourWarps, unrolled>(copies, tile,
                                                                        place.tile(from, token));
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kTile * kColumns / 8 / kThreads; ++i) {
    const int part = i * kThreads + static_cast<int>(threadIdx.x);
    const int row = part / (kColumns / 8), column = part % (kColumns / 8) * 8;
    const bool counts = place.has(from, token + row, column);
    const kernel_bf16* at = from.now.data;
    if (counts) at = place.at(from, token + row, column);
    copies.copy(tile + row * kStride + column, at, counts);
  }
}

// The Toeplitz matrix: row i reaches tap n of the window in column 65 - count + i + n.
template <bool backward>
__device__ __forceinline__ void make_filter(const Pass& a, int64_t head, int lane,
                                            LeftFragment (&filter)[kSteps]) {
  const int count = static_cast<int>(a.taps.count);
  const auto tap = [&](int row, int column) {
    const int n = count - 1 - kTile + column - row;
    return n >= 0 && n < count ? a.tap<backward>(head, 0, n) : 0.0f;
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const int row = lane / 4 + word % 2 * 8, column = step * 16 + word / 2 * 8 + lane % 4 * 2;
      filter[step].words[word] = pack(tap(row, column), tap(row, column + 1));
    }
  }
}

// The reach of rows lane / 4 and lane / 4 + 8 of a warp, as columns of the matrix.
struct Limits {
  int from[2] = {0, 0}, to[2] = {kSteps * 16, kSteps * 16};

  __device__ __forceinline__ bool cut(int half, int column) const {
    return column < from[half] || column >= to[half];
  }
};
__device__ __forceinline__ Limits limits_of(const Pass& a, const Place& place, int64_t out,
                                            int64_t source, int lane) {
  Limits limits;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t token = out + half * 8 + lane / 4;
    if (token >= a.time) continue;  // written nowhere
    const Reach reach = a.reach(place.row, token, place.first);
    const int64_t columns = kSteps * 16, from = reach.begin - source, to = reach.end - source;
    limits.from[half] = static_cast<int>(from < 0 ? 0 : from > columns ? columns : from);
    limits.to[half] = static_cast<int>(to < 0 ? 0 : to > columns ? columns : to);
  }
  return limits;
}
__device__ __forceinline__ LeftFragment cut(const LeftFragment& filter, const Limits& limits,
                                            int step, int lane) {
  LeftFragment result = filter;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int column = step * 16 + word / 2 * 8 + lane % 4 * 2;
    if (limits.cut(word % 2, column)) result.words[word] &= 0xFFFF0000u;
    if (limits.cut(word % 2, column + 1)) result.words[word] &= 0x0000FFFFu;
  }
  return result;
}

// sums += the products of a warp's 16 tokens of x with 16 of dy, without those of other spans.
__device__ __forceinline__ void add_products(const kernel_bf16* own, const kernel_bf16* source,
                                             int width, bool is_cut, const Limits& limits, int step,
                                             int lane, ResultFragment* sums) {
  ResultFragment products[2] = {};
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {
    if (i * 16 >= width) continue;
    // Loaded again in every step: 16 registers less.
    const LeftFragment left = load_left(own + i * 16, kStride, lane);
    const RightFragments rights = load_right_transposed(source + i * 16, kStride, lane);
    for (int half = 0; half < 2; ++half) multiply(left, rights.halves[half], products[half]);
  }
  if (is_cut) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int column = step * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (limits.cut(i % 4 / 2, column)) products[i / 4].values[i % 4] = 0;
    }
  }
  for (int half = 0; half < 2; ++half) sums[half] += products[half];
}

// Writes a warp's 16 tokens from `token` on, by way of its rows of a tile; those before `end`.
__device__ __forceinline__ void write(const ResultFragment (&results)[kColumns / 8],
                                      kernel_bf16* rows, const Line<kernel_bf16>& out,
                                      const Place& place, int64_t token, int64_t end, int lane) {
  if (token >= 0) {  // runs have whole tiles, but for the last, which ends with the row
    tensor_core::store_rows<kColumns>(results, rows, kStride, lane, place.tile(out, token));
    return;
  }
  tensor_core::pack_rows(results, rows, kStride, lane);
#pragma unroll 1
  for (int part = lane; part < 16 * kColumns / 8; part += 32) {
    const int row = part / (kColumns / 8), column = part % (kColumns / 8) * 8;
    if (token + row >= end || place.channel + column >= out.now.K) continue;
    Eight elements = *reinterpret_cast<const Eight*>(rows + row * kStride + column);
    if (!place.has(out, token + row, column)) elements = {};
    *reinterpret_cast<Eight*>(place.at(out, token + row, column)) = elements;
  }
}

// The sums along the diagonals of X dY^T, warp after warp, to this block's place in `partial`.
// Every row has one element of a diagonal, so that rows alternate.
__device__ __forceinline__ void write_taps(const Pass& a,
                                           const ResultFragment (&products)[2 * kSteps],
                                           float* sums, const Place& place, int64_t tiles) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  float* mine = sums + warp * kDiagonals;
  for (int i = lane; i < kDiagonals; i += 32) mine[i] = 0;
  __syncwarp();
  for (int row = 0; row < 16; ++row) {
    if (lane / 4 == row % 8) {
#pragma unroll
      for (int j = 0; j < 2 * kSteps; ++j) {
        const int column = j * 8 + lane % 4 * 2;
        const float* pair = products[j].values;
        mine[column - row + 15] += row < 8 ? pair[0] : pair[2];
        mine[column + 1 - row + 15] += row < 8 ? pair[1] : pair[3];
      }
    }
    __syncwarp();
  }
  __syncthreads();
  const int64_t count = a.taps.count, part = blockIdx.y * a.source.now.B + place.row;
  for (int64_t n = threadIdx.x; n < count; n += kThreads) {
    // For the window's tap count - 1 - n.
    const int64_t diagonal = kTile - n + 15;
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w * kDiagonals + diagonal];
    a.partial[((part * count + n) * a.source.now.H + place.head) * tiles +
              place.channel / kColumns] = total;
  }
}

template <bool backward>
__global__ __launch_bounds__(kThreads, backward ? 3 : 4) void depthwise_conv_toeplitz(
    const __grid_constant__ Pass a, int64_t tiles) {
  SharedArena arena;
  const Layout<backward> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  Place place{};
  place.channel = blockIdx.x % tiles * kColumns;
  place.head = blockIdx.x / tiles % a.source.now.H;
  place.row = blockIdx.x / tiles / a.source.now.H;
  place.first = a.first(place.row);
  const int64_t rest = a.source.now.K - place.channel;
  const int width = static_cast<int>(rest < kColumns ? rest : kColumns);
  const int64_t begin = a.first_out + blockIdx.y * a.run;
  const int64_t end = begin + a.run < a.time ? begin + a.run : a.time;
  const int64_t after = a.taps.count - 1 - a.before<backward>();
  const int last = static_cast<int>((end - begin - 1) / kTile);
  const int first_step = (kTile + 1 - static_cast<int>(a.taps.count)) / 16;

  LeftFragment filter[kSteps];
  make_filter<backward>(a, place.head, lane, filter);
  ResultFragment products[backward ? 2 * kSteps : 1] = {};
  AsyncCopies copies;
  const auto copy = [&](int tile) {
    const int64_t token = begin + int64_t{tile} * kTile;
    constexpr int kUnrolled = backward ? 1 : 4;  // registers
    begin_copy<kUnrolled>(copies, shared.source(tile), a.source, place, token + after);
    if constexpr (backward) {
      if (tile >= 0) begin_copy<kUnrolled>(copies, shared.others(tile), a.other, place, token);
    }
    copies.commit();
  };
  copy(-1);
  copy(0);
  for (int tile = 0; tile <= last; ++tile) {
    copies.wait<0>();
    __syncthreads();  // this tile is there; nobody reads the one before the last any more
    if (tile < last) copy(tile + 1);
    const int64_t token = begin + int64_t{tile} * kTile + warp * 16;
    const int64_t source = token + after - kTile;  // of the matrix's column 0
    const bool is_cut = a.span_begins != nullptr;
    Limits limits;
    if (is_cut) limits = limits_of(a, place, token, source, lane);
    kernel_bf16* own = shared.others(tile) + warp * 16 * kStride;
    ResultFragment results[kColumns / 8] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step < first_step) continue;
      const int row = (warp + step) * 16;
      const kernel_bf16* rows =
          shared.source(row < kTile ? tile - 1 : tile) + row % kTile * kStride;
      LeftFragment left = filter[step];
      if (is_cut) left = cut(left, limits, step, lane);
#pragma unroll
      for (int j = 0; j < kColumns / 16; ++j) {
        if (j * 16 >= width) continue;
        const RightFragments rights = load_right(rows + j * 16, kStride, lane);
        for (int half = 0; half < 2; ++half) {
          multiply(left, rights.halves[half], results[2 * j + half]);
        }
      }
      if constexpr (backward) {
        add_products(own, rows, width, is_cut, limits, step, lane, products + 2 * step);
      }
    }
    write(results, own, a.out, place, token, end, lane);
  }
  if constexpr (backward) write_taps(a, products, shared.sums, place, tiles);
}

}  // namespace

int64_t toeplitz_width(const Pass& pass) {
  return (pass.source.now.K + kColumns - 1) / kColumns;
}

int64_t toeplitz_run(const Pass& pass) {
  // 1024 blocks fill the largest GPUs; shorter runs read the tokens between them too often.
  constexpr int64_t kBlocks = 1024, kShortest = 256, kMaxRuns = 65535;
  const int64_t blocks =
      std::max<int64_t>(1, pass.source.now.B * pass.source.now.H * toeplitz_width(pass));
  const int64_t runs = std::min((kBlocks + blocks - 1) / blocks, kMaxRuns);
  const int64_t wanted = std::max((pass.tokens() + runs - 1) / runs, kShortest);
  return (wanted + kTile - 1) / kTile * kTile;
}

void run_toeplitz(const Pass& pass, bool backward) {
  const int64_t tiles = toeplitz_width(pass);
  launch({"depthwise_conv_toeplitz",
          dim3(blocks_for(pass.source.now.B * pass.source.now.H * tiles, 1),
               static_cast<unsigned>(pass.runs())),
          kThreads, backward ? shared_bytes<Layout<true>>() : shared_bytes<Layout<false>>()},
         backward ? depthwise_conv_toeplitz<true> : depthwise_conv_toeplitz<false>, pass, tiles);
}

}  // namespace linnet::cuda::depthwise_conv_fast
