// Sums S and z over keys on tensor cores, of all keys or before each piece of a sequence, so that
// pieces can be computed side by side where there are fewer heads than a GPU has room for; and, for
// gradients, sums over queries after each piece: dS = sum Q'^T dY and dz = sum Q'^T c, of
// fast_backward.h.
//
// A block sums over the tokens of one piece of a row, or of a span of it, one key head and one tile
// of N value columns; the sums are then added up along the pieces, in order. Bytes a token and key
// head: 2 K + 2 V (of gradients also 8 for D and c); operations 2 K V. K = V = 64: 256 bytes and
// 8,200 operations. The states of pieces add less than a tenth. Re-weighted heads of K: 4 bytes
// more, operations 4 K V.
#include <algorithm>

#include "attention/primitives/linear_attention/cuda/fast_parts.h"
#include "attention/primitives/linear_attention/cuda/fast_tiles.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace linear_attention_detail;

constexpr int64_t kMinChunks = 4;  // of a piece

struct Arguments {
  Reads left, right;  // k and v; of gradients q and dy
  const uint8_t* mask;
  StatePointers<float> out;  // of each piece
  FeatureSource source;
  bool of_gradients;
  const float* denominators;  // of gradients; null: nothing is divided
  const float* corrections;
  Division division;
  const int32_t* spans;
  int64_t states, piece_tokens;
  int state_heads, first_piece;
  int tiles;  // of value columns
};

template <int M, int N>
struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : left(arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding))),
        right(arena.take<kernel_bf16>(size_t{2} * kChunk * (N + kPadding))),
        corrections(arena.take<float>(size_t{2} * kChunk)) {}
  kernel_bf16 *left, *right;  // two stages by turns
  float* corrections;
};

template <int M, int N>
__global__ __launch_bounds__(kTileThreads,
                             M < 128 ? 5 : 2) void linear_attention_fast_sums(Arguments a) {
  using Part = TilePart<M>;
  constexpr int kStride = M + kPadding;
  SharedArena arena;
  const Layout<M, N> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), heads = static_cast<int>(a.left.H);
  const int first = static_cast<int>(blockIdx.x % a.tiles) * N;
  const int state_head = static_cast<int>(blockIdx.x / a.tiles % a.state_heads);
  const int64_t state_number = blockIdx.x / a.tiles / a.state_heads;
  const RowPart part = part_of_state(a.spans, state_number, a.left.T);
  const Reads left = row_view(a.left, part), right = row_view(a.right, part);
  const uint8_t* mask = row_mask(a.mask, part.row, a.left.T);
  const int64_t piece = a.first_piece + static_cast<int64_t>(blockIdx.y);
  const int64_t start = part.begin + piece * a.piece_tokens;
  const int64_t end = min(part.end, start + a.piece_tokens);
  // Heads of queries that share a state are visited in turn, chunk by chunk.
  const int group = heads / a.state_heads;
  const int steps = start < end ? static_cast<int>((end - start + kChunk - 1) / kChunk) * group : 0;
  const StatePlace place{(piece * a.states + state_number) * a.state_heads + state_head,
                         a.source.features(), static_cast<int>(a.right.K), first};
  const FeatureSource source = a.source.of_row(part.row * a.left.T * heads);
  const auto left_from = [&](int step) {
    return ReadPlace{
        left, mask, 0, start + int64_t{step / group} * kChunk, state_head * group + step % group,
        0};
  };
  AsyncCopies copies;
  uint32_t counts = 0;
  float correction = 0;  // c of token number `thread` of the chunk
  const auto begin = [&](int step) {
    const int64_t token = start + int64_t{step / group} * kChunk;
    const int head = state_head * group + step % group;
    counts = begin_features<M, FourWarps, 1>(copies, shared.left + step % 2 * kChunk * kStride,
                                             left_from(step), source);
    begin_copy<N, FourWarps, 1>(copies, shared.right + step % 2 * kChunk * (N + kPadding),
                                {right, mask, 0, token, head, first});
    copies.commit();
    if (a.denominators == nullptr) return;
    const int64_t at = (part.row * a.left.T + token) * heads + head;
    const bool inside = thread < kChunk && token + thread < part.end;
    if (inside) prefetch(a.denominators + at + thread * heads);
    correction = inside ? a.corrections[at + thread * heads] : 0.0f;
  };

  StateTile<M, N> state;
  state.load({nullptr, nullptr}, place);
  float mass = 0;  // dz of feature number `thread`
  if (steps > 0) begin(0);
  for (int step = 0; step < steps; ++step) {
    kernel_bf16* features = shared.left + step % 2 * kChunk * kStride;
    float* corrections = shared.corrections + step % 2 * kChunk;
    copies.wait<0>();
    const int64_t at = (part.row * a.left.T + left_from(step).begin) * heads + left_from(step).head;
    const auto factor = [&](int i) {  // 1 / D
      if (a.denominators == nullptr) return 1.0f;
      return reciprocal(a.division.divisor(a.denominators[at + Part::row(i) * heads]));
    };
    map_features<M, FourWarps, 1>(features, counts, source, left_from(step), factor);
    if (thread < kChunk) corrections[thread] = correction;
    __syncthreads();  // this chunk is there; the other stage is free
    if (step + 1 < steps) begin(step + 1);
    state.template add<true>(features, shared.right + step % 2 * kChunk * (N + kPadding));
    if (a.denominators == nullptr || thread >= M) continue;
    for (int token = 0; token < kChunk; ++token) {
      mass += corrections[token] * load(features + token * kStride + thread);
    }
  }
  state.store(a.out, place);
  if (first > 0) return;
  float* to = a.out.mass + place.number * place.features;
  if (!a.of_gradients) return state.store_mass(to, place.features);
  if (thread < place.features) to[thread] = mass;
}

template <int M>
void run(Arguments a, int64_t pieces) {
  constexpr int N = kValueColumns<M>;
  a.tiles = static_cast<int>((a.right.K + N - 1) / N);
  launch({"linear_attention_fast_sums",
          dim3(blocks_for(a.states * a.state_heads * a.tiles, 1), static_cast<unsigned>(pieces)),
          kTileThreads, shared_bytes<Layout<M, N>>()},
         linear_attention_fast_sums<M, N>, a);
}

Arguments sums_of_keys(const Forward& call) {
  Arguments a{};
  a.left = call.k;
  a.right = call.v;
  a.mask = call.key_mask;
  a.source = key_source(call);
  a.spans = call.spans.table;
  a.states = call.spans.states(call.k.B);
  a.state_heads = static_cast<int>(call.k.H);
  return a;
}

Arguments sums_of_gradients(const Backward& call) {
  Arguments a{};
  a.left = call.q;
  a.right = call.dy;
  a.mask = call.query_mask;
  a.source = query_source(call);
  a.of_gradients = true;
  a.denominators = call.options.normalizer == Normalizer::none ? nullptr : call.denominators;
  a.corrections = call.corrections;
  a.division = division_of(call.options);
  a.states = call.q.B;
  a.state_heads = static_cast<int>(call.k.H);
  return a;
}

// The sums of so many pieces.
void sum_pieces(Arguments a, const Cut& cut, int64_t pieces,
                const LinearAttentionState<float>& out) {
  a.piece_tokens = cut.tokens;
  a.out = {out.memory, out.mass};
  for_width(a.source.features(), [&](auto width) { run<width>(a, pieces); });
}

// From the sum of each piece to that of all pieces before it, or after it, and what is carried to
// the first of them (null: nothing).
void add_up(const Tensor& sums, int64_t pieces, const float* carried, bool after) {
  const int64_t size = sums.elements() / pieces;
  float* numbers = pointer<float>(sums);
  for_each("linear_attention_fast_starts", size, [=] __device__(int64_t i) {
    float before = carried == nullptr ? 0.0f : carried[i];
    for (int64_t n = 0; n < pieces; ++n) {
      float* at = numbers + (after ? pieces - 1 - n : n) * size + i;
      const float own = n + 1 < pieces ? *at : 0.0f;
      *at = before;
      before += own;
    }
  });
}

Pieces make_pieces(Arguments a, const Cut& cut, const LinearAttentionState<const float>& carried,
                   Device device) {
  Pieces pieces;
  pieces.cut = cut;
  if (cut.count == 1) return pieces;
  const int64_t states = cut.count * a.states;
  const int64_t features = a.source.features();
  pieces.memory = Tensor::empty({states, a.state_heads, features, a.right.K}, DType::f32, device);
  pieces.mass = Tensor::empty({states, a.state_heads, features}, DType::f32, device);
  // The sum of the last piece, or of the first one, is nobody's start.
  a.first_piece = a.of_gradients ? 1 : 0;
  sum_pieces(a, cut, cut.count - 1, {pointer<float>(pieces.memory), pointer<float>(pieces.mass)});
  add_up(pieces.memory, cut.count, carried.memory, a.of_gradients);
  add_up(pieces.mass, cut.count, carried.mass, a.of_gradients);
  return pieces;
}

// Segments and decaying states forget what pieces before them had.
template <typename Call>
Cut causal_cut_of(const Call& call, int64_t blocks) {
  const bool cut = call.segments == nullptr && call.log_decay == nullptr;
  return cut ? cut_of(call.k.T, blocks) : Cut{1, call.k.T};
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
  if (blocks == 0 || blocks >= enough || chunks < 2 * kMinChunks) return {1, tokens};
  const int64_t wanted = std::min((enough + blocks - 1) / blocks, chunks / kMinChunks);
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

LinearAttentionState<const float> Pieces::states(
    const LinearAttentionState<const float>& carried) const {
  if (cut.count == 1) return carried;
  return {pointer<const float>(memory), pointer<const float>(mass)};
}

Pieces pieces_of(const Forward& call, int64_t blocks) {
  return make_pieces(sums_of_keys(call), causal_cut_of(call, blocks), call.state_in, call.device);
}

Pieces pieces_of(const Backward& call, int64_t blocks) {
  Forward same;
  same.device = call.device;
  same.options = call.options;
  same.q = call.q;
  same.k = call.k;
  same.v = call.v;
  same.key_mask = call.key_mask;
  same.key_proportions = call.key_proportions;
  same.segments = call.segments;
  same.log_decay = call.log_decay;
  same.state_in = call.state_in;
  return pieces_of(same, blocks);
}

Pieces gradient_pieces_of(const Backward& call, int64_t blocks) {
  return make_pieces(sums_of_gradients(call), causal_cut_of(call, blocks), call.dstate_out,
                     call.device);
}

void memory_forward(const Forward& call) {
  const bool reweighted = call.key_proportions != nullptr;
  if (needs_parts(call.k.K, reweighted)) {
    for (const Columns& columns : parts_of(call.k.K)) {
      const StateRows rows{call.spans.states(call.k.B) * call.k.H,
                           call.k.K,
                           reweighted,
                           columns,
                           call.v.K,
                           call.device};
      const PartState sums = rows.room(call.state_out);
      Forward part = part_of(call, columns);
      part.state_out = sums.pointers();
      memory_forward(part);
      rows.put(sums, call.state_out);
    }
    return;
  }
  const int64_t tiles = (call.v.K + kChunk - 1) / kChunk;
  const int64_t states = call.spans.states(call.k.B);
  const Cut cut = cut_of(call.spans.most_tokens(call.k.T), states * call.k.H * tiles);
  const int64_t features = key_source(call).features();
  const Partials partials(cut.count, {states, call.k.H, features, call.v.K}, call.device);
  sum_pieces(sums_of_keys(call), cut, cut.count, partials.place(call.state_out));
  partials.add_to(call.state_out);
}

}  // namespace linnet::cuda::linear_attention_fast
