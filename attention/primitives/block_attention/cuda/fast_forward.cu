// The forward pass of block attention on tensor cores: one kernel, streaming softmax or plain
// sums.
//
// A block has 64 queries of one head, and all values or a tile of 128, and streams the tiles of 64
// keys and values that one of them sees, from the first such key on. A warp computes from a tile,
// for its 16 queries,
//   x = scale q k^T + bias,   m' = max(m, x),   y = exp(m - m') y + exp(x - m') v
// (relu squared: y += max(x, 0)^2 v), weights passing from one product to the next in registers.
//
// Bytes per token and head, width D, as many key heads: q, k, v, y of 2 D each, and 4: 8 D + 4;
// that tiles of keys are read by several blocks is left to L2. Operations: 4 D for every key of the
// tiles that its 64 queries see; causal with a band of w keys 4 D (w + 64) rounded up to tiles,
// causal over all T keys 4 D (T + 64) / 2. D = 64: 516 bytes; w = 128: 49,000 operations.
#include "attention/primitives/block_attention/cuda/fast_reader.h"

namespace linnet::cuda::block_attention_fast {
namespace {

using namespace block_attention_fast_detail;

template <int D>
__global__ __launch_bounds__(kTileThreads, kBlocks<D>) void block_attention_fast_forward(
    const __grid_constant__ Call a, Writes y, float* log_sum_exp) {
  const Problem& p = a.problem;
  SharedArena arena;
  const Stages<D> shared(arena);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  // Blocks that run together share keys; of a causal sequence the longest come first.
  const int tiles = static_cast<int>(tiles_of(p.Tq)), block = static_cast<int>(blockIdx.x);
  const int first = (tiles - 1 - block % tiles) * kTileRows, heads = static_cast<int>(p.H);
  const int h = block / tiles % heads, b = block / tiles / heads;
  const int g = static_cast<int>(p.group(h)), value = static_cast<int>(blockIdx.y) * D;
  const int end = static_cast<int>(p.Tq);

  AsyncCopies copies;
  begin_copy<D>(copies, shared.tile(1, 0),
                QueryRows<const kernel_bf16>{a.q, p.query_mask, b, h, end}, first);
  copies.commit();
  if (threadIdx.x < kTileRows) shared.set_range(keys_of(p, b, first + threadIdx.x));
  shared.set_draws(p, b, h);
  __syncthreads();
  Sight sight(shared.begins, shared.ends, warp, lane);
  if (p.drops()) sight.align(shared.draws->key_time);
  const Logits logits{p};
  const BiasRow bias(p, h);
  KeyStream<D> keys{a, shared, sight, bias, copies, b, g, first, sight.tiles(), value, lane};
  keys.begin(0);
  keys.store_bias(0);
  copies.wait<1>();
  __syncthreads();
  LeftFragment queries[D / 16];
  load_rows<D>(shared.tile(1, 0), warp, lane, queries);

  Reader<D> reader;
  for (int n = 0; n < keys.count; ++n) {
    copies.wait<0>();
    __syncthreads();  // tile n is there; the other stage is free
    const uint64_t valid = keys.valid;
    keys.begin(n + 1);
    const int key = keys.key(n);
    if (sight.reaches(key, kTileRows)) {
      const uint32_t kept =
          p.drops() ? kept_of_queries(*shared.draws, first + warp * 16, key, lane) : 0;
      ResultFragment x[kTileRows / 8] = {};
      multiply_transposed<D, kTileRows>([&](int i) { return queries[i]; }, shared.tile(n, 0), lane,
                                        x);
      logits.make<false, kTileRows>(x, shared.bias(n), sight, key, 0, valid, warp, lane);
      if (p.normalised()) {
        reader.soften(x);
      } else {
#pragma unroll
        for (int i = 0; i < kTileRows / 2; ++i) {
          float& value = x[i / 4].values[i % 4];
          value = logits.weight(logits.root(value, 0));
        }
      }
      if (p.drops()) drop<kTileRows>(kept, 0, 1.0f, x);
      add_weighted<D, kTileRows>(x, shared.tile(n, 1), lane, reader.y);
    }
    keys.store_bias(n + 1);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float found = p.normalised() ? reader.normalise(half) : 0.0f;
    const int t = first + warp * 16 + half * 8 + lane / 4;
    if (value == 0 && lane % 4 == 0 && t < p.Tq) log_sum_exp[p.query(b, t, h)] = found;
  }
  store_rows<D>(reader.y, p.keep_scale, shared.tile(keys.count, 0),
                QueryRows<kernel_bf16>{y, nullptr, b, h, end, value}, first, warp, lane);
}

template <int D>
void run(const Call& call, const Writes& y, float* log_sum_exp) {
  const int64_t blocks = call.problem.B * call.problem.H * tiles_of(call.problem.Tq);
  launch({"block_attention_fast_forward",
          dim3(blocks_for(blocks, 1), static_cast<unsigned>(value_tiles<D>(call))), kTileThreads,
          shared_bytes<Stages<D>>()},
         block_attention_fast_forward<D>, call, y, log_sum_exp);
}

}  // namespace

bool has_kernels(int64_t keys, int64_t values) {
  return keys > 0 && keys <= 128 && keys % 8 == 0 && values > 0 && values % 8 == 0;
}

void forward(const Call& call, const Writes& y, float* log_sum_exp) {
  with_width(call, [&](auto width) { run<decltype(width)::value>(call, y, log_sum_exp); });
}

}  // namespace linnet::cuda::block_attention_fast
