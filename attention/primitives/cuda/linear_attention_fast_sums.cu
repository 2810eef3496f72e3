// Sums S and z over keys on tensor cores: of all keys, or before each piece of a sequence, so that
// pieces can be computed side by side where there are fewer heads than a GPU has room for.
//
// A block sums S and z over the keys of one piece of a row, or of a span of it, one key head and
// one tile of N value columns; the sums are then added up along the pieces, in order. Bytes a token
// and key head: 2 K + 2 V; operations 2 K V. K = V = 64: 256 bytes and 8,200 operations. Predicted,
// never measured: all keys of batch 16, 12 heads, 8192 tokens, width 64 on an H200 84 us at 4.8
// TB/s (94 us at the 4.3 that a copy reaches) and 35 us of tensor cores at 370 TFLOP/s, so that
// memory bounds it; the states of pieces add less than a tenth.
#include <algorithm>

#include "attention/primitives/cuda/linear_attention_fast.h"
#include "attention/primitives/cuda/linear_attention_tiles.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace linear_attention_detail;

constexpr int64_t kFewestChunks = 4;  // of a piece

struct Arguments {
  Reads k, v;
  const uint8_t* key_mask;
  StatePointers<float> out;  // of each piece
  FeatureMap map;
  const int32_t* spans;
  int64_t states, piece_tokens;
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
  const int key_heads = static_cast<int>(a.k.H);
  const int first = static_cast<int>(blockIdx.x % a.tiles) * N;
  const int key_head = static_cast<int>(blockIdx.x / a.tiles % key_heads);
  const int64_t state_number = blockIdx.x / a.tiles / key_heads;
  const RowPart part = part_of_state(a.spans, state_number, a.k.T);
  const Reads k = row_view(a.k, part), v = row_view(a.v, part);
  const uint8_t* mask = row_mask(a.key_mask, part.row, a.k.T);
  const int64_t start = part.begin + blockIdx.y * a.piece_tokens;
  const int64_t end = min(part.end, start + a.piece_tokens);
  const StatePlace place{(blockIdx.y * a.states + state_number) * key_heads + key_head,
                         static_cast<int>(a.k.K), static_cast<int>(a.v.K), first};

  AsyncCopies copies;
  uint32_t counts = 0;
  const auto keys = [&](int64_t token) {
    return shared.k + (token - start) / kChunk % 2 * kChunk * (M + kPadding);
  };
  const auto values_of = [&](int64_t token) {
    return shared.v + (token - start) / kChunk % 2 * kChunk * (N + kPadding);
  };
  const auto begin = [&](int64_t token) {
    counts = begin_copy<M>(copies, keys(token), {k, mask, 0, token, key_head, 0});
    begin_copy<N>(copies, values_of(token), {v, mask, 0, token, key_head, first});
    copies.commit();
  };
  StateTile<M, N> state;
  state.load({nullptr, nullptr}, place);
  if (start < end) begin(start);
  for (int64_t token = start; token < end; token += kChunk) {
    copies.wait<0>();
    map_features<M>(keys(token), counts, a.map, 1, [](int) { return 1.0f; });
    __syncthreads();  // this chunk is there; the other stage is free
    if (token + kChunk < end) begin(token + kChunk);
    state.template add<true>(keys(token), values_of(token));
  }
  state.store(a.out, place);
  if (first == 0) {
    state.store_mass(a.out.mass + place.number * place.features, place.features);
  }
}

template <int M>
void run(const Forward& call, const Cut& cut, int64_t pieces, StatePointers<float> out) {
  constexpr int N = kValueColumns<M>;
  Arguments a{};
  a.k = call.k;
  a.v = call.v;
  a.key_mask = call.key_mask;
  a.out = out;
  a.map = call.options.feature_map;
  a.spans = call.spans.table;
  a.states = call.spans.states(call.k.B);
  a.piece_tokens = cut.tokens;
  a.tiles = static_cast<int>((call.v.K + N - 1) / N);
  launch({"linear_attention_fast_sums",
          dim3(blocks_for(a.states * call.k.H * a.tiles, 1), static_cast<unsigned>(pieces)),
          kTileThreads, shared_bytes<Layout<M, N>>()},
         linear_attention_fast_sums<M, N>, a);
}

// The sums of so many pieces, the first ones.
void sum_pieces(const Forward& call, const Cut& cut, int64_t pieces, StatePointers<float> out) {
  for_width(call.k.K, [&](auto width) { run<width>(call, cut, pieces, out); });
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

// to = the sum of `count` arrays like it, in order.
void add_all(const Tensor& arrays, int64_t count, float* to) {
  const int64_t size = arrays.elements() / count;
  const auto* numbers = pointer<const float>(arrays);
  for_each("linear_attention_fast_total", size, [=] __device__(int64_t i) {
    float sum = 0;
    for (int64_t array = 0; array < count; ++array) sum += numbers[array * size + i];
    to[i] = sum;
  });
}

}  // namespace

Cut cut_of(int64_t tokens, int64_t blocks, int64_t enough) {
  const int64_t chunks = (tokens + kChunk - 1) / kChunk;
  if (blocks == 0 || blocks >= enough || chunks < 2 * kFewestChunks) return {1, tokens};
  const int64_t wanted = std::min((enough + blocks - 1) / blocks, chunks / kFewestChunks);
  const int64_t chunks_each = (chunks + wanted - 1) / wanted;
  return {(chunks + chunks_each - 1) / chunks_each, chunks_each * kChunk};
}

Partials::Partials(int64_t count, const Shape& shape, Device device) : count_(count) {
  if (count == 1) return;
  memory_ = Tensor::empty({count * shape[0], shape[1], shape[2], shape[3]}, DType::f32, device);
  mass_ = Tensor::empty({count * shape[0], shape[1], shape[2]}, DType::f32, device);
}

LinearAttentionState<float> Partials::place(const LinearAttentionState<float>& total) const {
  if (count_ == 1) return total;
  return {pointer<float>(memory_), pointer<float>(mass_)};
}

void Partials::add_to(const LinearAttentionState<float>& total) const {
  if (count_ == 1) return;
  add_all(memory_, count_, total.memory);
  add_all(mass_, count_, total.mass);
}

Pieces pieces_of(const Forward& call, int64_t blocks) {
  Pieces pieces;
  pieces.cut = cut_of(call.k.T, blocks);
  if (pieces.cut.count == 1) return pieces;
  const int64_t states = pieces.cut.count * call.k.B;
  pieces.memory = Tensor::empty({states, call.k.H, call.k.K, call.v.K}, DType::f32, call.device);
  pieces.mass = Tensor::empty({states, call.k.H, call.k.K}, DType::f32, call.device);
  // The last piece's sum is nobody's start.
  sum_pieces(call, pieces.cut, pieces.cut.count - 1,
             {pointer<float>(pieces.memory), pointer<float>(pieces.mass)});
  add_up(pieces.memory, pieces.cut.count, call.state_in.memory);
  add_up(pieces.mass, pieces.cut.count, call.state_in.mass);
  return pieces;
}

void memory_forward(const Forward& call) {
  const int64_t tiles = (call.v.K + kChunk - 1) / kChunk;
  const int64_t states = call.spans.states(call.k.B);
  const Cut cut = cut_of(call.spans.most_tokens(call.k.T), states * call.k.H * tiles);
  const Partials partials(cut.count, {states, call.k.H, call.k.K, call.v.K}, call.device);
  const LinearAttentionState<float> out = partials.place(call.state_out);
  sum_pieces(call, cut, cut.count, {out.memory, out.mass});
  partials.add_to(call.state_out);
}

}  // namespace linnet::cuda::linear_attention_fast
