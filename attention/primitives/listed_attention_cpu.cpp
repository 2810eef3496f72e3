// Listed attention on the CPU: the keys and values of a list are gathered once for the queries that
// share it; products are those of small tiles.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/primitives/block_attention_tiles.h"
#include "attention/primitives/listed_attention_pattern.h"
#include "attention/primitives/tile_gemm.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace listed_attention_detail;
using block_attention_detail::copy_padded;
using block_attention_detail::Workspace;

constexpr int64_t kQueries = 64;  // of a tile

// Some queries of one list and head, and the valid keys of that list; a thread's own.
template <typename T>
struct ListTile {
  const ListedAttentionInputs<T>& in;
  const ListedAttentionOptions& options;
  int64_t k_stride, v_stride, length;  // K, V and the longest list, in whole vectors
  T *k, *v;                            // [length, k_stride], [length, v_stride]
  T *q, *weights;                      // [kQueries, k_stride], [kQueries, length]
  T *dy, *dweights;                    // [kQueries, v_stride], [kQueries, length]
  T *wide_k, *wide_v;                  // products: [max(kQueries, length), .]
  std::vector<int64_t> places, keys;   // of the gathered keys
  std::vector<int64_t> times;          // of the gathered queries

  ListTile(const ListedAttentionInputs<T>& inputs, const ListedAttentionOptions& all_options)
      : in(inputs), options(all_options) {
    static thread_local Workspace<T> workspace;
    k_stride = simd::round_up<T>(in.q.K);
    v_stride = simd::round_up<T>(in.v.K);
    length = simd::round_up<T>(in.length);
    const int64_t rows = std::max(kQueries, length), both = k_stride + v_stride;
    workspace.rewind();
    workspace.reserve(length * both + kQueries * (both + 2 * length) + rows * both + 256);
    k = workspace.take(length * k_stride);
    v = workspace.take(length * v_stride);
    q = workspace.take(kQueries * k_stride);
    weights = workspace.take(kQueries * length);
    dy = workspace.take(kQueries * v_stride);
    dweights = workspace.take(kQueries * length);
    wide_k = workspace.take(rows * k_stride);
    wide_v = workspace.take(rows * v_stride);
  }

  int64_t count() const { return static_cast<int64_t>(places.size()); }
  int64_t queries() const { return static_cast<int64_t>(times.size()); }

  // Keys and values of a list, of which [first, end) are taken.
  void take_list(int64_t b, int64_t h, int64_t list, int64_t first, int64_t end) {
    const int64_t row = in.index_rows == 1 ? 0 : b, head = in.index_heads == 1 ? 0 : h;
    const int32_t* index = in.index + ((row * in.index_heads + head) * in.lists + list) * in.length;
    const int64_t g = h / (in.q.H / in.k.H);
    places.clear();
    keys.clear();
    for (int64_t l = 0; l < in.length; ++l) {
      if (index[l] < first || index[l] >= end) continue;
      if (!is_valid(in.key_mask, b, index[l], in.k.T)) continue;
      copy_padded(in.k.at(b, index[l], g), in.k.K, k + count() * k_stride, k_stride, 0);
      copy_padded(in.v.at(b, index[l], g), in.v.K, v + count() * v_stride, v_stride, 0);
      places.push_back(l);
      keys.push_back(index[l]);
    }
  }

  // Valid queries of [begin, end), and their logits in `weights`.
  void take_queries(int64_t b, int64_t h, int64_t begin, int64_t end) {
    times.clear();
    for (int64_t t = begin; t < end; ++t) {
      if (!is_valid(in.query_mask, b, t, in.q.T)) continue;
      copy_padded(in.q.at(b, t, h), in.q.K, q + queries() * k_stride, k_stride, 0);
      times.push_back(t);
    }
    tile_gemm<T>(queries(), count(), in.q.K, static_cast<T>(options.scale), {q, k_stride},
                 {k, k_stride, true}, Write::overwrite, weights, length);
    if (in.bias == nullptr) return;
    for (int64_t r = 0; r < queries(); ++r) {
      const T* bias = in.bias + bias_offset(b, h, times[r]);
      for (int64_t j = 0; j < count(); ++j) weights[r * length + j] += bias[places[j]];
    }
  }
  int64_t bias_offset(int64_t b, int64_t h, int64_t t) const {
    const int64_t row = in.bias_rows == 1 ? 0 : b, head = in.bias_heads == 1 ? 0 : h;
    return ((row * in.bias_heads + head) * in.q.T + t) * in.length;
  }

  // Calls body(begin, end) on the queries of a list, a tile at a time.
  template <typename Body>
  void for_tiles(int64_t list, const Body& body) const {
    const int64_t end = std::min(in.q.T, (list + 1) * options.group);
    for (int64_t begin = list * options.group; begin < end; begin += kQueries) {
      body(begin, std::min(end, begin + kQueries));
    }
  }
  block_attention_detail::DropoutDraws draws(int64_t b, int64_t h) const {
    return draws_of(options, in.example_ids != nullptr ? in.example_ids[b] : b, h);
  }
};

template <typename T>
void forward_queries(ListTile<T>& tile, int64_t b, int64_t h, int64_t begin, int64_t end,
                     const SequenceView<T>& y, T* log_sum_exp) {
  const auto& in = tile.in;
  const T infinity = std::numeric_limits<T>::infinity();
  tile.take_queries(b, h, begin, end);
  for (int64_t t = begin; t < end; ++t) {
    std::fill_n(y.at(b, t, h), in.v.K, T{0});
    log_sum_exp[(b * in.q.T + t) * in.q.H + h] = -infinity;
  }
  const int64_t count = tile.count(), queries = tile.queries();
  if (count == 0) return;
  const auto draws = tile.draws(b, h);
  T factors[kQueries];
  for (int64_t r = 0; r < queries; ++r) {
    T* row = tile.weights + r * tile.length;
    const int64_t t = tile.times[r];
    const T largest = max_row(row, count);
    factors[r] = 0;
    // No key: a finite shift keeps exp(-infinity) = 0.
    const T sum = exp_row(row, count, largest == -infinity ? T{0} : largest, row);
    if (largest == -infinity) continue;
    factors[r] = 1 / sum;
    log_sum_exp[(b * in.q.T + t) * in.q.H + h] = largest + std::log(sum);
    for (int64_t j = 0; tile.options.dropout > 0 && j < count; ++j) {
      row[j] *=
          draws.keeps(in.time_offset + t, tile.places[j]) ? static_cast<T>(draws.keep_scale) : T{0};
    }
  }
  tile_gemm<T>(queries, tile.v_stride, count, T{1}, {tile.weights, tile.length},
               {tile.v, tile.v_stride}, Write::overwrite, tile.wide_v, tile.v_stride);
  for (int64_t r = 0; r < queries; ++r) {
    T* out = y.at(b, tile.times[r], h);
    for (int64_t c = 0; c < in.v.K; ++c) out[c] = factors[r] * tile.wide_v[r * tile.v_stride + c];
  }
}

// What backward reads and writes besides the inputs.
template <typename T>
struct BackwardArrays {
  SequenceView<const T> y, dy;
  const T *log_sum_exp, *dlog_sum_exp;
  SequenceView<T> dq, dk, dv;
  T* dlogits;  // [B,H,Tq,length] zeros, or null
};

// Of valid queries of [begin, end): weights as they act on values, and in `dweights` the gradients
// of their logits.
template <typename T>
void differentiate_logits(ListTile<T>& tile, int64_t b, int64_t h, int64_t begin, int64_t end,
                          const BackwardArrays<T>& arrays) {
  const auto& in = tile.in;
  const int64_t V = in.v.K, count = tile.count(), length = tile.length;
  tile.take_queries(b, h, begin, end);
  const int64_t queries = tile.queries();
  const auto draws = tile.draws(b, h);
  for (int64_t r = 0; r < queries; ++r) {
    copy_padded(arrays.dy.at(b, tile.times[r], h), V, tile.dy + r * tile.v_stride, tile.v_stride,
                0);
  }
  tile_gemm<T>(queries, count, V, T{1}, {tile.dy, tile.v_stride}, {tile.v, tile.v_stride, true},
               Write::overwrite, tile.dweights, length);
  for (int64_t r = 0; r < queries; ++r) {
    const int64_t t = tile.times[r], number = (b * in.q.T + t) * in.q.H + h;
    T* weight = tile.weights + r * length;
    T* dweight = tile.dweights + r * length;
    const T log_sum_exp = arrays.log_sum_exp[number];
    if (log_sum_exp == -std::numeric_limits<T>::infinity()) {
      std::fill_n(weight, count, T{0});
      std::fill_n(dweight, count, T{0});
      continue;
    }
    exp_row(weight, count, log_sum_exp, weight);
    // What the normalising sum takes from every weight's gradient, and gets from its own.
    T shift = -dot_row(arrays.y.at(b, t, h), arrays.dy.at(b, t, h), V);
    if (arrays.dlog_sum_exp != nullptr) shift += arrays.dlog_sum_exp[number];
    for (int64_t j = 0; j < count; ++j) {
      T kept = 1;
      if (tile.options.dropout > 0) {
        kept = draws.keeps(in.time_offset + t, tile.places[j]) ? static_cast<T>(draws.keep_scale)
                                                               : T{0};
      }
      dweight[j] = weight[j] * (kept * dweight[j] + shift);
      weight[j] *= kept;
    }
  }
}

// dq, and where they are wanted the gradients of logits, of queries whose whole list is here.
template <typename T>
void write_queries(ListTile<T>& tile, int64_t b, int64_t h, const BackwardArrays<T>& arrays) {
  const auto& in = tile.in;
  const int64_t K = in.q.K, count = tile.count(), queries = tile.queries();
  tile_gemm<T>(queries, tile.k_stride, count, static_cast<T>(tile.options.scale),
               {tile.dweights, tile.length}, {tile.k, tile.k_stride}, Write::overwrite, tile.wide_k,
               tile.k_stride);
  for (int64_t r = 0; r < queries; ++r) {
    std::copy_n(tile.wide_k + r * tile.k_stride, K, arrays.dq.at(b, tile.times[r], h));
    if (arrays.dlogits == nullptr) continue;
    T* dlogits = arrays.dlogits + ((b * in.q.H + h) * in.q.T + tile.times[r]) * in.length;
    for (int64_t j = 0; j < count; ++j) {
      dlogits[tile.places[j]] = tile.dweights[r * tile.length + j];
    }
  }
}

// What the queries add to dk and dv of the keys that are here.
template <typename T>
void add_keys(ListTile<T>& tile, int64_t b, int64_t h, const BackwardArrays<T>& arrays) {
  const auto& in = tile.in;
  const int64_t count = tile.count(), length = tile.length, queries = tile.queries();
  tile_gemm<T>(count, tile.k_stride, queries, static_cast<T>(tile.options.scale),
               {tile.dweights, length, true}, {tile.q, tile.k_stride}, Write::overwrite,
               tile.wide_k, tile.k_stride);
  tile_gemm<T>(count, tile.v_stride, queries, T{1}, {tile.weights, length, true},
               {tile.dy, tile.v_stride}, Write::overwrite, tile.wide_v, tile.v_stride);
  const int64_t g = h / (in.q.H / in.k.H);
  for (int64_t j = 0; j < count; ++j) {
    axpy_row(in.q.K, T{1}, tile.wide_k + j * tile.k_stride, arrays.dk.at(b, tile.keys[j], g));
    axpy_row(in.v.K, T{1}, tile.wide_v + j * tile.v_stride, arrays.dv.at(b, tile.keys[j], g));
  }
}

// Gradients of a list's queries.
template <typename T>
void backward_list(ListTile<T>& tile, int64_t b, int64_t h, int64_t list, bool with_keys,
                   const BackwardArrays<T>& arrays) {
  tile.take_list(b, h, list, 0, tile.in.k.T);
  tile.for_tiles(list, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) std::fill_n(arrays.dq.at(b, t, h), tile.in.q.K, T{0});
    if (tile.count() == 0) return;
    differentiate_logits(tile, b, h, begin, end, arrays);
    write_queries(tile, b, h, arrays);
    if (with_keys) add_keys(tile, b, h, arrays);
  });
}

// dk and dv of the keys [first, end), from all lists; what they were is overwritten.
template <typename T>
void backward_keys(ListTile<T>& tile, int64_t b, int64_t g, int64_t first, int64_t end,
                   bool with_queries, const BackwardArrays<T>& arrays) {
  const auto& in = tile.in;
  const int64_t heads = in.q.H / in.k.H;
  for (int64_t t = first; t < end; ++t) {
    std::fill_n(arrays.dk.at(b, t, g), in.k.K, T{0});
    std::fill_n(arrays.dv.at(b, t, g), in.v.K, T{0});
  }
  for (int64_t h = g * heads; h < (g + 1) * heads; ++h) {
    for (int64_t list = 0; list < in.lists; ++list) {
      if (with_queries) {
        backward_list(tile, b, h, list, true, arrays);
        continue;
      }
      tile.take_list(b, h, list, first, end);
      if (tile.count() == 0) continue;
      tile.for_tiles(list, [&](int64_t begin, int64_t stop) {
        differentiate_logits(tile, b, h, begin, stop, arrays);
        add_keys(tile, b, h, arrays);
      });
    }
  }
}

// Into how many ranges the keys of a head are cut, so that every thread has one. Weights are then
// computed twice, for queries and for keys: 7 products a tile instead of 5.
int64_t ranges_of_keys(int64_t heads, int64_t keys) {
  constexpr int64_t kFewest = 32;
  const int64_t threads = thread_count();
  if (7 * heads > 5 * threads) return 1;
  return std::clamp((threads + heads - 1) / heads, int64_t{1},
                    std::max(keys / kFewest, int64_t{1}));
}

// dbias from dlogits [B,H,n]: sums over the rows and heads that share it, in order.
template <typename T>
void sum_bias(const ListedAttentionInputs<T>& in, const T* dlogits, T* dbias) {
  const int64_t n = in.q.T * in.length;
  const int64_t rows = in.q.B / std::max<int64_t>(1, in.bias_rows);
  const int64_t heads = in.q.H / in.bias_heads;
  parallel_for(in.bias_rows * in.bias_heads * n, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first_row = i / n / in.bias_heads, first_head = i / n % in.bias_heads;
      T total = 0;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t head = 0; head < heads; ++head) {
          total += dlogits[((first_row + row) * in.q.H + first_head + head) * n + i % n];
        }
      }
      dbias[i] = total;
    }
  });
}

}  // namespace

template <typename T>
void listed_attention_forward(const ListedAttentionInputs<T>& in,
                              const ListedAttentionOptions& options, SequenceView<T> y,
                              T* log_sum_exp) {
  check_listed_attention(in, options);
  const int64_t H = in.q.H;
  parallel_tasks(in.q.B * H * in.lists, 4, [&] {
    return [&, tile = ListTile<T>(in, options)](int64_t task) mutable {
      const int64_t list = task % in.lists, h = task / in.lists % H, b = task / in.lists / H;
      tile.take_list(b, h, list, 0, in.k.T);
      tile.for_tiles(list, [&](int64_t begin, int64_t end) {
        forward_queries(tile, b, h, begin, end, y, log_sum_exp);
      });
    };
  });
}

template <typename T>
void listed_attention_backward(const ListedAttentionInputs<T>& in,
                               const ListedAttentionOptions& options, SequenceView<const T> y,
                               const T* log_sum_exp, SequenceView<const T> dy,
                               const T* dlog_sum_exp, const ListedAttentionGradients<T>& out) {
  check_listed_attention(in, options);
  const bool shared_bias = in.bias_rows != in.q.B || in.bias_heads != in.q.H;
  const int64_t pairs = in.q.B * in.q.H * in.q.T * in.length;
  std::vector<T> dlogits(static_cast<size_t>(out.dbias != nullptr && shared_bias ? pairs : 0));
  BackwardArrays<T> arrays{y, dy, log_sum_exp, dlog_sum_exp, out.dq, out.dk, out.dv, nullptr};
  if (out.dbias != nullptr) {
    arrays.dlogits = shared_bias ? dlogits.data() : out.dbias;
    if (!shared_bias) std::fill_n(out.dbias, pairs, T{0});
  }
  // One task for all that adds to the same keys.
  const int64_t G = in.k.H, Tk = in.k.T, ranges = ranges_of_keys(in.q.B * G, Tk);
  if (ranges > 1) {
    parallel_tasks(in.q.B * in.q.H * in.lists, 4, [&] {
      return [&, tile = ListTile<T>(in, options)](int64_t task) mutable {
        const int64_t head = task / in.lists;
        backward_list(tile, head / in.q.H, head % in.q.H, task % in.lists, false, arrays);
      };
    });
  }
  parallel_tasks(in.q.B * G * ranges, 1, [&] {
    return [&, tile = ListTile<T>(in, options)](int64_t task) mutable {
      const int64_t b = task / ranges / G, g = task / ranges % G, range = task % ranges;
      backward_keys(tile, b, g, range * Tk / ranges, (range + 1) * Tk / ranges, ranges == 1,
                    arrays);
    };
  });
  if (out.dbias != nullptr && shared_bias) sum_bias(in, dlogits.data(), out.dbias);
}

template void listed_attention_forward<float>(const ListedAttentionInputs<float>&,
                                              const ListedAttentionOptions&, SequenceView<float>,
                                              float*);
template void listed_attention_forward<double>(const ListedAttentionInputs<double>&,
                                               const ListedAttentionOptions&, SequenceView<double>,
                                               double*);
template void listed_attention_backward<float>(const ListedAttentionInputs<float>&,
                                               const ListedAttentionOptions&,
                                               SequenceView<const float>, const float*,
                                               SequenceView<const float>, const float*,
                                               const ListedAttentionGradients<float>&);
template void listed_attention_backward<double>(const ListedAttentionInputs<double>&,
                                                const ListedAttentionOptions&,
                                                SequenceView<const double>, const double*,
                                                SequenceView<const double>, const double*,
                                                const ListedAttentionGradients<double>&);

}  // namespace linnet
