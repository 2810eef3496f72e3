// The state of linear attention before each piece of a sequence, so that pieces can be computed
// side by side where there are fewer heads than a GPU has room for.
//
// A block sums S and z over the keys of one piece, one key head and one tile of N value columns;
// the sums are then added up along the pieces, in order. Bytes a token and key head: 2 K + 2 V,
// once more than without pieces; operations 2 K V.
#include <algorithm>

#include "attention/primitives/cuda/linear_attention_fast.h"
#include "attention/primitives/cuda/linear_attention_tiles.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace linear_attention_detail;

constexpr int64_t kEnoughBlocks = 264;  // two for each multiprocessor of an H200
constexpr int64_t kFewestChunks = 4;    // of a piece

struct Arguments {
  Reads k, v;
  const uint8_t* key_mask;
  StatePointers<float> out;  // of each piece
  FeatureMap map;
  int64_t piece_tokens;
  int tiles;  // of value columns
};

template <int M, int N>
struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : k(arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding))),
        v(arena.take<kernel_bf16>(size_t{2} * kChunk * (N + kPadding))) {}
  kernel_bf16 *k, *v;  // two stages by turns
};

template <int M, int N>
__global__ __launch_bounds__(kTileThreads) void linear_attention_fast_sums(Arguments a) {
  SharedArena arena;
  const Layout<M, N> shared(arena);
  const int key_heads = static_cast<int>(a.k.H), values = static_cast<int>(a.v.K);
  const int first = static_cast<int>(blockIdx.x % a.tiles) * N;
  const int key_head = static_cast<int>(blockIdx.x / a.tiles % key_heads);
  const int64_t row = blockIdx.x / a.tiles / key_heads;
  const int64_t start = blockIdx.y * a.piece_tokens, end = min(a.k.T, start + a.piece_tokens);
  const int64_t number = (blockIdx.y * a.k.B + row) * key_heads + key_head;

  AsyncCopies copies;
  uint32_t counts = 0;
  const auto keys = [&](int64_t token) {
    return shared.k + token / kChunk % 2 * kChunk * (M + kPadding);
  };
  const auto values_of = [&](int64_t token) {
    return shared.v + token / kChunk % 2 * kChunk * (N + kPadding);
  };
  const auto begin = [&](int64_t token) {
    counts = begin_copy<M>(copies, keys(token), {a.k, a.key_mask, row, token, key_head, 0});
    begin_copy<N>(copies, values_of(token), {a.v, a.key_mask, row, token, key_head, first});
    copies.commit();
  };
  StateTile<M, N> state;
  state.load({nullptr, nullptr}, 0, 0, values);
  begin(start);
  for (int64_t token = start; token < end; token += kChunk) {
    copies.wait<0>();
    map_features<M>(keys(token), counts, a.map, 1, [](int) { return 1.0f; });
    __syncthreads();  // this chunk is there; the other stage is free
    if (token + kChunk < end) begin(token + kChunk);
    state.template add<true>(keys(token), values_of(token));
  }
  state.store(a.out, number, first, values);
  if (first == 0) state.store_mass(a.out.mass + number * M);
}

template <int M>
void run(const Forward& call, const Pieces& pieces) {
  constexpr int N = M < 64 ? M : 64;
  Arguments a{};
  a.k = call.k;
  a.v = call.v;
  a.key_mask = call.key_mask;
  a.out = {pointer<float>(pieces.memory), pointer<float>(pieces.mass)};
  a.map = call.options.feature_map;
  a.piece_tokens = pieces.tokens;
  a.tiles = static_cast<int>((call.v.K + N - 1) / N);
  launch(
      {"linear_attention_fast_sums",
       // The last piece's sum is nobody's start.
       dim3(blocks_for(call.k.B * call.k.H * a.tiles, 1), static_cast<unsigned>(pieces.count - 1)),
       kTileThreads, shared_bytes<Layout<M, N>>()},
      linear_attention_fast_sums<M, N>, a);
}

// From the sum of each piece to that of all pieces before it, and the carried state (null: none).
void add_up(const Tensor& sums, int64_t pieces, const float* carried) {
  const int64_t size = sums.elements() / pieces;
  float* numbers = pointer<float>(sums);
  for_each("linear_attention_fast_starts", size, [=] __device__(int64_t i) {
    float before = carried == nullptr ? 0.0f : carried[i];
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const float own = piece + 1 < pieces ? numbers[piece * size + i] : 0.0f;
      numbers[piece * size + i] = before;
      before += own;
    }
  });
}

}  // namespace

Pieces pieces_of(const Forward& call, int64_t blocks) {
  const int64_t chunks = (call.k.T + kChunk - 1) / kChunk;
  Pieces pieces;
  if (blocks == 0 || blocks >= kEnoughBlocks || chunks < 2 * kFewestChunks) return pieces;
  const int64_t wanted = std::min((kEnoughBlocks + blocks - 1) / blocks, chunks / kFewestChunks);
  const int64_t chunks_each = (chunks + wanted - 1) / wanted;
  pieces.tokens = chunks_each * kChunk;
  pieces.count = (chunks + chunks_each - 1) / chunks_each;
  const int64_t states = pieces.count * call.k.B;
  pieces.memory = Tensor::empty({states, call.k.H, call.k.K, call.v.K}, DType::f32, call.device);
  pieces.mass = Tensor::empty({states, call.k.H, call.k.K}, DType::f32, call.device);
  switch (call.k.K) {
    case 16:
      run<16>(call, pieces);
      break;
    case 32:
      run<32>(call, pieces);
      break;
    case 64:
      run<64>(call, pieces);
      break;
    default:
      run<128>(call, pieces);
  }
  add_up(pieces.memory, pieces.count, call.state_in.memory);
  add_up(pieces.mass, pieces.count, call.state_in.mass);
  return pieces;
}

}  // namespace linnet::cuda::linear_attention_fast
