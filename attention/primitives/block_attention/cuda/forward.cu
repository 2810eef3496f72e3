// Block attention, forward: streaming softmax, or plain sums, 32 keys at a time.
#include "attention/primitives/block_attention/cuda/problem.h"
#include "attention/primitives/block_attention/cuda/step.h"

namespace linnet::cuda {
namespace {

using namespace block_attention_detail;

// A warp for each (b, h, t): lanes are keys for logits, channels for the weighted sum.
__global__ void block_attend(BlockProblem p, StoredResults y, float* log_sum_exp) {
  SharedArena arena;
  const WarpFloats shared(arena, p.K + p.V + kLanes);
  const int64_t item = global_warp();
  if (item >= p.B * p.H * p.Tq) return;
  const int64_t t = item % p.Tq, h = item / p.Tq % p.H, b = item / p.Tq / p.H;
  const int lane = warp_lane();
  float* q = shared.mine();
  float* weighted = q + p.K;
  float* weights = weighted + p.V;  // of 32 keys; -infinity: not seen
  const Segment segment = p.segment(b, t);
  const int64_t r = t - segment.query_begin, g = p.group(h), number = p.query(b, t, h);
  KeyRange keys = visible_keys(segment, p.options, r);
  if (!p.query_valid(b, t)) keys.end = keys.begin;
  const DropoutDraws draws = p.draws(b, h);
  for (int64_t c = lane; c < p.K; c += kLanes) q[c] = p.q.at(number * p.K + c);
  for (int64_t c = lane; c < p.V; c += kLanes) weighted[c] = 0;
  __syncwarp();
  float largest = -kInfinity, sum = 0;
  for (int64_t first = keys.begin; first < keys.end; first += kLanes) {
    const int64_t u = first + lane;
    const bool seen = u < keys.end && p.key_valid(segment, u);
    const float logit =
        seen ? p.logit(segment, h, r, u, dot(q, p.key(segment, u, g), p.K)) : -kInfinity;
    float weight, rescale = 1;
    if (p.normalised()) {
      const float now = fmaxf(largest, warp_max(logit));
      // A query that has seen no key yet: any finite shift keeps exp(-infinity) = 0.
      const float shift = now == -kInfinity ? 0.0f : now;
      rescale = expf(largest - shift);
      weight = seen ? expf(logit - shift) : 0.0f;
      sum = sum * rescale + warp_sum(weight);
      largest = now;
    } else {
      weight = plain_weight(p.options, logit).value;
    }
    weights[lane] = seen ? weight * p.kept(draws, segment, r, u) : -kInfinity;
    __syncwarp();
    const int count = static_cast<int>(min(int64_t{kLanes}, keys.end - first));
    for (int64_t c = lane; c < p.V; c += kLanes) {
      float total = weighted[c] * rescale;
      for (int j = 0; j < count; ++j) {
        if (weights[j] == -kInfinity) continue;
        total += weights[j] * p.value(segment, first + j, g).at(c);
      }
      weighted[c] = total;
    }
    __syncwarp();
  }
  const float factor = !p.normalised() ? 1.0f : sum == 0 ? 0.0f : 1 / sum;
  for (int64_t c = lane; c < p.V; c += kLanes) y.put(number * p.V + c, weighted[c] * factor);
  if (lane == 0) {
    log_sum_exp[number] = !p.normalised() ? 0.0f : sum == 0 ? kInfinity : largest + logf(sum);
  }
}

}  // namespace

void block_attention_forward(const BlockAttentionTensors& in, const BlockAttentionSetting& setting,
                             const Tensor& y, const Tensor& log_sum_exp) {
  if (is_block_attention_step(in, setting)) {
    return block_attention_step(in, setting, y, log_sum_exp);
  }
  const BlockProblem p = problem_of(in, setting);
  launch(warps("block_attend", p.B * p.H * p.Tq, p.K + p.V + kLanes), block_attend, p,
         stored_results(y), pointer<float>(log_sum_exp));
}

}  // namespace linnet::cuda
