// One token of linear attention: a block has 32 columns of one head's state, 8 threads a column.
#include "attention/primitives/linear_attention/cuda/step.h"

#include "attention/primitives/linear_attention/cuda/features.h"
#include "core/cuda/block_reduce.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

using namespace linear_attention_detail;

constexpr int kColumns = 32, kParts = 8;
constexpr int kThreads = kColumns * kParts;

struct Step {
  StoredValues q, k, v;
  const float *query_proportions, *key_proportions, *log_decay, *memory_in, *mass_in;
  const uint8_t *query_mask, *key_mask;
  float *y, *memory_out, *mass_out, *denominators;
  int heads, key_heads, width, features, values, tiles;
  bool channel_decay;
  FeatureMap map;
  float scale;
  Division division;
};

struct Layout {
  __host__ __device__ Layout(SharedArena& arena, int features)
      : left(arena.take<float>(static_cast<size_t>(features))),
        keys(arena.take<float>(static_cast<size_t>(features))),
        queries(arena.take<float>(static_cast<size_t>(features))),
        sums(arena.take<float>(kThreads)),
        scratch(arena.take<float>(33)) {}
  float *left, *keys, *queries, *sums, *scratch;
};

// phi(scale x) of one head to `out`, with its proportion where there is one; zeros where nothing
// counts.
__device__ __forceinline__ void write_features(const Step& a, const StoredValues& x,
                                               const float* proportions, int64_t head, float scale,
                                               bool counts, float* out) {
  const bool reweighted = proportions != nullptr;
  const float angle = counts && reweighted ? kHalfPi * proportions[head] : 0.0f;
  for (int i = static_cast<int>(threadIdx.x); i < a.width; i += kThreads) {
    const float value = counts ? feature(a.map, x.at(head * a.width + i) * scale) : 0.0f;
    out[i] = reweighted ? value * cosf(angle) : value;
    if (reweighted) out[a.width + i] = value * sinf(angle);
  }
}

// Query heads that share a state compute it each; the first of them writes it.
__global__ void linear_attention_one_token(Step a) {
  SharedArena arena;
  const Layout shared(arena, a.features);
  const int thread = static_cast<int>(threadIdx.x), part = thread / kColumns;
  const int tile = static_cast<int>(blockIdx.x) % a.tiles;
  const int64_t reader = blockIdx.x / a.tiles, row = reader / a.heads;
  const int group = a.heads / a.key_heads, head = static_cast<int>(reader % a.heads);
  const int64_t number = row * a.key_heads + head / group;
  const bool reads = is_set(a.query_mask, row), writes = is_set(a.key_mask, row);
  const bool keeps = head % group == 0;
  const bool decays = writes && a.log_decay != nullptr;
  for (int r = thread; r < a.features; r += kThreads) {
    const int64_t place = a.channel_decay ? number * a.features + r : number;
    shared.left[r] = decays ? expf(a.log_decay[place]) : 1.0f;
  }
  write_features(a, a.k, a.key_proportions, number, 1, writes, shared.keys);
  write_features(a, a.q, a.query_proportions, reader, a.scale, reads, shared.queries);
  __syncthreads();

  float denominator = 0;
  for (int r = thread; r < a.features; r += kThreads) {
    const int64_t at = number * a.features + r;
    float mass = a.mass_in != nullptr ? shared.left[r] * a.mass_in[at] : 0.0f;
    mass += shared.keys[r];
    denominator += shared.queries[r] * mass;
    if (keeps && tile == 0) a.mass_out[at] = mass;
  }
  denominator = block_sum(denominator, shared.scratch);

  const int column = tile * kColumns + thread % kColumns;
  float sum = 0;
  if (column < a.values) {
    const float value = writes ? a.v.at(number * a.values + column) : 0.0f;
    for (int r = part; r < a.features; r += kParts) {
      const int64_t at = (number * a.features + r) * a.values + column;
      float state = a.memory_in != nullptr ? shared.left[r] * a.memory_in[at] : 0.0f;
      state += shared.keys[r] * value;
      sum += shared.queries[r] * state;
      if (keeps) a.memory_out[at] = state;
    }
  }
  shared.sums[thread] = sum;
  __syncthreads();
  if (part == 0 && column < a.values) {
    float total = 0;
    for (int i = 0; i < kParts; ++i) total += shared.sums[i * kColumns + thread];
    a.y[reader * a.values + column] = reads ? total / a.division.divisor(denominator) : 0.0f;
  }
  if (tile == 0 && thread == 0) a.denominators[reader] = reads ? denominator : 0.0f;
}

}  // namespace

void linear_attention_step(const LinearAttentionTensors& in, const Tensor& y, const Tensor& memory,
                           const Tensor& mass, const Tensor& denominators) {
  Step a{};
  a.q = stored_values(in.q);
  a.k = stored_values(in.k);
  a.v = stored_values(in.v);
  a.query_proportions = pointer_or_null<const float>(in.query_proportions);
  a.key_proportions = pointer_or_null<const float>(in.key_proportions);
  a.log_decay = pointer_or_null<const float>(in.log_decay);
  a.channel_decay = in.channel_decay();
  a.memory_in = pointer_or_null<const float>(in.memory);
  a.mass_in = pointer_or_null<const float>(in.mass);
  a.query_mask = pointer_or_null<const uint8_t>(in.context.query_mask);
  a.key_mask = pointer_or_null<const uint8_t>(in.context.key_mask);
  a.y = pointer<float>(y);
  a.memory_out = pointer<float>(memory);
  a.mass_out = pointer<float>(mass);
  a.denominators = pointer<float>(denominators);
  a.heads = static_cast<int>(in.q.size(2));
  a.key_heads = static_cast<int>(in.k.size(2));
  a.width = static_cast<int>(in.k.size(3));
  a.features = static_cast<int>(memory.size(2));
  a.values = static_cast<int>(memory.size(3));
  a.tiles = (a.values + kColumns - 1) / kColumns;
  a.map = in.context.options.feature_map;
  a.scale = static_cast<float>(in.context.options.query_scale);
  a.division = division_of(in.context.options);
  launch({"linear_attention_one_token", blocks_for(in.q.size(0) * a.heads * a.tiles, 1), kThreads,
          shared_bytes<Layout>(a.features)},
         linear_attention_one_token, a);
}

}  // namespace linnet::cuda
