// Bodies of the plain kernels of block and of listed attention: a warp for every query (y; dq) and
// for every key (dk, dv). Internal to this folder and that of listed_attention.
//
// A problem says what its pairs are: p.row(b, t, h) knows the keys that a query may see, and
// p.column(b, g, n).readers(h) the queries of a head that may see a key, numbered from begin to
// end: logit(i, q . k) and kept(i), the factor of dropout on the weight. kLists: the problem is
// listed attention's, always a softmax, where no key gives a log-sum-exp of -infinity, not
// +infinity, and indices beyond the keys make results NaN.
#pragma once

#include "attention/primitives/block_attention/pattern.h"
#include "attention/primitives/common/cuda/warp_items.h"

namespace linnet::cuda::block_attention_detail {

using linnet::block_attention_detail::plain_weight;

// What backward reads and writes besides; dlog_sum_exp, dpast_k and dpast_v may be null.
template <typename Problem>
struct PlainBackward : Problem {
  typename Problem::Values y, dy;
  const float *log_sum_exp, *dlog_sum_exp;
  float* shift;  // [B,Tq,H]: what a query adds to the gradients of its weights, from dq's kernel
  typename Problem::Results dq, dk, dv, dpast_k, dpast_v;
};

// The weight of a pair after dropout, and the gradient of its logit.
struct Pair {
  float weight, dlogit;
};

template <typename Values>
__device__ __forceinline__ float dot(const float* a, Values b, int64_t n) {
  float total = 0;
  for (int64_t c = 0; c < n; ++c) total += a[c] * b.at(c);
  return total;
}

template <typename Problem, typename Pairs>
__device__ __forceinline__ Pair pair_of(const Problem& p, const Pairs& pairs, int64_t i,
                                        float q_dot_k, float dy_dot_v, float log_sum_exp,
                                        float shift) {
  if (Problem::kLists && log_sum_exp == -kInfinity) return {0.0f, 0.0f};
  const float logit = pairs.logit(i, q_dot_k), kept = pairs.kept(i);
  if constexpr (!Problem::kLists) {
    if (!p.normalised()) {
      const auto weight = plain_weight(p.options, logit);
      return {weight.value * kept, weight.slope * kept * dy_dot_v};
    }
  }
  const float weight = expf(logit - log_sum_exp);
  return {weight * kept, weight * (kept * dy_dot_v + shift)};
}

// A warp for each (b, h, t), by streaming softmax or plain sums, 32 keys at a time: lanes are keys
// for logits, channels for the weighted sum.
template <typename Problem, typename Results>
__device__ __forceinline__ void attend(const Problem& p, const Results& y, float* log_sum_exp) {
  SharedArena arena;
  const WarpFloats shared(arena, p.K + p.V + kLanes);
  const int64_t item = global_warp();
  if (item >= p.B * p.H * p.Tq) return;
  const int64_t t = item % p.Tq, h = item / p.Tq % p.H, b = item / p.Tq / p.H;
  const int lane = warp_lane();
  float* q = shared.mine();
  float* weighted = q + p.K;
  float* weights = weighted + p.V;  // of 32 keys; -infinity: not seen
  const int64_t number = p.query(b, t, h);
  const auto row = p.row(b, t, h);
  for (int64_t c = lane; c < p.K; c += kLanes) q[c] = p.q.at(number * p.K + c);
  for (int64_t c = lane; c < p.V; c += kLanes) weighted[c] = 0;
  __syncwarp();
  float largest = -kInfinity, sum = 0;
  bool beyond = false;
  for (int64_t first = row.begin; first < row.end; first += kLanes) {
    const int64_t i = first + lane;
    const bool seen = i < row.end && row.sees(i);
    if constexpr (Problem::kLists) beyond = beyond || (i < row.end && row.beyond(i));
    const float logit = seen ? row.logit(i, dot(q, row.key(i), p.K)) : -kInfinity;
    float weight = 0, rescale = 1;
    if (p.normalised()) {
      const float now = fmaxf(largest, warp_max(logit));
      // A query that has seen no key yet: any finite shift keeps exp(-infinity) = 0.
      const float shift = now == -kInfinity ? 0.0f : now;
      rescale = expf(largest - shift);
      weight = seen ? expf(logit - shift) : 0.0f;
      sum = sum * rescale + warp_sum(weight);
      largest = now;
    } else if constexpr (!Problem::kLists) {
      weight = plain_weight(p.options, logit).value;
    }
    weights[lane] = seen ? weight * row.kept(i) : -kInfinity;
    __syncwarp();
    const int count = static_cast<int>(min(int64_t{kLanes}, row.end - first));
    for (int64_t c = lane; c < p.V; c += kLanes) {
      float total = weighted[c] * rescale;
      for (int j = 0; j < count; ++j) {
        if (weights[j] == -kInfinity) continue;
        total += weights[j] * row.value(first + j).at(c);
      }
      weighted[c] = total;
    }
    __syncwarp();
  }
  if constexpr (Problem::kLists) {
    if (__ballot_sync(~0u, beyond) != 0) sum = NAN;
  }
  const float factor = !p.normalised() ? 1.0f : sum == 0 ? 0.0f : 1 / sum;
  for (int64_t c = lane; c < p.V; c += kLanes) y.put(number * p.V + c, weighted[c] * factor);
  if (lane != 0) return;
  constexpr float kNothing = Problem::kLists ? -kInfinity : kInfinity;
  log_sum_exp[number] = !p.normalised() ? 0.0f : sum == 0 ? kNothing : largest + logf(sum);
}

// A warp for each (b, h, t): lanes are keys for logits, channels for dq. `dlogits_out` is where
// the gradients of a list's logits go; it may be null.
template <typename Problem>
__device__ __forceinline__ void row_gradients(const PlainBackward<Problem>& p, float* dlogits_out) {
  SharedArena arena;
  const WarpFloats shared(arena, 2 * p.K + p.V + kLanes);
  const int64_t item = global_warp();
  if (item >= p.B * p.H * p.Tq) return;
  const int64_t t = item % p.Tq, h = item / p.Tq % p.H, b = item / p.Tq / p.H;
  const int lane = warp_lane();
  float* q = shared.mine();
  float* gradient = q + p.K;
  float* dy = gradient + p.K;
  float* dlogits = dy + p.V;  // of 32 keys; 0 where a key is not seen
  const int64_t number = p.query(b, t, h);
  const auto row = p.row(b, t, h);
  const bool valid = p.query_valid(b, t);
  float y_dot_dy = 0;
  for (int64_t c = lane; c < p.K; c += kLanes) {
    q[c] = p.q.at(number * p.K + c);
    gradient[c] = 0;
  }
  for (int64_t c = lane; c < p.V; c += kLanes) {
    dy[c] = p.dy.at(number * p.V + c);
    if (valid) y_dot_dy += dy[c] * p.y.at(number * p.V + c);
  }
  float shift = -warp_sum(y_dot_dy);
  if (valid && p.dlog_sum_exp != nullptr) shift += p.dlog_sum_exp[number];
  if (lane == 0) p.shift[number] = shift;
  const float log_sum_exp = p.log_sum_exp[number];
  __syncwarp();
  for (int64_t first = row.begin; first < row.end; first += kLanes) {
    const int64_t i = first + lane;
    const bool seen = i < row.end && row.sees(i);
    dlogits[lane] = 0;
    if (seen) {
      dlogits[lane] = pair_of(p, row, i, dot(q, row.key(i), p.K), dot(dy, row.value(i), p.V),
                              log_sum_exp, shift)
                          .dlogit;
      if constexpr (Problem::kLists) {
        if (dlogits_out != nullptr) dlogits_out[row.number(i)] = dlogits[lane];
      }
    }
    const unsigned visible = __ballot_sync(~0u, seen);
    __syncwarp();
    for (int64_t c = lane; c < p.K; c += kLanes) {
      float total = gradient[c];
      for (int j = 0; j < kLanes; ++j) {
        if ((visible >> j & 1) != 0) total += dlogits[j] * row.key(first + j).at(c);
      }
      gradient[c] = total;
    }
    __syncwarp();
  }
  const auto scale = static_cast<float>(p.options.scale);
  for (int64_t c = lane; c < p.K; c += kLanes) p.dq.put(number * p.K + c, scale * gradient[c]);
}

// A warp for each (b, g, key): lanes are pairs for logits, channels for sums. `places` says where
// lists name a key.
template <typename Problem, typename... Places>
__device__ __forceinline__ void column_gradients(const PlainBackward<Problem>& p,
                                                 const Places&... places) {
  SharedArena arena;
  const WarpFloats shared(arena, 2 * (p.K + p.V + kLanes));
  const int64_t item = global_warp(), all = p.columns();
  if (item >= p.B * p.G * all) return;
  const int64_t n = item % all, g = item / all % p.G, b = item / all / p.G;
  const int lane = warp_lane();
  float* k = shared.mine();
  float* v = k + p.K;
  float* dk = v + p.V;
  float* dv = dk + p.K;
  float* weights = dv + p.V;
  float* dlogits = weights + kLanes;
  const auto own = p.column(b, g, n, places...);
  const auto key = own.key(), value = own.value();
  for (int64_t c = lane; c < p.K; c += kLanes) {
    k[c] = key.at(c);
    dk[c] = 0;
  }
  for (int64_t c = lane; c < p.V; c += kLanes) {
    v[c] = value.at(c);
    dv[c] = 0;
  }
  __syncwarp();
  const int64_t heads = p.H / p.G;
  for (int64_t h = g * heads; own.valid && h < (g + 1) * heads; ++h) {
    const auto readers = own.readers(h);
    for (int64_t first = readers.begin; first < readers.end; first += kLanes) {
      const int64_t i = first + lane, t = i < readers.end ? readers.time(i) : p.Tq;
      const bool sees = t < p.Tq && p.query_valid(b, t);
      if (sees) {
        const int64_t number = p.query(b, t, h);
        const Pair pair =
            pair_of(p, readers, i, dot(k, p.q.from(number * p.K), p.K),
                    dot(v, p.dy.from(number * p.V), p.V), p.log_sum_exp[number], p.shift[number]);
        weights[lane] = pair.weight;
        dlogits[lane] = pair.dlogit;
      }
      const unsigned seeing = __ballot_sync(~0u, sees);
      __syncwarp();
      for (int j = 0; j < kLanes; ++j) {
        if ((seeing >> j & 1) == 0) continue;
        const int64_t number = p.query(b, readers.time(first + j), h);
        for (int64_t c = lane; c < p.K; c += kLanes) dk[c] += dlogits[j] * p.q.at(number * p.K + c);
        for (int64_t c = lane; c < p.V; c += kLanes)
          dv[c] += weights[j] * p.dy.at(number * p.V + c);
      }
      __syncwarp();
    }
  }
  const auto to_k = own.past ? p.dpast_k : p.dk, to_v = own.past ? p.dpast_v : p.dv;
  const auto scale = static_cast<float>(p.options.scale);
  for (int64_t c = lane; c < p.K && to_k.data != nullptr; c += kLanes) {
    to_k.put(own.place * p.K + c, scale * dk[c]);
  }
  for (int64_t c = lane; c < p.V && to_v.data != nullptr; c += kLanes) {
    to_v.put(own.place * p.V + c, dv[c]);
  }
}

// Launches of the three.
template <typename Problem>
Launch launch_attend(const char* name, const Problem& p) {
  return warps(name, p.B * p.H * p.Tq, p.K + p.V + kLanes);
}
template <typename Problem>
Launch launch_row_gradients(const char* name, const Problem& p) {
  return warps(name, p.B * p.H * p.Tq, 2 * p.K + p.V + kLanes);
}
template <typename Problem>
Launch launch_column_gradients(const char* name, const Problem& p) {
  return warps(name, p.B * p.G * p.columns(), 2 * (p.K + p.V + kLanes));
}

}  // namespace linnet::cuda::block_attention_detail
