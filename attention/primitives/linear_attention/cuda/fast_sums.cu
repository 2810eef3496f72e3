// Sums S and z over keys on tensor cores, of all keys or before each split of a sequence, so that
// splits can be computed side by side where there are fewer heads than a GPU has room for; and, for
// gradients, sums over queries after each split: dS = sum Q'^T dY and dz = sum Q'^T c, of
// fast_backward.h.
//
// A block sums over the tokens of one split of a row, or of a span of it, one key head and one tile
// of N value columns; the sums are then added up along the splits, in order. Bytes per token and
// key head: 2 K + 2 V (of gradients also 8 for D and c); operations 2 K V. K = V = 64: 256 bytes
// and 8,200 operations. The states of splits add less than a tenth. Re-weighted heads of K: 4 bytes
// more, operations 4 K V.
#include <algorithm>

#include "attention/primitives/linear_attention/cuda/fast_parts.h"
#include "attention/primitives/linear_attention/cuda/fast_tiles.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace linear_attention_detail;

constexpr int64_t kMinChunks = 4;  // of a split

struct Arguments {
  Reads left, right;  // k and v; of gradients q and dy
  const uint8_t* mask;
  StatePointers<float> out;  // of each split
  FeatureSource source;
  bool of_gradients;
  const float* denominators;  // of gradients; null: nothing is divided
  const float* corrections;
  Division division;
  const int32_t* spans;
  int64_t states, split_tokens;
  int state_heads, first_split;
  int tiles;  // of value columns
};

template <int M, int N>
struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : left(arena.take<kernel_bf16>(size_t{2} * kChunk * (M + kPadding))),
        right(arena.take<kernel_bf16>(size_t{2} * kChunk * (N + kPadding))),
        corrections(arena.take<float>(size_t{2} * kChunk)) {}
  kernel_bf16 *left, *right;  // double-buffered
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
  const int64_t split = a.first_split + static_cast<int64_t>(blockIdx.y);
  const int64_t start = part.begin + split * a.split_tokens;
  const int64_t end = min(part.end, start + a.split_tokens);
  // Heads of queries that share a state are processed one after the other, chunk by chunk.
  const int group = heads / a.state_heads;
  const int steps = start < end ? static_cast<int>((end - start + kChunk - 1) / kChunk) * group : 0;
  const StatePlace place{(split * a.states + state_number) * a.state_heads + state_head,
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
  if (!a.of_gradients) return state.store_normalizer(to, place.features);
  if (thread < place.features) to[thread] = mass;
}

template <int M>
void run(Arguments a, int64_t splits) {
  constexpr int N = kValueColumns<M>;
  a.tiles = static_cast<int>((a.right.K + N - 1) / N);
  launch({"linear_attention_fast_sums",
          dim3(blocks_for(a.states * a.state_heads * a.tiles, 1), static_cast<unsigned>(splits)),
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

// The sums of so many splits.
void sum_splits(Arguments a, const SplitSizes& sizes, int64_t splits,
                const LinearAttentionState<float>& out) {
  a.split_tokens = sizes.tokens;
  a.out = {out.memory, out.mass};
  for_width(a.source.features(), [&](auto width) { run<width>(a, splits); });
}

// From the sum of each split to that of all splits before it, or after it, and the carried state to
// the first of them (null: nothing).
void add_up(const Tensor& sums, int64_t splits, const float* carried, bool after) {
  const int64_t size = sums.elements() / splits;
  float* elements = pointer<float>(sums);
  for_each("linear_attention_fast_starts", size, [=] __device__(int64_t i) {
    float before = carried == nullptr ? 0.0f : carried[i];
    for (int64_t n = 0; n < splits; ++n) {
      float* at = elements + (after ? splits - 1 - n : n) * size + i;
      const float own = n + 1 < splits ? *at : 0.0f;
      *at = before;
      before += own;
    }
  });
}

Splits make_splits(Arguments a, const SplitSizes& sizes,
                   const LinearAttentionState<const float>& carried, Device device) {
  Splits splits;
  splits.sizes = sizes;
  if (sizes.count == 1) return splits;
  const int64_t states = sizes.count * a.states;
  const int64_t features = a.source.features();
  splits.memory = Tensor::empty({states, a.state_heads, features, a.right.K}, DType::f32, device);
  splits.mass = Tensor::empty({states, a.state_heads, features}, DType::f32, device);
  // The sum of the last split, or of the first one, is nobody's start.
  a.first_split = a.of_gradients ? 1 : 0;
  sum_splits(a, sizes, sizes.count - 1,
             {pointer<float>(splits.memory), pointer<float>(splits.mass)});
  add_up(splits.memory, sizes.count, carried.memory, a.of_gradients);
  add_up(splits.mass, sizes.count, carried.mass, a.of_gradients);
  return splits;
}

// Segments and decaying states forget the splits before them.
template <typename Call>
SplitSizes causal_split_sizes(const Call& call, int64_t blocks) {
  const bool can_split = call.segments == nullptr && call.log_decay == nullptr;
  return can_split ? split_sizes(call.k.T, blocks) : SplitSizes{1, call.k.T};
}

// to = the sum of `count` arrays like it, in order.
void add_all(const Tensor& arrays, int64_t count, float* to) {
  const int64_t size = arrays.elements() / count;
  const auto* elements = pointer<const float>(arrays);
  for_each("linear_attention_fast_total", size, [=] __device__(int64_t i) {
    float sum = 0;
    for (int64_t array = 0; array < count; ++array) sum += elements[array * size + i];
    to[i] = sum;
  });
}

}  // namespace

SplitSizes split_sizes(int64_t tokens, int64_t blocks, int64_t enough) {
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

LinearAttentionState<const float> Splits::states(
    const LinearAttentionState<const float>& carried) const {
  if (sizes.count == 1) return carried;
  return {pointer<const float>(memory), pointer<const float>(mass)};
}

Splits splits_of(const Forward& call, int64_t blocks) {
  return make_splits(sums_of_keys(call), causal_split_sizes(call, blocks), call.state_in,
                     call.device);
}

Splits splits_of(const Backward& call, int64_t blocks) {
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
  return splits_of(same, blocks);
}

Splits gradient_splits_of(const Backward& call, int64_t blocks) {
  return make_splits(sums_of_gradients(call), causal_split_sizes(call, blocks), call.dstate_out,
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
  const SplitSizes sizes = split_sizes(call.spans.most_tokens(call.k.T), states * call.k.H * tiles);
  const int64_t features = key_source(call).features();
  const Partials partials(sizes.count, {states, call.k.H, features, call.v.K}, call.device);
  sum_splits(sums_of_keys(call), sizes, sizes.count, partials.place(call.state_out));
  partials.add_to(call.state_out);
}

}  // namespace linnet::cuda::linear_attention_fast
