// The common part of what block and listed attention give their kernels, plain and fast. Internal
// to this folder and that of listed_attention.
#pragma once

#include "attention/primitives/block_attention/pattern.h"
#include "core/cuda/kernel.h"
#include "core/cuda/mask.h"
#include "core/cuda/random.h"

namespace linnet::cuda::block_attention_detail {

using linnet::block_attention_detail::DropoutDraws;

// Optional arrays may be null.
template <typename Options>
struct PairProblem {
  const float* bias;
  const uint8_t *query_mask, *key_mask;
  const int64_t* examples;
  int64_t B, Tq, Tk, H, G, K, V, time_offset;
  Options options;
  DropoutDraws first_draws{{}, 0, 0};  // of example 0 and head 0: divided and rounded on the host
  float keep_scale;                    // of the weights that dropout keeps
  float logit_scale;                   // on tensor cores: of q . k, in the unit of logits

  // All but logit_scale.
  template <typename Tensors, typename Context>
  void fill(const Tensors& in, const Context& context, const DropoutDraws& draws) {
    bias = pointer_or_null<float>(in.bias);
    query_mask = pointer_or_null<uint8_t>(context.query_mask);
    key_mask = pointer_or_null<uint8_t>(context.key_mask);
    examples = pointer_or_null<int64_t>(context.place.examples);
    B = in.q.size(0);
    Tq = in.q.size(1);
    Tk = in.k.size(1);
    H = in.q.size(2);
    G = in.k.size(2);
    K = in.q.size(3);
    V = in.v.size(3);
    time_offset = context.place.time_offset;
    options = context.options;
    first_draws = draws;
    keep_scale = static_cast<float>(draws.keep_scale);
  }
  __host__ __device__ bool drops() const { return options.dropout > 0; }
  __device__ int64_t group(int64_t h) const { return h / (H / G); }
  // In 32 bits, where a division takes a quarter of the instructions.
  __device__ int heads_of_group() const { return static_cast<int>(H) / static_cast<int>(G); }
  __device__ int group(int h) const { return h / heads_of_group(); }
  // The number of (b, t, h) among the queries.
  __device__ int64_t query(int64_t b, int64_t t, int64_t h) const { return (b * Tq + t) * H + h; }
  __device__ bool query_valid(int64_t b, int64_t t) const { return is_set(query_mask, b * Tq + t); }
  __device__ DropoutDraws draws(int64_t b, int64_t h) const {
    DropoutDraws draws = first_draws;
    draws.example = static_cast<uint64_t>(examples != nullptr ? examples[b] : b);
    draws.key = key_of_step(options.dropout_key);
    draws.key.site = DropoutDraws::site_of(options.dropout_key, h);
    return draws;
  }
};

}  // namespace linnet::cuda::block_attention_detail
