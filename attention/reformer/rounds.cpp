#include "attention/reformer/rounds.h"

#include <algorithm>

#include "attention/primitives/binding.h"
#include "attention/primitives/chunked.h"
#include "attention/primitives/tile_gemm.h"
#include "attention/reformer/cuda/rounds.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace binding;

// What this many items later is read is fetched now: places have no order in time.
constexpr int64_t kAhead = 16;

RoundRule rule_of(const Chunks& chunks) {
  return round_rule(chunks, [](const Tensor& x) { return x.data<int32_t>(); });
}

// The rows of an array [..,width].
template <typename T>
SequenceView<T> rows_of(const Tensor& x) {
  const int64_t width = x.size(3), rows = x.size(0) * x.size(1) * x.size(2);
  return {x.data<std::remove_const_t<T>>(), 1, rows, 1, width};
}

// Calls body(i) for every row of a view, and ahead(i + kAhead).
template <typename T, typename Ahead, typename Body>
void for_rows(const SequenceView<T>& rows, const Ahead& ahead, const Body& body) {
  parallel_for(rows.T, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < rows.T) ahead(i + kAhead);
      body(i);
    }
  });
}

template <bool kWrite, typename T>
void fetch(const SequenceView<T>& rows, int64_t row) {
  chunked::prefetch_rows<kWrite>(rows, 0, row, row + 1, 0);
}

// y [B,N,H,K] of x [B,T,H,K].
void take(const Tensor& x, const Chunks& chunks, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::take_places(x, chunks, y);
  }
  const RoundRule rule = rule_of(chunks);
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto from = rows_of<T>(x), to = rows_of<T>(y);
    for_rows(
        to, [&](int64_t i) { fetch<false>(from, rule.token(i)); },
        [&](int64_t i) {
          const int64_t token = rule.token(i);
          if (token < 0) {
            std::fill_n(to.at(0, i, 0), to.K, T{});
          } else {
            std::copy_n(from.at(0, token, 0), to.K, to.at(0, i, 0));
          }
        });
  });
}

// dx: the sum over the places of each token.
void take_backward(const Tensor& dy, const Chunks& chunks, const Tensor& dx) {
  if constexpr (kCuda) {
    if (on_cuda(dx)) return cuda::take_places_backward(dy, chunks, dx);
  }
  const RoundRule rule = rule_of(chunks);
  dispatch(dx.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto from = rows_of<T>(dy), to = rows_of<T>(dx);
    for_rows(
        to,
        [&](int64_t i) {
          for (int64_t r = 0; r < rule.rounds; ++r) fetch<false>(from, rule.place(i, r));
        },
        [&](int64_t i) {
          std::fill_n(to.at(0, i, 0), to.K, T{0});
          for (int64_t r = 0; r < rule.rounds; ++r) {
            const int64_t place = rule.place(i, r);
            if (place >= 0) axpy_row(to.K, T{1}, from.at(0, place, 0), to.at(0, i, 0));
          }
        });
  });
}

template <typename T>
void join(const RoundRule& rule, const RoundTensors& in, const Tensor& y) {
  const auto found = rows_of<T>(in.y), v = rows_of<T>(in.v), to = rows_of<T>(y);
  const T* sums = in.sums.data<T>();
  T* shares = in.shares.data<T>();
  for_rows(
      to,
      [&](int64_t i) {
        for (int64_t r = 0; r < rule.rounds; ++r) fetch<false>(found, rule.place(i, r));
      },
      [&](int64_t i) {
        T* out = to.at(0, i, 0);
        std::fill_n(out, to.K, T{0});
        if (rule.is_alone(i, sums)) std::copy_n(v.at(0, i, 0), to.K, out);
        rule.share(i, sums, shares);
        for (int64_t r = 0; r < rule.rounds; ++r) {
          const int64_t at = rule.place(i, r);
          if (at >= 0) axpy_row(to.K, shares[at], found.at(0, at, 0), out);
        }
      });
}

// d.y and d.sums begin as zeros: places without a token stay so.
template <typename T>
void join_backward(const RoundRule& rule, const RoundTensors& in, const Tensor& dy,
                   const RoundTensors& d) {
  const auto found = rows_of<T>(in.y), from = rows_of<T>(dy), to = rows_of<T>(d.y);
  const auto dv = rows_of<T>(d.v);
  const T *sums = in.sums.data<T>(), *shares = in.shares.data<T>();
  T* dsums = d.sums.data<T>();
  for_rows(
      from,
      [&](int64_t i) {
        for (int64_t r = 0; r < rule.rounds; ++r) {
          fetch<false>(found, rule.place(i, r));
          fetch<true>(to, rule.place(i, r));
        }
      },
      [&](int64_t i) {
        const T* given = from.at(0, i, 0);
        std::fill_n(dv.at(0, i, 0), dv.K, T{0});
        if (rule.is_alone(i, sums)) std::copy_n(given, dv.K, dv.at(0, i, 0));
        for (int64_t r = 0; r < rule.rounds; ++r) {
          const int64_t at = rule.place(i, r);
          if (at < 0) continue;
          dsums[at] = dot_row(found.at(0, at, 0), given, from.K);
          axpy_row(from.K, shares[at], given, to.at(0, at, 0));
        }
        rule.centre(i, shares, dsums);
      });
}

}  // namespace

Variable take_places(const Variable& x, const Chunks& chunks) {
  const Tensor& from = x.value();
  const Shape shape{from.size(0), chunks.order.size(2), from.size(2), from.size(3)};
  const Tensor y = Tensor::empty(shape, from.dtype(), from.device());
  take(from, chunks, y);
  return record("take_places", y, {x}, [like = from.shape(), chunks](Gradients& gradients) {
    Tensor dy = gradients.output();
    if (dy.dtype() == DType::bf16 && dy.device() == Device{}) dy = dy.to(DType::f32);
    const Tensor dx = Tensor::empty(like, dy.dtype(), dy.device());
    take_backward(dy, chunks, dx);
    gradients.add(0, dx);
  });
}

Variable join_rounds(const ListedAttentionResult& rounds, const Variable& v, const Chunks& chunks) {
  const Tensor &found = rounds.y.value(), &sums = rounds.log_sum_exp.value();
  const bool on_host = !kCuda || !on_cuda(found);
  const DType dtype = on_host ? sums.dtype() : found.dtype();
  const auto zeros = [](const Tensor& x) {
    return Tensor::zeros(x.shape(), x.dtype(), x.device());
  };
  const RoundTensors in{found.to(dtype), sums, zeros(sums), v.value().to(dtype)};
  const Tensor y = empty_like(in.v);
  if constexpr (kCuda) {
    if (!on_host) cuda::join_rounds(in, chunks, y);
  }
  if (on_host) {
    dispatch(dtype, [&](auto zero) { join<decltype(zero)>(rule_of(chunks), in, y); });
  }
  return record("join_rounds", y.to(found.dtype()), {rounds.y, rounds.log_sum_exp, v},
                [in, chunks, dtype, on_host, zeros](Gradients& gradients) {
                  const Tensor dy = gradients.output().to(dtype);
                  const RoundTensors d{zeros(in.y), zeros(in.sums), {}, empty_like(in.v)};
                  if constexpr (kCuda) {
                    if (!on_host) cuda::join_rounds_backward(in, chunks, dy, d);
                  }
                  if (on_host) {
                    dispatch(dtype, [&](auto zero) {
                      join_backward<decltype(zero)>(rule_of(chunks), in, dy, d);
                    });
                  }
                  add_all(gradients, {d.y, d.sums, d.v});
                });
}

}  // namespace linnet
