// Shared by the kernels of listed attention: one call's arrays, and the key that a query sees in a
// place of its list. Internal to this folder.
#pragma once

#include "attention/primitives/common/cuda/warp_items.h"
#include "attention/primitives/listed_attention/cuda/listed_attention.h"
#include "attention/primitives/listed_attention/pattern.h"
#include "core/cuda/random.h"

namespace linnet::cuda::listed_attention_detail {

using linnet::listed_attention_detail::draws_of;
using linnet::listed_attention_detail::DropoutDraws;

// Arrays are dense; optional ones may be null.
template <typename T>
struct ListedProblem {
  const T *q, *k, *v;
  const int32_t* index;
  const float* bias;
  const uint8_t *query_mask, *key_mask;
  const int64_t* examples;
  int64_t B, Tq, Tk, H, G, K, V;
  int64_t index_rows, index_heads, lists, length, bias_rows, bias_heads, time_offset;
  ListedAttentionOptions options;
  DropoutDraws first_draws{{}, 0, 0};  // of example 0 and head 0: divided and rounded on the host
  float keep_scale;                    // of the weights that dropout keeps
  float logit_scale;  // on tensor cores: of q . k, times log 2 e for exp2 instead of exp

  __host__ __device__ bool drops() const { return options.dropout > 0; }
  __device__ int64_t group(int64_t h) const { return h / (H / G); }
  // The numbers of (b, t, h) among the queries, and of (b, j, g) among the keys.
  __device__ int64_t query(int64_t b, int64_t t, int64_t h) const { return (b * Tq + t) * H + h; }
  __device__ int64_t key(int64_t b, int64_t j, int64_t g) const { return (b * Tk + j) * G + g; }
  // Which row of lists is that of (b, h).
  __device__ int64_t index_row(int64_t b, int64_t h) const {
    return (index_rows == 1 ? 0 : b) * index_heads + (index_heads == 1 ? 0 : h);
  }
  __device__ const int32_t* list(int64_t b, int64_t h, int64_t t) const {
    return index + (index_row(b, h) * lists + t / options.group) * length;
  }
  __device__ bool query_valid(int64_t b, int64_t t) const { return is_set(query_mask, b * Tq + t); }
  __device__ bool key_valid(int64_t b, int64_t j) const {
    return j >= 0 && j < Tk && is_set(key_mask, b * Tk + j);
  }
  __device__ DropoutDraws draws(int64_t b, int64_t h) const {
    DropoutDraws draws = first_draws;
    draws.example = static_cast<uint64_t>(examples != nullptr ? examples[b] : b);
    draws.key = key_of_step(options.dropout_key);
    draws.key.site = DropoutDraws::site_of(options.dropout_key, h);
    return draws;
  }
  // The logit of a query and place l of its list from q . k.
  __device__ float logit(int64_t b, int64_t h, int64_t t, int64_t l, float product) const {
    const float scaled = static_cast<float>(options.scale) * product;
    if (bias == nullptr) return scaled;
    const int64_t row = (bias_rows == 1 ? 0 : b) * bias_heads + (bias_heads == 1 ? 0 : h);
    return scaled + bias[(row * Tq + t) * length + l];
  }
  // The factor of dropout on a weight.
  __device__ float kept(const DropoutDraws& draws, int64_t t, int64_t l) const {
    if (!drops()) return 1.0f;
    return draws.keeps(time_offset + t, l) ? static_cast<float>(draws.keep_scale) : 0.0f;
  }
};

template <typename T>
ListedProblem<T> problem_of(const ListedAttentionTensors& in,
                            const ListedAttentionContext& context) {
  ListedProblem<T> p{};
  p.q = pointer<T>(in.q);
  p.k = pointer<T>(in.k);
  p.v = pointer<T>(in.v);
  p.index = pointer<int32_t>(context.index);
  p.bias = pointer_or_null<float>(in.bias);
  p.query_mask = pointer_or_null<uint8_t>(context.query_mask);
  p.key_mask = pointer_or_null<uint8_t>(context.key_mask);
  p.examples = pointer_or_null<int64_t>(context.place.examples);
  p.B = in.q.size(0);
  p.Tq = in.q.size(1);
  p.Tk = in.k.size(1);
  p.H = in.q.size(2);
  p.G = in.k.size(2);
  p.K = in.q.size(3);
  p.V = in.v.size(3);
  p.index_rows = context.index.size(0);
  p.index_heads = context.index.size(1);
  p.lists = context.index.size(2);
  p.length = context.index.size(3);
  p.bias_rows = in.bias.defined() ? in.bias.size(0) : 1;
  p.bias_heads = in.bias.defined() ? in.bias.size(1) : 1;
  p.time_offset = context.place.time_offset;
  p.options = context.options;
  p.first_draws = draws_of(context.options, 0, 0);
  p.keep_scale = static_cast<float>(p.first_draws.keep_scale);
  p.logit_scale = static_cast<float>(p.options.scale) * std::numbers::log2e_v<float>;
  return p;
}

// The places of every row of lists, sorted by key.
struct SortedPlaces {
  const int32_t *keys, *order;
};

// Work memory that holds them: i32 [rows, lists * length] each.
struct SortedIndex {
  explicit SortedIndex(const Tensor& index);
  SortedPlaces places() const;
  Tensor keys, order;
};

// The first of `count` ascending integers that is not below `bound`.
__device__ inline int64_t first_not_below(const int32_t* sorted, int64_t count, int64_t bound) {
  int64_t begin = 0, end = count;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (sorted[middle] < bound) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// dbias from dlogits [B,H,Tq,length]: sums over the rows and heads that share it, in order.
void sum_bias(const Tensor& dlogits, const Tensor& dbias);

}  // namespace linnet::cuda::listed_attention_detail
