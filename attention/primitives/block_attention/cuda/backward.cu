// Block attention, backward: weights are recomputed from the saved log-sum-exp. dq by queries, dk
// and dv by keys, the bias by entries of its table, so that no two warps add to the same element.
#include "attention/primitives/block_attention/cuda/problem.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

using namespace block_attention_detail;

// Further inputs of backward: y . dy of every query is made by the kernel for dq, for the others.
struct Saved {
  StoredValues y, dy;
  const float* log_sum_exp;
  float* y_dot_dy;  // [B,Tq,H]
};

// The weight of one query and one key after dropout, and the gradient of the logit.
struct Pair {
  float weight, dlogit;
};

__device__ Pair pair_of(const BlockProblem& p, const DropoutDraws& draws, const Segment& segment,
                        int64_t h, int64_t r, int64_t u, float q_dot_k, float dy_dot_v,
                        float log_sum_exp, float y_dot_dy) {
  const float logit = p.logit(segment, h, r, u, q_dot_k);
  const float kept = p.kept(draws, segment, r, u);
  if (!p.normalised()) {
    const auto weight = plain_weight(p.options, logit);
    return {weight.value * kept, weight.slope * kept * dy_dot_v};
  }
  const float weight = expf(logit - log_sum_exp);
  return {weight * kept, weight * (kept * dy_dot_v - y_dot_dy)};
}

// A warp for each (b, h, t): lanes are keys for logits, channels for dq.
__global__ void block_query_gradients(BlockProblem p, Saved saved, StoredResults dq) {
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
  const Segment segment = p.segment(b, t);
  const int64_t r = t - segment.query_begin, g = p.group(h), number = p.query(b, t, h);
  KeyRange keys = visible_keys(segment, p.options, r);
  const bool valid = p.query_valid(b, t);
  if (!valid) keys.end = keys.begin;
  const DropoutDraws draws = p.draws(b, h);
  float y_dot_dy = 0;
  for (int64_t c = lane; c < p.K; c += kLanes) {
    q[c] = p.q.at(number * p.K + c);
    gradient[c] = 0;
  }
  for (int64_t c = lane; c < p.V; c += kLanes) {
    dy[c] = saved.dy.at(number * p.V + c);
    if (valid) y_dot_dy += dy[c] * saved.y.at(number * p.V + c);
  }
  y_dot_dy = warp_sum(y_dot_dy);
  if (lane == 0) saved.y_dot_dy[number] = y_dot_dy;
  const float log_sum_exp = saved.log_sum_exp[number];
  __syncwarp();
  for (int64_t first = keys.begin; first < keys.end; first += kLanes) {
    const int64_t u = first + lane;
    const bool seen = u < keys.end && p.key_valid(segment, u);
    dlogits[lane] = 0;
    if (seen) {
      dlogits[lane] = pair_of(p, draws, segment, h, r, u, dot(q, p.key(segment, u, g), p.K),
                              dot(dy, p.value(segment, u, g), p.V), log_sum_exp, y_dot_dy)
                          .dlogit;
    }
    const unsigned visible = __ballot_sync(~0u, seen);
    __syncwarp();
    for (int64_t c = lane; c < p.K; c += kLanes) {
      float total = gradient[c];
      for (int j = 0; j < kLanes; ++j) {
        if ((visible >> j & 1) == 0) continue;
        total += dlogits[j] * p.key(segment, first + j, g).at(c);
      }
      gradient[c] = total;
    }
    __syncwarp();
  }
  const auto scale = static_cast<float>(p.options.scale);
  for (int64_t c = lane; c < p.K; c += kLanes) dq.put(number * p.K + c, scale * gradient[c]);
}

struct KeyGradients {
  StoredResults dk, dv, dpast_k, dpast_v;  // past ones may be null
};

// A warp for each (b, g, key), past keys first: lanes are queries for logits, channels for sums.
__global__ void block_key_gradients(BlockProblem p, Saved saved, KeyGradients out) {
  SharedArena arena;
  const WarpFloats shared(arena, 2 * (p.K + p.V + kLanes));
  const int64_t item = global_warp(), all = p.P + p.Tk;
  if (item >= p.B * p.G * all) return;
  const int64_t index = item % all, g = item / all % p.G, b = item / all / p.G;
  const int lane = warp_lane();
  float* k = shared.mine();
  float* v = k + p.K;
  float* dk = v + p.V;
  float* dv = dk + p.K;
  float* weights = dv + p.V;
  float* dlogits = weights + kLanes;
  // Past keys belong to the first span; with no tokens nobody reads them.
  const bool past = index < p.P;
  const Segment segment = p.segment(b, past ? 0 : p.cross ? 0 : index - p.P);
  const int64_t u = past ? index : segment.past + index - p.P - segment.key_begin;
  KeyRange queries = visible_queries(segment, p.options, u);
  if (!p.key_valid(segment, u)) queries.end = queries.begin;
  const StoredValues key = p.key(segment, u, g);
  const StoredValues value = p.value(segment, u, g);
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
  for (int64_t h = g * heads; h < (g + 1) * heads; ++h) {
    const DropoutDraws draws = p.draws(b, h);
    for (int64_t first = queries.begin; first < queries.end; first += kLanes) {
      const int64_t r = first + lane;
      const bool sees = r < queries.end && p.query_valid(b, segment.query_begin + r);
      if (sees) {
        const int64_t number = p.query(b, segment.query_begin + r, h);
        const Pair pair = pair_of(p, draws, segment, h, r, u, dot(k, p.q.from(number * p.K), p.K),
                                  dot(v, saved.dy.from(number * p.V), p.V),
                                  saved.log_sum_exp[number], saved.y_dot_dy[number]);
        weights[lane] = pair.weight;
        dlogits[lane] = pair.dlogit;
      }
      const unsigned seeing = __ballot_sync(~0u, sees);
      __syncwarp();
      for (int j = 0; j < kLanes; ++j) {
        if ((seeing >> j & 1) == 0) continue;
        const int64_t number = p.query(b, segment.query_begin + first + j, h);
        for (int64_t c = lane; c < p.K; c += kLanes) {
          dk[c] += dlogits[j] * p.q.at(number * p.K + c);
        }
        for (int64_t c = lane; c < p.V; c += kLanes) {
          dv[c] += weights[j] * saved.dy.at(number * p.V + c);
        }
      }
      __syncwarp();
    }
  }
  const StoredResults dk_out = past ? out.dpast_k : out.dk;
  const StoredResults dv_out = past ? out.dpast_v : out.dv;
  const int64_t place = past ? (b * p.P + index) * p.G + g : (b * p.Tk + index - p.P) * p.G + g;
  const auto scale = static_cast<float>(p.options.scale);
  for (int64_t c = lane; c < p.K && dk_out.data != nullptr; c += kLanes) {
    dk_out.put(place * p.K + c, scale * dk[c]);
  }
  for (int64_t c = lane; c < p.V && dv_out.data != nullptr; c += kLanes) {
    dv_out.put(place * p.V + c, dv[c]);
  }
}

// partial [chunks, H, bias_count]: a warp for each entry sums the gradients of the logits that it
// was added to, over the tokens of a chunk.
__global__ void block_bias_gradients(BlockProblem p, Saved saved, int64_t chunk, float* partial) {
  const int64_t item = global_warp(), tokens = p.B * p.Tq, entries = p.H * p.bias_count;
  if (item >= (tokens + chunk - 1) / chunk * entries) return;
  const int64_t h = item % entries / p.bias_count, g = p.group(h);
  const int64_t distance = item % p.bias_count - p.bias_origin;
  const int64_t begin = item / entries * chunk, end = min(begin + chunk, tokens);
  float total = 0;
  for (int64_t n = begin + warp_lane(); n < end; n += kLanes) {
    const int64_t b = n / p.Tq, t = n % p.Tq;
    const Segment segment = p.segment(b, t);
    const int64_t r = t - segment.query_begin, u = segment.past + r + distance;
    const KeyRange keys = visible_keys(segment, p.options, r);
    if (u < keys.begin || u >= keys.end || !p.query_valid(b, t) || !p.key_valid(segment, u))
      continue;
    const int64_t number = p.query(b, t, h);
    total += pair_of(p, p.draws(b, h), segment, h, r, u,
                     dot(p.q.from(number * p.K), p.key(segment, u, g), p.K),
                     dot(saved.dy.from(number * p.V), p.value(segment, u, g), p.V),
                     saved.log_sum_exp[number], saved.y_dot_dy[number])
                 .dlogit;
  }
  total = warp_sum(total);
  if (warp_lane() == 0) partial[item] = total;
}

void block_bias_gradient(const BlockProblem& p, const Saved& saved, const Tensor& dbias) {
  // At most 64 chunks: enough to fill a GPU, memory that does not depend on the number of tokens.
  const int64_t tokens = p.B * p.Tq, count = p.bias_count, heads = p.H;
  const int64_t chunk = std::max<int64_t>(64, (tokens + 63) / 64);
  const int64_t chunks = (tokens + chunk - 1) / chunk;
  const Tensor sums = Tensor::empty({chunks, heads, count}, DType::f32, dbias.device());
  launch(warps("block_bias_gradients", chunks * heads * count, 0), block_bias_gradients, p, saved,
         chunk, pointer<float>(sums));
  sum_bias_partials(sums, dbias);
}

}  // namespace

void block_attention_detail::sum_bias_partials(const Tensor& partial, const Tensor& dbias) {
  const int64_t chunks = partial.size(0), heads = partial.size(1), count = partial.size(2);
  const float* from = pointer<float>(partial);
  float* to = pointer<float>(dbias);
  const int64_t shared_by = dbias.size(0) == 1 ? heads : 1;
  for_each("block_attention", dbias.elements(), [=] __device__(int64_t i) {
    float total = 0;
    for (int64_t n = 0; n < chunks * shared_by; ++n) {
      total += from[n / shared_by * heads * count + n % shared_by * count + i];
    }
    to[i] = total;
  });
}

void block_attention_backward(const BlockAttentionTensors& in, const BlockAttentionSetting& setting,
                              const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
                              const BlockAttentionTensors& gradients) {
  const BlockProblem p = problem_of(in, setting);
  const Tensor y_dot_dy = Tensor::empty(log_sum_exp.shape(), DType::f32, y.device());
  const Saved saved{stored_values(y), stored_values(dy), pointer<float>(log_sum_exp),
                    pointer<float>(y_dot_dy)};
  launch(warps("block_query_gradients", p.B * p.H * p.Tq, 2 * p.K + p.V + kLanes),
         block_query_gradients, p, saved, stored_results(gradients.q));
  const KeyGradients keys{stored_results(gradients.k), stored_results(gradients.v),
                          stored_results(gradients.past_k), stored_results(gradients.past_v)};
  launch(warps("block_key_gradients", p.B * p.G * (p.P + p.Tk), 2 * (p.K + p.V + kLanes)),
         block_key_gradients, p, saved, keys);
  if (gradients.bias.defined()) block_bias_gradient(p, saved, gradients.bias);
}

}  // namespace linnet::cuda
