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
#include <tuple>
#include <utility>

#include "attention/primitives/linear_attention/cuda/fast_parts.h"
#include "attention/primitives/linear_attention/cuda/fast_tiles.h"
#include "attention/tensor_core/splits.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::linear_attention_fast {
namespace {

using namespace linear_attention_detail;

// That share a multiprocessor: registers bound them.
template <int M>
inline constexpr int kBlocks = M < 128 ? 4 : 2;
constexpr int64_t kSumBlocks = kBlocks<64>;

// What a launch adds to a call, whose k and v are q and dy where sums are over queries.
struct SumSplit {
  const float* corrections;  // c, of sums over queries; null: over keys
  int64_t states, split_tokens;
  int first_split, tiles;  // tiles: of value columns
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
__global__ __launch_bounds__(kTileThreads, kBlocks<M>) void linear_attention_fast_sums(
    const __grid_constant__ Forward a, const __grid_constant__ SumSplit of_splits) {
  using Part = TilePart<M>;
  constexpr int kStride = M + kPadding, kCopied = 2;  // parts of a tile at once: registers
  SharedArena arena;
  const Layout<M, N> shared(arena);
  const int thread = static_cast<int>(threadIdx.x), heads = static_cast<int>(a.k.H);
  const int state_heads = static_cast<int>(a.key_heads);
  const int first = static_cast<int>(blockIdx.x % of_splits.tiles) * N;
  const int state_head = static_cast<int>(blockIdx.x / of_splits.tiles % state_heads);
  const int64_t state_number = blockIdx.x / of_splits.tiles / state_heads;
  const RowPart part = part_of_state(a.spans.table, state_number, a.k.T);
  const Reads left = row_view(a.k, part), right = row_view(a.v, part);
  const uint8_t* mask = row_mask(a.key_mask, part.row, a.k.T);
  const int64_t split = of_splits.first_split + static_cast<int64_t>(blockIdx.y);
  const int64_t start = part.begin + split * of_splits.split_tokens;
  const int64_t end = min(part.end, start + of_splits.split_tokens);
  // Heads of queries that share a state are processed one after the other, chunk by chunk.
  const int group = heads / state_heads;
  const int steps = start < end ? static_cast<int>((end - start + kChunk - 1) / kChunk) * group : 0;
  const StatePlace place{(split * of_splits.states + state_number) * state_heads + state_head,
                         a.keys.features(), static_cast<int>(a.v.K), first};
  const FeatureSource source = a.keys.of_row(part.row * a.k.T * heads);
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
    counts = begin_features<M, FourWarps, kCopied>(
        copies, shared.left + step % 2 * kChunk * kStride, left_from(step), source);
    begin_copy<N, FourWarps, kCopied>(copies, shared.right + step % 2 * kChunk * (N + kPadding),
                                      {right, mask, 0, token, head, first});
    copies.commit();
    if (a.denominators == nullptr) return;
    const int64_t at = (part.row * a.k.T + token) * heads + head;
    const bool inside = thread < kChunk && token + thread < part.end;
    if (inside) prefetch(a.denominators + at + thread * heads);
    correction = inside ? of_splits.corrections[at + thread * heads] : 0.0f;
  };

  StateTile<M, N> state;
  state.load(nullptr, nullptr, place);
  float mass = 0;  // dz of feature number `thread`
  if (steps > 0) begin(0);
  for (int step = 0; step < steps; ++step) {
    kernel_bf16* features = shared.left + step % 2 * kChunk * kStride;
    float* corrections = shared.corrections + step % 2 * kChunk;
    copies.wait<0>();
    const int64_t at = (part.row * a.k.T + left_from(step).begin) * heads + left_from(step).head;
    const auto factor = [&](int i) {  // 1 / D
      if (a.denominators == nullptr || (counts >> i & 1) == 0) return 1.0f;
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
  state.store(a.state_out.memory, place);
  if (first > 0) return;
  float* to = a.state_out.mass + place.number * place.features;
  if (of_splits.corrections == nullptr) return state.store_normalizer(to, place.features);
  if (thread < place.features) to[thread] = mass;
}

template <int M>
void run(const Forward& a, SumSplit of_splits, int64_t splits) {
  constexpr int N = kValueColumns<M>;
  of_splits.tiles = static_cast<int>((a.v.K + N - 1) / N);
  launch({"linear_attention_fast_sums",
          dim3(blocks_for(of_splits.states * a.key_heads * of_splits.tiles, 1),
               static_cast<unsigned>(splits)),
          kTileThreads, shared_bytes<Layout<M, N>>()},
         linear_attention_fast_sums<M, N>, a, of_splits);
}

// The sums of `count` splits of so many tokens, from number `first` on, to a.state_out: over keys,
// or over queries, whose corrections are given.
void sum_splits(Forward a, const float* corrections, int64_t tokens, int first, int64_t count) {
  if (corrections == nullptr) a.denominators = nullptr;
  const SumSplit of_splits{corrections, a.spans.states(a.k.B), tokens, first, 0};
  for_width(a.keys.features(), [&](auto width) { run<width>(a, of_splits, count); });
}

// From the sums of splits, `parts` of each, to that of all splits before each, or after it, and the
// carried state (null: nothing).
void add_up(const Tensor& sums, const Tensor& starts, int64_t splits, int64_t parts,
            const float* carried, bool after) {
  const int64_t size = starts.elements() / splits;
  const float* elements = pointer<float>(sums);
  float* to = pointer<float>(starts);
  for_each("linear_attention_fast_starts", size, [=] __device__(int64_t i) {
    float before = carried == nullptr ? 0.0f : carried[i];
    for (int64_t n = 0; n < splits; ++n) {
      const int64_t split = after ? splits - 1 - n : n;
      to[split * size + i] = before;
      if (n + 1 == splits) return;
      const float* own = elements + split * parts * size + i;
      for (int64_t part = 0; part < parts; ++part) before += own[part * size];
    }
  });
}

// In how many parts the sums of splits are made, so that their blocks fill a GPU: a divisor of the
// chunks of a split.
int64_t parts_of_split(const SplitSizes& sizes, int64_t blocks) {
  const int64_t chunks = sizes.tokens / kChunk, sums = (sizes.count - 1) * blocks;
  int64_t parts = 1;
  for (int64_t wanted = 2; wanted <= chunks / tensor_core::kMinSplitChunks; ++wanted) {
    if (chunks % wanted == 0 && sums * parts < kSumBlocks * kMultiprocessors) parts = wanted;
  }
  return parts;
}

// The states with which splits begin, from call.state_in on; over queries, backward in time.
Splits make_splits(Forward call, const float* corrections, int64_t blocks, int64_t slots,
                   int64_t state_eighths) {
  // Segments and decaying states forget the splits before them.
  const bool can_split = call.segments == nullptr && call.log_decay == nullptr;
  Splits splits;
  splits.sizes =
      can_split ? split_sizes(call.k.T, blocks, slots, state_eighths) : SplitSizes{1, call.k.T};
  const int64_t count = splits.sizes.count;
  if (count == 1) return splits;
  const auto room = [&](int64_t states) {
    const Shape mass{states * call.k.B, call.key_heads, call.keys.features()};
    return std::pair(Tensor::empty({mass[0], mass[1], mass[2], call.v.K}, DType::f32, call.device),
                     Tensor::empty(mass, DType::f32, call.device));
  };
  const bool after = corrections != nullptr;
  const int64_t parts = parts_of_split(splits.sizes, blocks);
  const auto [memory, mass] = room(count * parts);
  call.state_out = {pointer<float>(memory), pointer<float>(mass)};
  // Nobody begins with the last split's sums; backward in time that is the first.
  sum_splits(call, corrections, splits.sizes.tokens / parts, static_cast<int>(after ? parts : 0),
             (count - 1) * parts);
  std::tie(splits.memory, splits.mass) = room(count);
  add_up(memory, splits.memory, count, parts, call.state_in.memory, after);
  add_up(mass, splits.mass, count, parts, call.state_in.mass, after);
  return splits;
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

SplitSizes split_sizes(int64_t tokens, int64_t blocks, int64_t slots, int64_t state_eighths) {
  return tensor_core::split_sizes(tokens, blocks, slots, {state_eighths, 0});
}

Partials::Partials(int64_t count, const Shape& shape, Device device) : count_(count) {
  if (count == 1) return;
  memory_ = Tensor::empty({count * shape[0], shape[1], shape[2], shape[3]}, DType::f32, device);
  mass_ = Tensor::empty({count * shape[0], shape[1], shape[2]}, DType::f32, device);
}

LinearAttentionState<float> Partials::place(const LinearAttentionState<float>& total) const {
  if (count_ == 1) return total;
  return state_of<float>(memory_, mass_);
}

void Partials::add_to(const LinearAttentionState<float>& total) const {
  if (count_ == 1) return;
  add_all(memory_, count_, total.memory);
  add_all(mass_, count_, total.mass);
}

LinearAttentionState<const float> Splits::states(
    const LinearAttentionState<const float>& carried) const {
  if (sizes.count == 1) return carried;
  return state_of<const float>(memory, mass);
}

Splits splits_of(const Forward& call, int64_t blocks, int64_t slots, int64_t state_eighths) {
  return make_splits(call, nullptr, blocks, slots, state_eighths);
}

Splits gradient_splits_of(const Backward& call, int64_t blocks) {
  require(call.corrections != nullptr,
          "linear_attention: gradient_splits_of expected corrections, got none");
  Forward sums = call;
  sums.k = call.q;
  sums.v = call.dy;
  sums.keys = call.queries;
  sums.key_mask = call.query_mask;
  sums.state_in = call.dstate_out;
  return make_splits(sums, call.corrections, blocks, kSlots, 1);
}

void memory_forward(const Forward& call) {
  call.check_keys("memory_forward");
  const int64_t states = call.spans.states(call.k.B);
  if (needs_parts(call.keys)) {
    for (const Columns& columns : parts_of(call.k.K)) {
      const StateRows rows{states * call.key_heads, call.keys, columns, call.v.K, call.device};
      const PartState sums = rows.room(call.state_out);
      Forward part = part_of(call, columns);
      part.state_out = sums.pointers<float>();
      memory_forward(part);
      rows.put(sums, call.state_out);
    }
    return;
  }
  const int64_t tiles = (call.v.K + kChunk - 1) / kChunk;
  const SplitSizes sizes =
      split_sizes(call.spans.most_tokens(call.k.T), states * call.key_heads * tiles);
  const Partials partials(sizes.count, {states, call.key_heads, call.keys.features(), call.v.K},
                          call.device);
  Forward sums = call;
  sums.state_out = partials.place(call.state_out);
  sum_splits(sums, nullptr, sizes.tokens, 0, sizes.count);
  partials.add_to(call.state_out);
}

}  // namespace linnet::cuda::linear_attention_fast
