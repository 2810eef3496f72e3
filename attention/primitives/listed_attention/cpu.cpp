// Listed attention on the CPU: the keys and values of a list are gathered chunk by chunk for tiles
// of the queries that share it; products are those of small tiles.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/primitives/common/tile_gemm.h"
#include "attention/primitives/listed_attention/tile.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace listed_attention_detail;

// Softmax over the chunks of a list: of each query the largest logit so far, and relative to it
// the sum of weights and, in tile.y, that of weighted values.
template <typename T>
struct RunningSums {
  T largest[kQueries], sums[kQueries];

  void start(const ListTile<T>& tile) {
    std::fill_n(largest, kQueries, -std::numeric_limits<T>::infinity());
    std::fill_n(sums, kQueries, T{0});
    std::fill_n(tile.y, tile.queries() * tile.v_stride, T{0});
  }
  void add_chunk(ListTile<T>& tile, int64_t b, int64_t h) {
    const auto draws = tile.draws(b, h);
    const int64_t count = tile.count();
    tile.take_logits(b, h);
    for (int64_t r = 0; r < tile.queries(); ++r) {
      T* row = tile.weights + r * tile.length;
      const T before = largest[r];
      largest[r] = std::max(before, max_row(row, count));
      // No key yet: a finite shift keeps exp(-infinity) = 0.
      const T shift = largest[r] == -std::numeric_limits<T>::infinity() ? T{0} : largest[r];
      const T sum = exp_row(row, count, shift, row);
      const T kept = largest[r] == before ? T{1} : std::exp(before - shift);
      sums[r] = kept * sums[r] + sum;
      T* to = tile.y + r * tile.v_stride;
      for (int64_t c = 0; kept < 1 && c < tile.v_stride; ++c) to[c] *= kept;
      for (int64_t j = 0; tile.options.dropout > 0 && j < count; ++j) {
        const bool keeps = draws.keeps(tile.in.time_offset + tile.times[r], tile.places[j]);
        row[j] *= keeps ? static_cast<T>(draws.keep_scale) : T{0};
      }
    }
    tile_gemm<T>(tile.queries(), tile.v_stride, count, T{1}, {tile.weights, tile.length},
                 {tile.v, tile.v_stride}, Write::accumulate, tile.y, tile.v_stride);
  }
};

template <typename T>
void forward_queries(ListTile<T>& tile, int64_t b, int64_t h, int64_t list, int64_t begin,
                     int64_t end, const SequenceView<T>& y, T* log_sum_exp) {
  const auto& in = tile.in;
  const T infinity = std::numeric_limits<T>::infinity();
  for (int64_t t = begin; t < end; ++t) {
    std::fill_n(y.at(b, t, h), in.v.K, T{0});
    log_sum_exp[(b * in.q.T + t) * in.q.H + h] = -infinity;
  }
  tile.take_queries(b, h, begin, end);
  RunningSums<T> running;
  running.start(tile);
  tile.for_chunks(b, h, list, 0, in.k.T, [&] { running.add_chunk(tile, b, h); });
  for (int64_t r = 0; r < tile.queries(); ++r) {
    if (running.sums[r] == 0) continue;  // no key; sums of NaN pass
    const int64_t t = tile.times[r];
    log_sum_exp[(b * in.q.T + t) * in.q.H + h] = running.largest[r] + std::log(running.sums[r]);
    T* out = y.at(b, t, h);
    const T factor = 1 / running.sums[r];
    for (int64_t c = 0; c < in.v.K; ++c) out[c] = factor * tile.y[r * tile.v_stride + c];
  }
}

// Further inputs of backward, and its outputs.
template <typename T>
struct BackwardArrays {
  SequenceView<const T> y, dy;
  const T *log_sum_exp, *dlog_sum_exp;
  SequenceView<T> dq, dk, dv;
  T* dlogits;  // [B,H,Tq,length] zeros, or null
};

// For the gathered queries and keys: weights as they act on values, and in `dweights` the gradients
// of their logits.
template <typename T>
void differentiate_logits(ListTile<T>& tile, int64_t b, int64_t h,
                          const BackwardArrays<T>& arrays) {
  const auto& in = tile.in;
  const int64_t V = in.v.K, count = tile.count(), length = tile.length;
  tile.take_logits(b, h);
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
      // Weights of 0 would spread its contents, perhaps NaN.
      std::fill_n(tile.dy + r * tile.v_stride, tile.v_stride, T{0});
      std::fill_n(weight, count, T{0});
      std::fill_n(dweight, count, T{0});
      continue;
    }
    exp_row(weight, count, log_sum_exp, weight);
    // The normalizer's share, subtracted from every weight's gradient, and its own gradient.
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

// Adds the terms of the gathered keys to dq and, where wanted, makes the gradients of logits.
template <typename T>
void add_queries(ListTile<T>& tile, int64_t b, int64_t h, const BackwardArrays<T>& arrays) {
  const auto& in = tile.in;
  const int64_t count = tile.count(), queries = tile.queries();
  tile_gemm<T>(queries, tile.k_stride, count, static_cast<T>(tile.options.scale),
               {tile.dweights, tile.length}, {tile.k, tile.k_stride}, Write::accumulate, tile.dq,
               tile.k_stride);
  for (int64_t r = 0; arrays.dlogits != nullptr && r < queries; ++r) {
    T* dlogits = arrays.dlogits + ((b * in.q.H + h) * in.q.T + tile.times[r]) * in.length;
    for (int64_t j = 0; j < count; ++j) {
      dlogits[tile.places[j]] = tile.dweights[r * tile.length + j];
    }
  }
}

// Adds the queries' terms to dk and dv of the gathered keys.
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
  const int64_t K = tile.in.q.K;
  tile.for_tiles(list, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) std::fill_n(arrays.dq.at(b, t, h), K, T{0});
    tile.take_queries(b, h, begin, end);
    std::fill_n(tile.dq, tile.queries() * tile.k_stride, T{0});
    tile.for_chunks(b, h, list, 0, tile.in.k.T, [&] {
      differentiate_logits(tile, b, h, arrays);
      add_queries(tile, b, h, arrays);
      if (with_keys) add_keys(tile, b, h, arrays);
    });
    for (int64_t r = 0; r < tile.queries(); ++r) {
      std::copy_n(tile.dq + r * tile.k_stride, K, arrays.dq.at(b, tile.times[r], h));
    }
  });
}

// dk and dv of the keys [first, end), from all lists; overwritten.
template <typename T>
void backward_keys(ListTile<T>& tile, int64_t b, int64_t g, int64_t first, int64_t end,
                   bool with_queries, const ListOrder<T>& order, const BackwardArrays<T>& arrays) {
  const auto& in = tile.in;
  const int64_t heads = in.q.H / in.k.H;
  for (int64_t t = first; t < end; ++t) {
    std::fill_n(arrays.dk.at(b, t, g), in.k.K, T{0});
    std::fill_n(arrays.dv.at(b, t, g), in.v.K, T{0});
  }
  for (int64_t h = g * heads; h < (g + 1) * heads; ++h) {
    for (int64_t n = 0; n < in.lists; ++n) {
      const int64_t list = order.at(b, h, n);
      if (with_queries) {
        backward_list(tile, b, h, list, true, arrays);
        continue;
      }
      tile.for_tiles(list, [&](int64_t begin, int64_t stop) {
        tile.times.clear();
        tile.for_chunks(b, h, list, first, end, [&] {
          if (tile.times.empty()) tile.take_queries(b, h, begin, stop);
          differentiate_logits(tile, b, h, arrays);
          add_keys(tile, b, h, arrays);
        });
      });
    }
  }
}

// Into how many ranges the keys of a head are split, so that every thread has one. Lists are then
// gathered and weighed twice, for queries and for keys: up to twice the work.
int64_t ranges_of_keys(int64_t heads, int64_t keys) {
  constexpr int64_t kMin = 32;
  const int64_t threads = thread_count();
  if (threads <= 2 * heads) return 1;
  return std::clamp((threads + heads - 1) / heads, int64_t{1}, std::max(keys / kMin, int64_t{1}));
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
  const int64_t H = in.q.H, tasks = in.q.B * H * in.lists;
  const ListOrder<T> order(in);
  // Neighbours in the order have keys in common.
  const int64_t chunk = std::clamp<int64_t>(tasks / (8 * thread_count()), 1, 64);
  parallel_tasks(tasks, chunk, [&] {
    return [&, tile = ListTile<T>(in, options)](int64_t task) mutable {
      const int64_t h = task / in.lists % H, b = task / in.lists / H;
      const int64_t list = order.at(b, h, task % in.lists);
      tile.for_tiles(list, [&](int64_t begin, int64_t end) {
        forward_queries(tile, b, h, list, begin, end, y, log_sum_exp);
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
  const ListOrder<T> order(in);
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
      backward_keys(tile, b, g, range * Tk / ranges, (range + 1) * Tk / ranges, ranges == 1, order,
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
