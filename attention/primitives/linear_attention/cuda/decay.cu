// Gradients of the log-decay: telescoped sums along time.
#include "attention/primitives/linear_attention/cuda/kernels.h"
#include "attention/primitives/linear_attention/cuda/states.h"
#include "attention/primitives/linear_attention/tensors.h"
#include "core/cuda/block_reduce.h"

namespace linnet::cuda::linear_attention_detail {
namespace {

constexpr int kWarps = 8;  // of a block

// phi(k_t) . dphi(k_t) - sum over the query heads of phi(q_t) . dphi(q_t), one warp per token and
// key head; of_channels: without summing the products.
__global__ void linear_attention_decay_entries(const float* queries, const float* dqueries,
                                               const float* keys, const float* dkeys, int64_t rows,
                                               int64_t group, int64_t width, bool of_channels,
                                               float* entries) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.y;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x);
  const int64_t first = row * group * width;  // heads of a key head are consecutive
  for (int64_t c = lane; of_channels && c < width; c += 32) {
    float term = keys[row * width + c] * dkeys[row * width + c];
    for (int64_t i = first + c; i < first + group * width; i += width) {
      term -= queries[i] * dqueries[i];
    }
    entries[row * width + c] = term;
  }
  if (of_channels) return;
  float sum = 0;
  for (int64_t c = lane; c < width; c += 32) sum += keys[row * width + c] * dkeys[row * width + c];
  for (int64_t c = lane; c < group * width; c += 32)
    sum -= queries[first + c] * dqueries[first + c];
  sum = warp_sum(sum);
  if (lane == 0) entries[row] = sum;
}

// Of key heads, or of channels as if each were a head: its state is a row of S and z.
struct Sums {
  const float* terms;
  float* out;
  int64_t time, heads;
  int64_t memory_size, mass_size;  // of one state
  LinearAttentionState<const float> state, dstate;
  const int32_t* segments;
  const uint8_t* mask;
  const float* anchors;
  int64_t anchor_tokens;
};

__device__ float inner(const float* a, const float* b, int64_t number, int64_t size) {
  float sum = 0;
  if (a == nullptr || b == nullptr) return sum;
  for (int64_t i = threadIdx.x; i < size; i += 32)
    sum += a[number * size + i] * b[number * size + i];
  return sum;
}

// One warp per row and key head. The gradient at t is the sum of the terms before t in its segment,
// beginning with the inner product of the carried state and its gradient, or at the last anchor.
__global__ void linear_attention_decay_sums(Sums s) {
  const int64_t number = blockIdx.x, row = number / s.heads, head = number % s.heads;
  const int lane = static_cast<int>(threadIdx.x);
  const float carried = warp_sum(inner(s.state.memory, s.dstate.memory, number, s.memory_size) +
                                 inner(s.state.mass, s.dstate.mass, number, s.mass_size));
  double sum = static_cast<double>(carried);
  for (int64_t base = 0; base < s.time; base += 32) {
    const int64_t t = base + lane, token = row * s.time + t;
    const bool inside = t < s.time;
    if (s.anchors != nullptr && base > 0 && base % s.anchor_tokens == 0) {
      sum = static_cast<double>(s.anchors[(base / s.anchor_tokens - 1) * gridDim.x + number]);
    }
    const float term = inside ? s.terms[token * s.heads + head] : 0.0f;
    const int begins =
        inside && t > 0 && s.segments != nullptr && s.segments[token] != s.segments[token - 1] ? 1
                                                                                               : 0;
    float mine = 0;
    for (int i = 0; i < 32; ++i) {
      if (__shfl_sync(~0u, begins, i) != 0) sum = 0;
      if (i == lane) mine = static_cast<float>(sum);
      sum += static_cast<double>(__shfl_sync(~0u, term, i));
    }
    if (inside) {
      s.out[token * s.heads + head] = s.mask == nullptr || s.mask[token] != 0 ? mine : 0.0f;
    }
  }
}

int64_t state_size(const Tensor& states, int64_t count) {
  return states.defined() ? states.elements() / count : 0;
}

}  // namespace

Tensor decay_terms(const Tensor& queries, const Tensor& dqueries, const Tensor& keys,
                   const Tensor& dkeys, bool of_channels) {
  const int64_t heads = keys.size(2), rows = keys.size(0) * keys.size(1) * heads;
  const Shape of_heads{keys.size(0), keys.size(1), heads};
  const Tensor terms =
      Tensor::empty(of_channels ? keys.shape() : of_heads, DType::f32, keys.device());
  launch({"linear_attention_decay_entries", blocks_for(rows, kWarps), dim3(32, kWarps)},
         linear_attention_decay_entries, pointer<const float>(queries),
         pointer<const float>(dqueries), pointer<const float>(keys), pointer<const float>(dkeys),
         rows, queries.size(2) / heads, keys.size(3), of_channels, pointer<float>(terms));
  return terms;
}

void decay_gradients(const LinearAttentionTensors& in, const LinearAttentionTensors& gradients,
                     const Tensor& terms, const Tensor& anchors, int64_t anchor_tokens) {
  const int64_t B = terms.size(0), T = terms.size(1);
  const int64_t heads = terms.size(2) * (in.channel_decay() ? terms.size(3) : 1);
  const Sums sums{pointer<const float>(terms),
                  pointer<float>(gradients.log_decay),
                  T,
                  heads,
                  state_size(in.memory, B * heads),
                  state_size(in.mass, B * heads),
                  state_of<const float>(in.memory, in.mass),
                  state_of<const float>(gradients.memory, gradients.mass),
                  pointer_or_null<const int32_t>(in.context.segments),
                  pointer_or_null<const uint8_t>(in.context.key_mask),
                  pointer_or_null<const float>(anchors),
                  anchor_tokens};
  launch({"linear_attention_decay_sums", blocks_for(B * heads, 1), 32}, linear_attention_decay_sums,
         sums);
}

}  // namespace linnet::cuda::linear_attention_detail
