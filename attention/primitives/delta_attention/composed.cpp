// The delta rule as operations of autograd: the plain path, and the test of any other.
#include "attention/primitives/delta_attention/delta_attention.h"

#include <algorithm>
#include <vector>

#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "autograd/layout.h"
#include "autograd/products.h"
#include "autograd/reductions.h"

namespace linnet {
namespace {

constexpr int64_t kChunk = 64;

constexpr auto kFlipped = Transpose::yes;
constexpr auto kPlain = Transpose::no;

// Tokens and heads swapped, masked tokens 0: x [B,T,H,..] to [B,H,T,..].
Variable of_heads(const Variable& x, const Tensor& mask) {
  const Variable swapped = transpose(x, 1, 2);
  if (!mask.defined()) return swapped;
  std::vector<int64_t> sizes(x.shape().rank(), 1);
  sizes[0] = x.size(0);
  sizes[2] = x.size(1);
  return masked_fill(swapped, mask.reshape(Shape(sizes)), 0);
}

// 1 where two segments [B,1,n,1] and [B,1,1,m] are the same, else 0: f32 or f64.
Variable same(const Tensor& a, const Tensor& b) {
  const Variable distance = subtract(Variable(a), Variable(b));
  return exp(scale(multiply(distance, distance), -1e9));
}

// A chunk of n tokens; all [B,H,n,.]. `sum` are running sums of log_decay inside the chunk.
struct Chunk {
  Variable q, k, v, beta, sum;
  Tensor segments, segment_before;  // [B,1,n], [B,1,1]; undefined: one
};

// What the state before the chunk is multiplied by on its way to each token, [B,H,n,1].
Variable factor_from_start(const Chunk& c) {
  Variable factor;
  if (c.sum.defined()) factor = exp(c.sum);
  if (!c.segments.defined()) return factor;
  const int64_t B = c.segments.size(0), n = c.segments.size(2);
  const Variable own =
      same(c.segments.reshape({B, 1, n, 1}), c.segment_before.reshape({B, 1, 1, 1}));
  return factor.defined() ? multiply(factor, own) : own;
}

// What goes from token j to token i of the chunk, [B,H,n,n]; above the diagonal it is not to be
// used. Undefined: 1.
Variable factor_between(const Chunk& c) {
  Variable factor;
  if (c.sum.defined()) {
    // Above the diagonal the difference is positive and might overflow.
    factor = exp(fill_above_diagonal(subtract(c.sum, transpose(c.sum, 2, 3)), 0));
  }
  if (!c.segments.defined()) return factor;
  const int64_t B = c.segments.size(0), n = c.segments.size(2);
  const Variable own = same(c.segments.reshape({B, 1, n, 1}), c.segments.reshape({B, 1, 1, n}));
  return factor.defined() ? multiply(factor, own) : own;
}

Variable times(const Variable& x, const Variable& factor) {
  return factor.defined() ? multiply(x, factor) : x;
}

// y [B,H,n,V] of the chunk; `state` [B,H,K,V] moves on.
Variable through(const Chunk& c, Variable& state) {
  const int64_t n = c.q.size(2);
  const Variable start = factor_from_start(c), between = factor_between(c);
  const Variable expected = times(matmul(c.k, state), start);
  const Variable pairs = times(matmul(c.k, c.k, kPlain, kFlipped), between);
  const Variable corrections =
      unit_triangular_solve(multiply(pairs, c.beta), multiply(subtract(c.v, expected), c.beta));
  const Variable weights =
      fill_above_diagonal(times(matmul(c.q, c.k, kPlain, kFlipped), between), 0);
  const Variable y = add(times(matmul(c.q, state), start), matmul(weights, corrections));
  Variable kept = state, written = corrections;
  if (start.defined()) kept = multiply(state, slice(start, 2, n - 1, n));
  if (between.defined()) {
    written = multiply(corrections, transpose(slice(between, 2, n - 1, n), 2, 3));
  }
  state = add(kept, matmul(c.k, written, kFlipped));
  return y;
}

}  // namespace

DeltaAttentionResult delta_attention_composed(const DeltaAttentionVariables& in,
                                              const DeltaAttentionContext& context,
                                              const Variable& state) {
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2), K = in.q.size(3),
                V = in.v.size(3);
  const Device device = in.q.value().device();
  const DType dtype = in.q.dtype();
  const Tensor& mask = context.key_mask;
  const Variable q = scale(of_heads(in.q, mask), context.query_scale), k = of_heads(in.k, mask),
                 v = of_heads(in.v, mask);
  const Variable beta = of_heads(reshape(in.beta, {B, T, H, 1}), mask);
  Variable decay;
  if (in.log_decay.defined()) decay = of_heads(reshape(in.log_decay, {B, T, H, 1}), mask);
  const Tensor segments =
      context.segments.defined() ? context.segments.to(dtype).reshape({B, 1, T}) : Tensor();
  DeltaAttentionResult result;
  result.state = state.defined() ? state : Variable(Tensor::zeros({B, H, K, V}, dtype, device));
  std::vector<Variable> parts;
  for (int64_t begin = 0; begin < T; begin += kChunk) {
    const int64_t end = std::min(T, begin + kChunk);
    const auto part = [&](const Variable& x) { return slice(x, 2, begin, end); };
    Chunk c{part(q), part(k), part(v), part(beta), {}, {}, {}};
    if (decay.defined()) c.sum = cumulative_sum(part(decay), 2);
    if (segments.defined()) {
      c.segments = slice(segments, 2, begin, end);
      const int64_t before = std::max<int64_t>(0, begin - 1);
      c.segment_before = slice(segments, 2, before, before + 1);
    }
    parts.push_back(through(c, result.state));
  }
  result.y = transpose(concatenate(parts, 2), 1, 2);
  return result;
}

}  // namespace linnet
