// Listed attention, backward: weights are recomputed from the saved log-sum-exp. dq and the
// gradients of logits by queries, dk and dv by keys, so that no two warps add to the same element.
#include "attention/primitives/listed_attention/cuda/problem.h"
#include "core/cuda/for_each.h"
#include "core/sort.h"

namespace linnet::cuda {
namespace listed_attention_detail {

void sum_bias(const Tensor& dlogits, const Tensor& dbias) {
  const float* from = pointer<float>(dlogits);
  float* to = pointer<float>(dbias);
  const int64_t n = dlogits.size(2) * dlogits.size(3), all_heads = dlogits.size(1);
  const int64_t bias_heads = dbias.size(1);
  const int64_t rows = dbias.size(0) == 1 ? dlogits.size(0) : 1;
  const int64_t heads = bias_heads == 1 ? all_heads : 1;
  for_each("listed_attention_bias", dbias.elements(), [=] __device__(int64_t i) {
    const int64_t first_row = i / n / bias_heads, first_head = i / n % bias_heads;
    float total = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = 0; head < heads; ++head) {
        total += from[((first_row + row) * all_heads + first_head + head) * n + i % n];
      }
    }
    to[i] = total;
  });
}

SortedIndex::SortedIndex(const Tensor& index) {
  const Shape rows{index.size(0) * index.size(1), index.size(2) * index.size(3)};
  keys = Tensor::empty(rows, DType::i32, index.device());
  order = Tensor::empty(rows, DType::i32, index.device());
  sort_rows(index.reshape(rows), keys, order);
}

SortedPlaces SortedIndex::places() const {
  return {pointer<int32_t>(keys), pointer<int32_t>(order)};
}

}  // namespace listed_attention_detail

namespace {

using namespace listed_attention_detail;

// Further inputs of backward.
template <typename T>
struct Saved {
  const T *y, *dy;
  const float *log_sum_exp, *dlog_sum_exp;  // the latter may be null
  // [B,Tq,H]: the term added to every weight's gradient, made by the kernel for dq for the others.
  float* shift;
};

// The weight of one query and one place after dropout, and the gradient of the logit.
struct Pair {
  float weight, dlogit;
};

template <typename T>
__device__ Pair pair_of(const ListedProblem<T>& p, const Saved<T>& saved, const DropoutDraws& draws,
                        int64_t b, int64_t h, int64_t t, int64_t l, float q_dot_k, float dy_dot_v,
                        float shift) {
  const float log_sum_exp = saved.log_sum_exp[p.query(b, t, h)];
  if (log_sum_exp == -kInfinity) return {0.0f, 0.0f};
  const float weight = expf(p.logit(b, h, t, l, q_dot_k) - log_sum_exp);
  const float kept = p.kept(draws, t, l);
  return {weight * kept, weight * (kept * dy_dot_v + shift)};
}

// A warp for each (b, h, t): lanes are places for logits, channels for dq. dlogits
// [B,H,Tq,length], zeros before, may be null.
template <typename T>
__global__ void listed_query_gradients(ListedProblem<T> p, Saved<T> saved, T* dq, float* dlogits) {
  SharedArena arena;
  const WarpFloats shared(arena, 2 * p.K + p.V + kLanes);
  const int64_t item = global_warp();
  if (item >= p.B * p.H * p.Tq) return;
  const int64_t t = item % p.Tq, h = item / p.Tq % p.H, b = item / p.Tq / p.H;
  const int lane = warp_lane();
  float* q = shared.mine();
  float* gradient = q + p.K;
  float* dy = gradient + p.K;
  float* of_logits = dy + p.V;  // of 32 places
  const int64_t g = p.group(h), number = p.query(b, t, h);
  const int32_t* list = p.list(b, h, t);
  const bool valid = p.query_valid(b, t);
  const int64_t places = valid ? p.length : 0;
  const DropoutDraws draws = p.draws(b, h);
  float shift = 0;
  for (int64_t c = lane; c < p.K; c += kLanes) {
    q[c] = load(p.q + number * p.K + c);
    gradient[c] = 0;
  }
  for (int64_t c = lane; c < p.V; c += kLanes) {
    dy[c] = load(saved.dy + number * p.V + c);
    if (valid) shift -= dy[c] * load(saved.y + number * p.V + c);
  }
  shift = warp_sum(shift);
  if (valid && saved.dlog_sum_exp != nullptr) shift += saved.dlog_sum_exp[number];
  if (lane == 0) saved.shift[number] = shift;
  __syncwarp();
  for (int64_t first = 0; first < places; first += kLanes) {
    const int64_t l = first + lane;
    const int64_t key = l < places ? list[l] : -1;
    const bool seen = p.key_valid(b, key);
    of_logits[lane] = 0;
    if (seen) {
      const int64_t at = p.key(b, key, g);
      of_logits[lane] = pair_of(p, saved, draws, b, h, t, l, dot(q, p.k + at * p.K, p.K),
                                dot(dy, p.v + at * p.V, p.V), shift)
                            .dlogit;
      if (dlogits != nullptr) {
        dlogits[((b * p.H + h) * p.Tq + t) * p.length + l] = of_logits[lane];
      }
    }
    const unsigned visible = __ballot_sync(~0u, seen);
    __syncwarp();
    for (int64_t c = lane; c < p.K; c += kLanes) {
      float total = gradient[c];
      for (int j = 0; j < kLanes; ++j) {
        if ((visible >> j & 1) == 0) continue;
        total += of_logits[j] * load(p.k + p.key(b, list[first + j], g) * p.K + c);
      }
      gradient[c] = total;
    }
    __syncwarp();
  }
  const auto scale = static_cast<float>(p.options.scale);
  for (int64_t c = lane; c < p.K; c += kLanes) store(dq + number * p.K + c, scale * gradient[c]);
}

// A warp for each (b, g, key): lanes are pairs of a place that names the key and a query of its
// list for logits, channels for sums.
template <typename T>
__global__ void listed_key_gradients(ListedProblem<T> p, Saved<T> saved, SortedPlaces sorted, T* dk,
                                     T* dv) {
  SharedArena arena;
  const WarpFloats shared(arena, 2 * (p.K + p.V + kLanes));
  const int64_t item = global_warp();
  if (item >= p.B * p.G * p.Tk) return;
  const int64_t j = item % p.Tk, g = item / p.Tk % p.G, b = item / p.Tk / p.G;
  const int lane = warp_lane();
  float* k = shared.mine();
  float* v = k + p.K;
  float* k_sums = v + p.V;
  float* v_sums = k_sums + p.K;
  float* weights = v_sums + p.V;
  float* dlogits = weights + kLanes;
  const int64_t number = p.key(b, j, g);
  for (int64_t c = lane; c < p.K; c += kLanes) {
    k[c] = load(p.k + number * p.K + c);
    k_sums[c] = 0;
  }
  for (int64_t c = lane; c < p.V; c += kLanes) {
    v[c] = load(p.v + number * p.V + c);
    v_sums[c] = 0;
  }
  __syncwarp();
  const int64_t heads = p.H / p.G, all = p.lists * p.length, group = p.options.group;
  for (int64_t h = g * heads; p.key_valid(b, j) && h < (g + 1) * heads; ++h) {
    const int32_t* keys = sorted.keys + p.index_row(b, h) * all;
    const int64_t begin = first_not_below(keys, all, j);
    const int32_t* order = sorted.order + p.index_row(b, h) * all + begin;
    const int64_t pairs = (first_not_below(keys + begin, all - begin, j + 1)) * group;
    const DropoutDraws draws = p.draws(b, h);
    for (int64_t first = 0; first < pairs; first += kLanes) {
      const int64_t n = first + lane;
      const int64_t place = n < pairs ? order[n / group] : 0;
      const int64_t t = place / p.length * group + n % group;
      const bool sees = n < pairs && t < p.Tq && p.query_valid(b, t);
      if (sees) {
        const int64_t from = p.query(b, t, h);
        const Pair pair =
            pair_of(p, saved, draws, b, h, t, place % p.length, dot(k, p.q + from * p.K, p.K),
                    dot(v, saved.dy + from * p.V, p.V), saved.shift[from]);
        weights[lane] = pair.weight;
        dlogits[lane] = pair.dlogit;
      }
      const unsigned seeing = __ballot_sync(~0u, sees);
      __syncwarp();
      for (int i = 0; i < kLanes; ++i) {
        if ((seeing >> i & 1) == 0) continue;
        const int64_t pair = first + i;
        const int64_t time = order[pair / group] / p.length * group + pair % group;
        const int64_t from = p.query(b, time, h);
        for (int64_t c = lane; c < p.K; c += kLanes) {
          k_sums[c] += dlogits[i] * load(p.q + from * p.K + c);
        }
        for (int64_t c = lane; c < p.V; c += kLanes) {
          v_sums[c] += weights[i] * load(saved.dy + from * p.V + c);
        }
      }
      __syncwarp();
    }
  }
  const auto scale = static_cast<float>(p.options.scale);
  for (int64_t c = lane; c < p.K; c += kLanes) store(dk + number * p.K + c, scale * k_sums[c]);
  for (int64_t c = lane; c < p.V; c += kLanes) store(dv + number * p.V + c, v_sums[c]);
}

template <typename T>
void backward_typed(const ListedAttentionTensors& in, const ListedAttentionContext& context,
                    const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
                    const Tensor& dlog_sum_exp, const ListedAttentionTensors& d) {
  const ListedProblem<T> p = problem_of<T>(in, context);
  const Device device = y.device();
  const Tensor shift = Tensor::empty(log_sum_exp.shape(), DType::f32, device);
  const Saved<T> saved{pointer<T>(y), pointer<T>(dy), pointer<float>(log_sum_exp),
                       pointer_or_null<float>(dlog_sum_exp), pointer<float>(shift)};
  Tensor dlogits;
  if (d.bias.defined()) {
    const Tensor& q = in.q;
    dlogits =
        Tensor::zeros({q.size(0), q.size(2), q.size(1), context.index.size(3)}, DType::f32, device);
  }
  launch(warps("listed_query_gradients", p.B * p.H * p.Tq, 2 * p.K + p.V + kLanes),
         listed_query_gradients<T>, p, saved, pointer<T>(d.q), pointer_or_null<float>(dlogits));
  const SortedIndex sorted(context.index);
  launch(warps("listed_key_gradients", p.B * p.G * p.Tk, 2 * (p.K + p.V + kLanes)),
         listed_key_gradients<T>, p, saved, sorted.places(), pointer<T>(d.k), pointer<T>(d.v));
  if (d.bias.defined()) sum_bias(dlogits, d.bias);
}

}  // namespace

void listed_attention_backward(const ListedAttentionTensors& in,
                               const ListedAttentionContext& context, const Tensor& y,
                               const Tensor& log_sum_exp, const Tensor& dy,
                               const Tensor& dlog_sum_exp, const ListedAttentionTensors& d) {
  dispatch(y.dtype(), [&](auto zero) {
    backward_typed<decltype(zero)>(in, context, y, log_sum_exp, dy, dlog_sum_exp, d);
  });
}

}  // namespace linnet::cuda
