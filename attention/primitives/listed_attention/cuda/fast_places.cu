// Backward of listed attention on tensor cores: the gradients of keys and values; its bytes and
// operations are in fast_queries.cu, whose sums of weights' gradients it reads.
//
// A block has 64 places of one list; past them stream the queries of the list, one after another
// for each query head that shares it and the key head. A warp computes from a tile, for the keys in
// its 16 places, the transposes
//   p^T and ds^T = p^T (v dy^T + dL - y . dy),   dv += p^T dy,   dk += scale ds^T q
// and writes them as the share that this list has in the gradients of these keys. Then the places
// are sorted by key, and a warp for each key adds its shares up in the order of the lists.
//
// Where values are wider than 128, each tile has blocks of its own, and ds is a sum over them: dk
// has a share of each.
//
// Work memory: the shares, (tiles K + V) bf16 per place, lists * length places per head of lists:
// for as many (row, key head) at a time as kShareBytes hold, at least one.
#include "attention/primitives/block_attention/cuda/fast_own_keys.h"
#include "attention/primitives/listed_attention/cuda/fast_tiles.h"

namespace linnet::cuda::listed_attention_fast {
namespace {

using namespace listed_attention_fast_detail;
using block_attention_fast_detail::begin_queries;
using block_attention_fast_detail::OwnKeys;
using block_attention_fast_detail::OwnKeysLayout;
using block_attention_fast_detail::QueryNumbers;
using block_attention_fast_detail::statistic_of;
using listed_attention_detail::first_not_below;
using listed_attention_detail::SortedIndex;
using listed_attention_detail::SortedPlaces;

// What a launch adds to a call: the shares of (row, key head) from number `first_pair` on. Query
// heads that share lists and keys share shares: `heads` of them, `units` a key head.
struct Shares {
  kernel_bf16* data;  // [pairs, units, places, width]
  int64_t first_pair;
  int64_t places, width;  // lists * length, tiles K + V
  int units, heads, tiles;
};

template <int D>
using PlaceLayout = OwnKeysLayout<D, ListStages<D>>;

// Which tile of values is this block's; narrow tiles hold them all.
template <int D>
__device__ __forceinline__ int value_tile() {
  return D < 128 ? 0 : static_cast<int>(blockIdx.y);
}

// The tiles of queries of a list: `each` for one query head after another, from h on. `first` is
// the first query.
template <int D>
struct QueryStream {
  const Backward& a;
  const float* shift;
  const PlaceLayout<D>& shared;
  AsyncCopies& copies;
  int b, h, first, queries, each, count;
  float statistic = 0;  // this thread's, of the tile that was begun last

  __device__ __forceinline__ QueryTile tile(int n) const {
    const int from = n % each * kTileRows;
    return {b, h + n / each, first + from, min(kTileRows, queries - from)};
  }
  // Begins to copy tile n; an empty group of copies where there is none.
  __device__ __forceinline__ void begin(int n) {
    if (n < count) {
      const QueryTile at = tile(n);
      const int value = value_tile<D>() * D;
      begin_queries<D>(copies, shared, n, a, b, at.h, at.first, at.end(), value);
      statistic = statistic_of<D>(a, shift, b, at.h, at.first, at.end(), value);
    }
    copies.commit();
  }
  // Barriers of the block: tile n, which was begun last, is there, and the other stage is free.
  // Rows of queries that see nothing, often NaN, become zeros: weights of 0 would spread them.
  __device__ __forceinline__ void arrive(int n) const {
    __syncthreads();
    const bool blind = threadIdx.x < kTileRows && statistic == kInfinity;
    kernel_bf16* dy =
        shared.tile(n, 1) + recomputed(static_cast<int>(threadIdx.x)) * shared.kStride;
#pragma unroll 1
    for (int column = 0; blind && column < D; column += 8) {
      *reinterpret_cast<Eight*>(dy + column) = {};
    }
    __syncthreads();
  }
  // Stores the values of tile n, which was begun last: only now are they waited for.
  __device__ __forceinline__ void store(int n) const {
    shared.statistics(n)[threadIdx.x] = statistic;
  }
};

// Finishes logits less log-sum-exps, in units of log 2, of a warp's 16 places with N queries of a
// tile from `column` on: -infinity where a place holds no key, and biases. Queries that do not
// count have a log-sum-exp of infinity.
template <int N>
__device__ __forceinline__ void hide(ResultFragment (&x)[N / 8], const Problem& p,
                                     const QueryTile& tile, int column, int first_place,
                                     const int* keys, int warp, int lane) {
  const int row = warp * 16 + lane / 4;
  const bool holds[2] = {keys[row] >= 0, keys[row + 8] >= 0};
  for_values(x, [&](float& value, int i) { value = holds[i % 4 / 2] ? value : -kInfinity; });
  if (p.bias == nullptr) return;
  const int own = first_place + row, query = column + lane % 4 * 2;
  const float* bias = bias_row(p, recomputed(tile.b), tile.h, tile.first + query) + own;
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    const int next = j / 2 * 8 + j % 2;
    if (query + next >= tile.count || !p.query_valid(tile.b, tile.first + query + next)) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (holds[half])
        x[j / 2].values[2 * half + j % 2] += bias[next * p.length + 8 * half] * kLog2E;
    }
  }
}

// Where shares of a tile's places are written, columns from an offset on.
struct ShareRows {
  kernel_bf16* first;
  int64_t stride, columns;
  int count;

  __device__ __forceinline__ int64_t width() const { return columns; }
  __device__ __forceinline__ kernel_bf16* at(int n) const {
    return n < count ? first + n * stride : nullptr;
  }
  __device__ __forceinline__ int64_t step() const { return stride; }
  __device__ __forceinline__ kernel_bf16* place(int n) const { return first + n * stride; }
  __device__ __forceinline__ Range even() const { return {}; }  // one way to store: registers
};

// Which places are a block's: 64 from `place` on, of a list of unit `item` of the launch. Blocks
// that run together share queries.
struct PlaceBlock {
  int item, list, place;
};
__device__ __forceinline__ PlaceBlock block_of(const Problem& p, int block) {
  const int tiles = static_cast<int>(tiles_of(p.length)), lists = static_cast<int>(p.lists);
  return {block / tiles / lists, block / tiles % lists, block % tiles * kTileRows};
}

template <int D>
__global__ __launch_bounds__(kTileThreads, kBlocks<D>) void listed_attention_fast_places(
    const __grid_constant__ Backward a, const float* shift, const __grid_constant__ Shares to) {
  constexpr int kStride = ListStages<D>::kStride, N = kStep<D>;
  const Problem& p = a.problem;
  SharedArena arena;
  const PlaceLayout<D> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto [item, list, place] = block_of(p, static_cast<int>(blockIdx.x));
  const int64_t pair = to.first_pair + item / to.units;
  const int b = static_cast<int>(pair / p.G), g = static_cast<int>(pair % p.G);
  const int h = (g * to.units + item % to.units) * to.heads;
  const int queries = queries_of_list(p, list), each = static_cast<int>(tiles_of(queries));

  AsyncCopies copies;
  const int first = static_cast<int>(list * p.options.group);
  const int32_t* keys = p.list(b, h, first);
  if (threadIdx.x < kTileRows) {
    const int l = place + static_cast<int>(threadIdx.x);
    shared.places(0)[threadIdx.x] = key_in(p, keys, b, l);
  }
  if (p.drops()) shared.set_draws(p, b, h);
  __syncthreads();
  const uint64_t held = Seen(shared.places(0), lane).keys;
  if (held == 0) return;  // shares of no key are not read
  // Whether a warp has a place without a key; in shared memory, for want of registers.
  if (lane == 0) shared.places(1)[warp] = (~held >> warp * 16 & 0xFFFF) != 0;
  begin_gathered<D>(copies, shared.tile(1, 0), shared.own_values(), shared.places(0), a, b, g,
                    value_tile<D>() * D);
  copies.commit();
  const int count = each * to.heads;
  QueryStream<D> stream{a, shift, shared, copies, b, h, first, queries, each, count};
  stream.begin(0);
  stream.store(0);
  copies.wait<1>();
  __syncthreads();
  OwnKeys<D> own;
  own.load(shared, warp, lane);
  for (int n = 0; n < count; ++n) {
    copies.wait<0>();
    stream.arrive(n);
    stream.begin(n + 1);
    const QueryTile tile = stream.tile(n);
    uint32_t kept = 0;
    if (p.drops()) {
      const uint64_t site = DropoutDraws::site_of(p.options.dropout_key, tile.h);
      kept = kept_of_keys(*shared.draws, site, place + warp * 16, tile.first, lane);
    }
#pragma unroll 1  // registers
    for (int column = 0; column < tile.count; column += N) {
      const kernel_bf16* rows = shared.tile(n, 0) + column * kStride;
      const float* statistics = shared.statistics(n) + column + lane % 4 * 2;
      ResultFragment x[N / 8] = {};
      multiply_transposed<D, N>([&](int i) { return own.k[i]; }, rows, lane, x);
      const QueryNumbers<N> log2_sum_exp(statistics);
      for_values(x, [&](float& value, int i) { value = value * p.logit_scale - log2_sum_exp(i); });
      const bool edge = p.bias != nullptr || shared.places(1)[warp] != 0;
      if (edge) hide<N>(x, p, tile, column, place, shared.places(0), warp, lane);
      own.template add<N>(p, SoftmaxTerms{}, rows, rows + kTileRows * kStride,
                          QueryNumbers<N>(statistics + kTileRows), kept, column, lane, x);
    }
    stream.store(n + 1);
  }
  // Found again: registers.
  const PlaceBlock block = block_of(p, recomputed(static_cast<int>(blockIdx.x)));
  const int64_t number = (block.item * p.lists + block.list) * p.length + block.place;
  kernel_bf16* shares = to.data + number * to.width;
  const int inside = static_cast<int>(min(int64_t{kTileRows}, p.length - block.place));
  store_rows<D>(own.dk, static_cast<float>(p.options.scale), shared.tile(count, 0),
                ShareRows{shares + value_tile<D>() * a.k.K, to.width, a.k.K, inside}, 0, warp,
                lane);
  const int64_t value = value_tile<D>() * D;
  store_rows<D>(own.dv, p.keep_scale, shared.tile(count, 1),
                ShareRows{shares + to.tiles * a.k.K + value, to.width, a.v.K - value, inside}, 0,
                warp, lane);
}

// Columns of dk, then dv, that a warp sums up: pairs of them in four rounds of lanes.
constexpr int kSummed = 4 * 2 * kLanes;

// A warp for kSummed columns of each key of each (row, key head).
__global__ void listed_attention_fast_sums(const __grid_constant__ Backward a,
                                           const __grid_constant__ Shares from, SortedPlaces sorted,
                                           int64_t pairs) {
  const Problem& p = a.problem;
  const Writes &dk = a.dk, &dv = a.dv;
  const int64_t item = global_warp();
  if (item >= pairs * p.Tk) return;
  const int64_t j = item % p.Tk, own = item / p.Tk, pair = from.first_pair + own;
  const int64_t g = pair % p.G, b = pair / p.G, all = from.places, width = from.width;
  const int own_column = static_cast<int>(blockIdx.y) * kSummed + warp_lane() * 2;
  float sums[4][2] = {};
  for (int unit = 0; p.key_valid(b, j) && unit < from.units; ++unit) {
    const int64_t row = p.index_row(b, (g * from.units + unit) * from.heads) * all;
    const int32_t* keys = sorted.keys + row;
    const int64_t begin = first_not_below(keys, all, j);
    const int64_t end = begin + first_not_below(keys + begin, all - begin, j + 1);
    const kernel_bf16* shares = from.data + (own * from.units + unit) * all * width;
    for (int tile = 0; tile < from.tiles; ++tile) {
      // The first shares of dk, and dv behind the last; then the other shares of dk.
      const int64_t columns = tile == 0 ? dk.K + dv.K : dk.K, behind = (from.tiles - 1) * dk.K;
#pragma unroll 4
      for (int64_t n = begin; n < end; ++n) {
        const kernel_bf16* share = shares + sorted.order[row + n] * width + tile * dk.K;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = own_column + i * 2 * kLanes;
          if (column >= columns) continue;
          const kernel_bf16* at = share + column + (column < dk.K ? 0 : behind);
          const uint32_t two = *reinterpret_cast<const uint32_t*>(at);
          sums[i][0] += low_of(two);
          sums[i][1] += high_of(two);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t column = own_column + i * 2 * kLanes;
    if (column >= dk.K + dv.K) continue;
    kernel_bf16* to =
        column < dk.K ? row_of(dk, b, j, g) + column : row_of(dv, b, j, g) + column - dk.K;
    *reinterpret_cast<uint32_t*>(to) = pack(sums[i][0], sums[i][1]);
  }
}

template <int D>
void run(const Backward& a, const float* shift, const Shares& to, int64_t pairs) {
  const Problem& p = a.problem;
  launch({"listed_attention_fast_places",
          dim3(blocks_for(pairs * to.units * p.lists * tiles_of(p.length), 1),
               static_cast<unsigned>(to.tiles)),
          kTileThreads, shared_bytes<PlaceLayout<D>>()},
         listed_attention_fast_places<D>, a, shift, to);
}

}  // namespace

void key_gradients(const Backward& call, const Tensor& index, const float* shift,
                   int64_t share_bytes) {
  const Problem& p = call.problem;
  const int heads = static_cast<int>(p.H / p.G), tiles = tiles_of_values(call);
  const bool shared_lists = p.index_heads == 1;
  Shares to{nullptr,
            0,
            p.lists * p.length,
            tiles * call.k.K + call.v.K,
            shared_lists ? 1 : heads,
            shared_lists ? heads : 1,
            tiles};
  const int64_t of_pair = to.units * to.places * to.width, all = p.B * p.G;
  const int64_t bytes = std::max<int64_t>(1, of_pair * static_cast<int64_t>(sizeof(kernel_bf16)));
  const int64_t most = std::clamp<int64_t>(share_bytes / bytes, 1, std::max<int64_t>(1, all));
  const SortedIndex sorted(index);
  const Tensor shares = Tensor::empty({most * of_pair}, DType::bf16, index.device());
  to.data = pointer<kernel_bf16>(shares);
  for (; to.first_pair < all; to.first_pair += most) {
    const int64_t pairs = std::min(most, all - to.first_pair);
    with_width(call, [&](auto width) { run<decltype(width)::value>(call, shift, to, pairs); });
    launch({"listed_attention_fast_sums",
            dim3(blocks_for(pairs * p.Tk, kWarps), blocks_for(call.k.K + call.v.K, kSummed)),
            kWarps * kLanes},
           listed_attention_fast_sums, call, to, sorted.places(), pairs);
  }
}

void backward(const Backward& call, const Tensor& index, int64_t share_bytes) {
  const Problem& p = call.problem;
  const Device device = index.device();
  const Tensor shift = Tensor::empty({tiles_of_values(call), p.B, p.Tq, p.H}, DType::f32, device);
  Tensor dlogits;
  if (call.dbias != nullptr) {
    dlogits = Tensor::zeros({p.B, p.H, p.Tq, p.length}, DType::f32, device);
  }
  query_gradients(call, pointer<float>(shift), pointer_or_null<float>(dlogits));
  key_gradients(call, index, pointer<float>(shift), share_bytes);
  if (!dlogits.defined()) return;
  listed_attention_detail::sum_bias(dlogits, p.bias_rows, p.bias_heads, call.dbias);
}

}  // namespace linnet::cuda::listed_attention_fast
