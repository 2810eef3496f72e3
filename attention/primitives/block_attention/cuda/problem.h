// Shared by the kernels of block attention: one call's arrays, what a query sees, the weight of a
// pair. Internal to this folder and that of depthwise_conv.
#pragma once

#include "attention/primitives/block_attention/cuda/block_attention.h"
#include "attention/primitives/block_attention/cuda/pair_problem.h"
#include "attention/primitives/block_attention/cuda/plain_kernels.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda::block_attention_detail {

using linnet::block_attention_detail::KeyRange;
using linnet::block_attention_detail::Segment;

// Arrays are dense; optional ones may be null.
struct BlockProblem : PairProblem<BlockAttentionOptions> {
  using Values = StoredValues;
  using Results = StoredResults;
  static constexpr bool kLists = false;
  StoredValues q, k, v, past_k, past_v;
  const uint8_t* past_mask;
  const int32_t *span_begins, *span_ends, *positions;
  const int64_t* times;
  int64_t P, bias_heads, bias_count, bias_origin;
  bool cross;
  float logit_unit;  // on tensor cores: log 2 e for exp2 instead of exp

  __device__ bool normalised() const { return options.weights == BlockWeights::softmax; }
  // The time of query 0 of row b.
  __device__ int64_t row_time(int64_t b) const { return times != nullptr ? times[b] : time_offset; }
  // The segment that token t of row b belongs to (t = 0 where there are no tokens).
  __device__ Segment segment(int64_t b, int64_t t) const {
    if (cross) return {b, 0, Tq, 0, Tk, 0, 0, row_time(b), 0};
    const bool cut = span_begins != nullptr && Tq > 0;
    const int64_t begin = cut ? span_begins[b * Tq + t] : 0;
    const int64_t end = cut ? span_ends[b * Tq + t] : Tq;
    int64_t start = 0, past = 0;
    if (begin == 0) {
      start = positions != nullptr && Tq > 0 ? positions[b * Tq] : time_offset;
      past = P;
    }
    const int64_t time = row_time(b) + begin;
    return {b, begin, end - begin, begin, end - begin, past, start, time, time - past};
  }
  __device__ bool key_valid(const Segment& segment, int64_t u) const {
    if (u < segment.past) return is_set(past_mask, segment.row * P + u);
    return is_set(key_mask, segment.row * Tk + segment.key_begin + u - segment.past);
  }
  __device__ StoredValues key(const Segment& segment, int64_t u, int64_t g) const {
    return row_of(past_k, k, segment, u, g, K);
  }
  __device__ StoredValues value(const Segment& segment, int64_t u, int64_t g) const {
    return row_of(past_v, v, segment, u, g, V);
  }
  // What a query sees, by number u of a key in its segment; and who sees a key, past ones first.
  struct Row;
  struct Column;
  __device__ Row row(int64_t b, int64_t t, int64_t h) const;
  // Its draws, which kept() needs, are left to the caller.
  __device__ Row row_without_draws(int64_t b, int64_t t, int64_t h) const;
  __host__ __device__ int64_t columns() const { return P + Tk; }
  __device__ Column column(int64_t b, int64_t g, int64_t n) const;
  // The logit of query r and key u from q . k.
  __device__ float logit(const Segment& segment, int64_t h, int64_t r, int64_t u,
                         float product) const {
    const float scaled = static_cast<float>(options.scale) * product;
    if (bias == nullptr) return scaled;
    const int64_t distance = u - segment.past - r;
    return scaled + bias[(bias_heads == 1 ? 0 : h) * bias_count + distance + bias_origin];
  }
  // The factor of dropout on a weight.
  __device__ float kept(const DropoutDraws& draws, const Segment& segment, int64_t r,
                        int64_t u) const {
    if (!drops()) return 1.0f;
    return draws.keeps(segment.query_time + r, segment.key_time + u)
               ? static_cast<float>(draws.keep_scale)
               : 0.0f;
  }

 private:
  __device__ StoredValues row_of(StoredValues past, StoredValues now, const Segment& segment,
                                 int64_t u, int64_t g, int64_t width) const {
    if (u < segment.past) return past.from(((segment.row * P + u) * G + g) * width);
    return now.from(((segment.row * Tk + segment.key_begin + u - segment.past) * G + g) * width);
  }
};

struct BlockProblem::Row {
  const BlockProblem& p;
  Segment segment;
  DropoutDraws draws;
  int64_t h, g, r, begin, end;

  __device__ __forceinline__ bool sees(int64_t u) const { return p.key_valid(segment, u); }
  __device__ __forceinline__ StoredValues key(int64_t u) const { return p.key(segment, u, g); }
  __device__ __forceinline__ StoredValues value(int64_t u) const { return p.value(segment, u, g); }
  __device__ __forceinline__ float logit(int64_t u, float product) const {
    return p.logit(segment, h, r, u, product);
  }
  __device__ __forceinline__ float kept(int64_t u) const { return p.kept(draws, segment, r, u); }
};
__device__ __forceinline__ BlockProblem::Row BlockProblem::row_without_draws(int64_t b, int64_t t,
                                                                             int64_t h) const {
  const Segment own = segment(b, t);
  const int64_t r = t - own.query_begin;
  const KeyRange keys = visible_keys(own, options, r);
  return {*this,    own, first_draws, h,
          group(h), r,   keys.begin,  query_valid(b, t) ? keys.end : keys.begin};
}
__device__ __forceinline__ BlockProblem::Row BlockProblem::row(int64_t b, int64_t t,
                                                               int64_t h) const {
  Row own = row_without_draws(b, t, h);
  own.draws = draws(b, h);
  return own;
}

struct BlockProblem::Column {
  // Queries r of the segment.
  struct Readers {
    const Column& own;
    DropoutDraws draws;
    int64_t h, begin, end;

    __device__ __forceinline__ int64_t time(int64_t r) const { return own.segment.query_begin + r; }
    __device__ __forceinline__ float logit(int64_t r, float product) const {
      return own.p.logit(own.segment, h, r, own.u, product);
    }
    __device__ __forceinline__ float kept(int64_t r) const {
      return own.p.kept(draws, own.segment, r, own.u);
    }
  };
  const BlockProblem& p;
  Segment segment;
  int64_t g, u, place;
  bool past, valid;

  __device__ __forceinline__ StoredValues key() const { return p.key(segment, u, g); }
  __device__ __forceinline__ StoredValues value() const { return p.value(segment, u, g); }
  __device__ __forceinline__ Readers readers(int64_t h) const {
    const KeyRange queries = visible_queries(segment, p.options, u);
    return {*this, p.draws(segment.row, h), h, queries.begin, queries.end};
  }
};
__device__ __forceinline__ BlockProblem::Column BlockProblem::column(int64_t b, int64_t g,
                                                                     int64_t n) const {
  // Past keys belong to the first span; with no tokens nobody reads them.
  const bool past = n < P;
  const Segment own = segment(b, past || cross ? 0 : n - P);
  const int64_t u = past ? n : own.past + n - P - own.key_begin;
  const int64_t place = past ? (b * P + n) * G + g : (b * Tk + n - P) * G + g;
  return {*this, own, g, u, place, past, key_valid(own, u)};
}

__device__ __forceinline__ float dot(StoredValues a, StoredValues b, int64_t n) {
  float total = 0;
  for (int64_t c = 0; c < n; ++c) total += a.at(c) * b.at(c);
  return total;
}

inline BlockProblem problem_of(const BlockAttentionTensors& in,
                               const BlockAttentionContext& context) {
  BlockProblem p{};
  p.fill(in, context, DropoutDraws(context.options, 0, 0));
  p.q = stored_values(in.q);
  p.k = stored_values(in.k);
  p.v = stored_values(in.v);
  p.past_k = stored_values(in.past_k);
  p.past_v = stored_values(in.past_v);
  p.past_mask = pointer_or_null<uint8_t>(context.past_mask);
  p.P = in.past_k.defined() ? in.past_k.size(1) : 0;
  p.cross = context.cross;
  p.logit_unit = p.options.weights == BlockWeights::softmax ? std::numbers::log2e_v<float> : 1.0f;
  p.logit_scale = static_cast<float>(p.options.scale) * p.logit_unit;
  p.times = pointer_or_null<int64_t>(context.times);
  if (in.bias.defined()) {
    p.bias_heads = in.bias.size(0);
    p.bias_count = in.bias.size(1);
    p.bias_origin = context.bias_origin;
  }
  if (context.cross) return p;
  p.positions = pointer_or_null<int32_t>(context.positions);
  if (in.spans.defined()) {
    p.span_begins = pointer<int32_t>(in.spans);
    p.span_ends = p.span_begins + p.B * p.Tq;
  }
  return p;
}

// The plain kernels: block_attention_forward and block_attention_backward.
void forward(const BlockAttentionTensors& in, const BlockAttentionContext& context, const Tensor& y,
             const Tensor& log_sum_exp);
void backward(const BlockAttentionTensors& in, const BlockAttentionContext& context,
              const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
              const BlockAttentionTensors& gradients);

// dbias [bias_heads, bias_count] from partial sums [., H, bias_count], added in order; a table that
// all heads share gets the sum over heads too.
void sum_bias_partials(const BlockProblem& p, const Tensor& partial, float* dbias);

}  // namespace linnet::cuda::block_attention_detail
