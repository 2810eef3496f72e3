// Listed attention, forward: streaming softmax, 32 places of a list at a time.
#include "attention/primitives/listed_attention/cuda/problem.h"

namespace linnet::cuda {
namespace {

using namespace listed_attention_detail;

// A warp for each (b, h, t): lanes are places for logits, channels for the weighted sum.
template <typename T>
__global__ void listed_attend(ListedProblem<T> p, T* y, float* log_sum_exp) {
  SharedArena arena;
  const WarpFloats shared(arena, p.K + p.V + kLanes);
  const int64_t item = global_warp();
  if (item >= p.B * p.H * p.Tq) return;
  const int64_t t = item % p.Tq, h = item / p.Tq % p.H, b = item / p.Tq / p.H;
  const int lane = warp_lane();
  float* q = shared.mine();
  float* weighted = q + p.K;
  float* weights = weighted + p.V;  // of 32 places; below 0: not seen
  const int64_t g = p.group(h), number = p.query(b, t, h);
  const int32_t* list = p.list(b, h, t);
  const int64_t places = p.query_valid(b, t) ? p.length : 0;
  const DropoutDraws draws = p.draws(b, h);
  for (int64_t c = lane; c < p.K; c += kLanes) q[c] = load(p.q + number * p.K + c);
  for (int64_t c = lane; c < p.V; c += kLanes) weighted[c] = 0;
  __syncwarp();
  float largest = -kInfinity, sum = 0;
  bool beyond = false;
  for (int64_t first = 0; first < places; first += kLanes) {
    const int64_t l = first + lane;
    const int64_t key = l < places ? list[l] : -1;
    beyond = beyond || key < -1 || key >= p.Tk;
    const bool seen = p.key_valid(b, key);
    const float logit =
        seen ? p.logit(b, h, t, l, dot(q, p.k + p.key(b, key, g) * p.K, p.K)) : -kInfinity;
    const float now = fmaxf(largest, warp_max(logit));
    // A query that has seen no key yet: any finite shift keeps exp(-infinity) = 0.
    const float shift = now == -kInfinity ? 0.0f : now;
    const float rescale = expf(largest - shift);
    const float weight = seen ? expf(logit - shift) : 0.0f;
    sum = sum * rescale + warp_sum(weight);
    largest = now;
    weights[lane] = seen ? weight * p.kept(draws, t, l) : -1.0f;
    __syncwarp();
    const int count = static_cast<int>(min(int64_t{kLanes}, places - first));
    for (int64_t c = lane; c < p.V; c += kLanes) {
      float total = weighted[c] * rescale;
      for (int j = 0; j < count; ++j) {
        if (weights[j] < 0) continue;
        total += weights[j] * load(p.v + p.key(b, list[first + j], g) * p.V + c);
      }
      weighted[c] = total;
    }
    __syncwarp();
  }
  if (__ballot_sync(~0u, beyond) != 0) sum = NAN;
  const float factor = sum == 0 ? 0.0f : 1 / sum;
  for (int64_t c = lane; c < p.V; c += kLanes) store(y + number * p.V + c, weighted[c] * factor);
  if (lane == 0) log_sum_exp[number] = sum == 0 ? -kInfinity : largest + logf(sum);
}

template <typename T>
void forward_typed(const ListedAttentionTensors& in, const ListedAttentionContext& context,
                   const Tensor& y, const Tensor& log_sum_exp) {
  const ListedProblem<T> p = problem_of<T>(in, context);
  launch(warps("listed_attend", p.B * p.H * p.Tq, p.K + p.V + kLanes), listed_attend<T>, p,
         pointer<T>(y), pointer<float>(log_sum_exp));
}

}  // namespace

void listed_attention_forward(const ListedAttentionTensors& in,
                              const ListedAttentionContext& context, const Tensor& y,
                              const Tensor& log_sum_exp) {
  dispatch(y.dtype(),
           [&](auto zero) { forward_typed<decltype(zero)>(in, context, y, log_sum_exp); });
}

}  // namespace linnet::cuda
