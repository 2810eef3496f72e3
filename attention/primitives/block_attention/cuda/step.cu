// One query of block attention: a block has a row's head. Its warps alternate over groups of 32
// keys, each with a streaming softmax of its own, and put them together at the end. Lanes are
// channels, of keys and of values, so that a row of either is read in one segment.
#include "attention/primitives/block_attention/cuda/step.h"

#include "attention/primitives/block_attention/cuda/problem.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

using namespace block_attention_detail;

constexpr int kStepWarps = 8;
constexpr int kThreads = kStepWarps * kLanes;
constexpr int64_t kWidest = 1024;  // 38 KiB of shared memory

struct Layout {
  __host__ __device__ Layout(SharedArena& arena, int64_t K, int64_t V)
      : query(arena.take<float>(static_cast<size_t>(K))),
        weights(arena.take<float>(kThreads)),
        weighted(arena.take<float>(static_cast<size_t>(kStepWarps * V))),
        largest(arena.take<float>(kStepWarps)),
        sums(arena.take<float>(kStepWarps)) {}
  float* query;
  float* weights;   // of each warp's 32 keys; -infinity: not seen
  float* weighted;  // [warps, V]: sums of values
  float *largest, *sums;
};

// The logit of this lane's key among `count` from `first` on; -infinity where it is not seen.
__device__ __forceinline__ float logit_of(const BlockProblem& p, const Segment& segment, int64_t h,
                                          int64_t first, int count, const float* query) {
  float logit = -kInfinity;
  for (int j = 0; j < count; ++j) {
    const int64_t u = first + j;
    if (!p.key_valid(segment, u)) continue;  // alike in all lanes
    const StoredValues key = p.key(segment, u, p.group(h));
    float product = 0;
    for (int64_t c = warp_lane(); c < p.K; c += kLanes) product += query[c] * key.at(c);
    product = warp_sum(product);
    if (warp_lane() == j) logit = p.logit(segment, h, 0, u, product);
  }
  return logit;
}

__global__ void block_attend_one_token(const __grid_constant__ BlockProblem p, StoredResults y,
                                       float* log_sum_exp) {
  SharedArena arena;
  const Layout shared(arena, p.K, p.V);
  const int64_t number = blockIdx.x, h = number % p.H, b = number / p.H;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kLanes, lane = warp_lane();
  const Segment segment = p.segment(b, 0);
  KeyRange keys = visible_keys(segment, p.options, 0);
  if (!p.query_valid(b, 0)) keys.end = keys.begin;
  float* weights = shared.weights + warp * kLanes;
  float* weighted = shared.weighted + warp * p.V;
  for (int64_t c = thread; c < p.K; c += kThreads) shared.query[c] = p.q.at(number * p.K + c);
  for (int64_t c = lane; c < p.V; c += kLanes) weighted[c] = 0;
  __syncthreads();
  float largest = -kInfinity, sum = 0;
  for (int64_t first = keys.begin + warp * kLanes; first < keys.end; first += kThreads) {
    const int count = static_cast<int>(min(int64_t{kLanes}, keys.end - first));
    const float logit = logit_of(p, segment, h, first, count, shared.query);
    const bool seen = lane < count && p.key_valid(segment, first + lane);
    float weight, rescale = 1;
    if (p.normalised()) {
      const float now = fmaxf(largest, warp_max(logit));
      // As long as no key is seen: any finite shift keeps exp(-infinity) = 0.
      const float shift = now == -kInfinity ? 0.0f : now;
      rescale = expf(largest - shift);
      weight = seen ? expf(logit - shift) : 0.0f;
      sum = sum * rescale + warp_sum(weight);
      largest = now;
    } else {
      weight = plain_weight(p.options, logit).value;
    }
    weights[lane] = seen ? weight : -kInfinity;
    __syncwarp();
    for (int64_t c = lane; c < p.V; c += kLanes) {
      float total = weighted[c] * rescale;
      for (int j = 0; j < count; ++j) {
        if (weights[j] == -kInfinity) continue;
        total += weights[j] * p.value(segment, first + j, p.group(h)).at(c);
      }
      weighted[c] = total;
    }
    __syncwarp();
  }
  if (lane == 0) {
    shared.largest[warp] = largest;
    shared.sums[warp] = sum;
  }
  __syncthreads();
  for (int i = 0; i < kStepWarps; ++i) largest = fmaxf(largest, shared.largest[i]);
  const float shift = largest == -kInfinity ? 0.0f : largest;
  sum = 0;
  for (int i = 0; i < kStepWarps; ++i) sum += shared.sums[i] * expf(shared.largest[i] - shift);
  const float factor = !p.normalised() ? 1.0f : sum == 0 ? 0.0f : 1 / sum;
  for (int64_t c = thread; c < p.V; c += kThreads) {
    float total = 0;
    for (int i = 0; i < kStepWarps; ++i) {
      const float share = p.normalised() ? expf(shared.largest[i] - shift) : 1.0f;
      total += share * shared.weighted[i * p.V + c];
    }
    y.put(number * p.V + c, total * factor);
  }
  if (thread == 0) {
    log_sum_exp[number] = !p.normalised() ? 0.0f : sum == 0 ? kInfinity : largest + logf(sum);
  }
}

}  // namespace

bool is_block_attention_step(const BlockAttentionTensors& in,
                             const BlockAttentionContext& context) {
  return in.q.size(1) == 1 && !(context.options.dropout > 0) && in.q.size(3) <= kWidest &&
         in.v.size(3) <= kWidest;
}

void block_attention_step(const BlockAttentionTensors& in, const BlockAttentionContext& context,
                          const Tensor& y, const Tensor& log_sum_exp) {
  launch({"block_attend_one_token", blocks_for(in.q.size(0) * in.q.size(2), 1), kThreads,
          shared_bytes<Layout>(in.q.size(3), in.v.size(3))},
         block_attend_one_token, problem_of(in, context), stored_results(y),
         pointer<float>(log_sum_exp));
}

}  // namespace linnet::cuda
