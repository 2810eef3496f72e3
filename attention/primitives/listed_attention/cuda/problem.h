// Shared by the kernels of listed attention: one call's arrays, and the key that a query sees in a
// place of its list. Internal to this folder.
#pragma once

#include "attention/primitives/block_attention/cuda/pair_problem.h"
#include "attention/primitives/block_attention/cuda/plain_kernels.h"
#include "attention/primitives/listed_attention/cuda/listed_attention.h"
#include "attention/primitives/listed_attention/pattern.h"

namespace linnet::cuda::listed_attention_detail {

using block_attention_detail::PairProblem;
using linnet::listed_attention_detail::draws_of;
using linnet::listed_attention_detail::DropoutDraws;

// Arrays of kernels whose type is known to the compiler, as StoredValues and StoredResults.
template <typename T>
struct TypedValues {
  const T* data;
  __device__ float at(int64_t i) const { return load(data + i); }
  __device__ TypedValues from(int64_t first) const { return {data + first}; }
};
template <typename T>
struct TypedResults {
  T* data;
  __device__ void put(int64_t i, float value) const { store(data + i, value); }
};

// The places of every row of lists, sorted by key.
struct SortedPlaces {
  const int32_t *keys, *order;
};

// Arrays are dense; optional ones may be null.
template <typename T>
struct ListedProblem : PairProblem<ListedAttentionOptions> {
  using Values = TypedValues<T>;
  using Results = TypedResults<T>;
  static constexpr bool kLists = true;
  Values q, k, v;
  const int32_t* index;
  int64_t index_rows, index_heads, lists, length, bias_rows, bias_heads;

  __device__ static constexpr bool normalised() { return true; }
  // What a query sees, by place l of its list; and who sees key j, by numbers of pairs of a sorted
  // place and one of the queries of its list.
  struct Row;
  struct Column;
  __device__ __forceinline__ Row row(int64_t b, int64_t t, int64_t h) const {
    return {
        *this, b, t, h, group(h), list(b, h, t), draws(b, h), 0, query_valid(b, t) ? length : 0};
  }
  __host__ __device__ int64_t columns() const { return Tk; }
  __device__ __forceinline__ Column column(int64_t b, int64_t g, int64_t j,
                                           const SortedPlaces& sorted) const {
    return {*this, sorted, b, g, j, key(b, j, g), key_valid(b, j)};
  }
  // The number of (b, j, g) among the keys.
  __device__ int64_t key(int64_t b, int64_t j, int64_t g) const { return (b * Tk + j) * G + g; }
  // Which row of lists is that of (b, h).
  __device__ int64_t index_row(int64_t b, int64_t h) const {
    return (index_rows == 1 ? 0 : b) * index_heads + (index_heads == 1 ? 0 : h);
  }
  __device__ const int32_t* list(int64_t b, int64_t h, int64_t t) const {
    return index + (index_row(b, h) * lists + t / options.group) * length;
  }
  __device__ bool key_valid(int64_t b, int64_t j) const {
    return j >= 0 && j < Tk && is_set(key_mask, b * Tk + j);
  }
  // The logit of a query and place l of its list from q . k.
  __device__ float logit(int64_t b, int64_t h, int64_t t, int64_t l, float product) const {
    const float scaled = static_cast<float>(options.scale) * product;
    if (bias == nullptr) return scaled;
    const int64_t row = (bias_rows == 1 ? 0 : b) * bias_heads + (bias_heads == 1 ? 0 : h);
    return scaled + bias[(row * Tq + t) * length + l];
  }
  // The factor of dropout on a weight, where there is dropout.
  __device__ float kept(const DropoutDraws& draws, int64_t t, int64_t l) const {
    return draws.keeps(time_offset + t, l) ? static_cast<float>(draws.keep_scale) : 0.0f;
  }
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

template <typename T>
struct ListedProblem<T>::Row {
  const ListedProblem& p;
  int64_t b, t, h, g;
  const int32_t* list;
  DropoutDraws draws;
  int64_t begin, end;

  __device__ __forceinline__ bool sees(int64_t l) const { return p.key_valid(b, list[l]); }
  __device__ __forceinline__ bool beyond(int64_t l) const {
    return list[l] < -1 || list[l] >= p.Tk;
  }
  __device__ __forceinline__ Values key(int64_t l) const {
    return p.k.from(p.key(b, list[l], g) * p.K);
  }
  __device__ __forceinline__ Values value(int64_t l) const {
    return p.v.from(p.key(b, list[l], g) * p.V);
  }
  __device__ __forceinline__ float logit(int64_t l, float product) const {
    return p.logit(b, h, t, l, product);
  }
  __device__ __forceinline__ float kept(int64_t l) const {
    return p.drops() ? p.kept(draws, t, l) : 1.0f;
  }
  // Place of the logit in [B,H,Tq,length].
  __device__ __forceinline__ int64_t number(int64_t l) const {
    return ((b * p.H + h) * p.Tq + t) * p.length + l;
  }
};

template <typename T>
struct ListedProblem<T>::Column {
  struct Readers {
    const Column& own;
    DropoutDraws draws;
    int64_t h;
    const int32_t* order;  // of the places that name the key
    int64_t begin, end;

    __device__ __forceinline__ int64_t time(int64_t n) const {
      const int64_t group = own.p.options.group;
      return order[n / group] / own.p.length * group + n % group;
    }
    __device__ __forceinline__ int64_t place(int64_t n) const {
      return order[n / own.p.options.group] % own.p.length;
    }
    __device__ __forceinline__ float logit(int64_t n, float product) const {
      return own.p.logit(own.b, h, time(n), place(n), product);
    }
    __device__ __forceinline__ float kept(int64_t n) const {
      // Time and place are not looked up for nothing.
      return own.p.drops() ? own.p.kept(draws, time(n), place(n)) : 1.0f;
    }
  };
  static constexpr bool past = false;
  const ListedProblem& p;
  const SortedPlaces& sorted;
  int64_t b, g, j, place;
  bool valid;

  __device__ __forceinline__ Values key() const { return p.k.from(place * p.K); }
  __device__ __forceinline__ Values value() const { return p.v.from(place * p.V); }
  __device__ __forceinline__ Readers readers(int64_t h) const {
    const int64_t all = p.lists * p.length, row = p.index_row(b, h) * all;
    const int32_t* keys = sorted.keys + row;
    const int64_t begin = first_not_below(keys, all, j);
    const int64_t count = first_not_below(keys + begin, all - begin, j + 1);
    return {*this, p.draws(b, h), h, sorted.order + row + begin, 0, count * p.options.group};
  }
};

template <typename T>
ListedProblem<T> problem_of(const ListedAttentionTensors& in,
                            const ListedAttentionContext& context) {
  ListedProblem<T> p{};
  p.fill(in, context, draws_of(context.options, 0, 0));
  p.q = {pointer<T>(in.q)};
  p.k = {pointer<T>(in.k)};
  p.v = {pointer<T>(in.v)};
  p.index = pointer<int32_t>(context.index);
  p.index_rows = context.index.size(0);
  p.index_heads = context.index.size(1);
  p.lists = context.index.size(2);
  p.length = context.index.size(3);
  p.bias_rows = in.bias.defined() ? in.bias.size(0) : 1;
  p.bias_heads = in.bias.defined() ? in.bias.size(1) : 1;
  p.logit_scale = static_cast<float>(p.options.scale) * std::numbers::log2e_v<float>;
  return p;
}

// Work memory that holds them: i32 [rows, lists * length] each.
struct SortedIndex {
  explicit SortedIndex(const Tensor& index);
  SortedPlaces places() const;
  Tensor keys, order;
};

// The plain kernels: listed_attention_forward and listed_attention_backward.
void forward(const ListedAttentionTensors& in, const ListedAttentionContext& context,
             const Tensor& y, const Tensor& log_sum_exp);
void backward(const ListedAttentionTensors& in, const ListedAttentionContext& context,
              const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
              const Tensor& dlog_sum_exp, const ListedAttentionTensors& gradients);

// dbias [bias_rows, bias_heads, Tq, length] from dlogits [B,H,Tq,length]: sums over the rows and
// heads that share it, in order.
void sum_bias(const Tensor& dlogits, int64_t bias_rows, int64_t bias_heads, float* dbias);

}  // namespace linnet::cuda::listed_attention_detail
