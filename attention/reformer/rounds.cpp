#include "attention/reformer/rounds.h"

#include <algorithm>
#include <cstring>

#include "attention/primitives/binding.h"
#include "attention/primitives/tile_gemm.h"
#include "attention/reformer/cuda/rounds.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace binding;

template <typename Body>
void for_all(int64_t count, const Body& body) {
  parallel_for(count, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

RoundRule rule_of(const Chunks& chunks) {
  return round_rule(chunks, [](const Tensor& x) { return x.data<int32_t>(); });
}

// y [B,N,H,K] of x [B,T,H,K].
void take(const Tensor& x, const Chunks& chunks, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::take_places(x, chunks, y);
  }
  const RoundRule rule = rule_of(chunks);
  const auto width = static_cast<int64_t>(size_of(x.dtype())) * x.size(3);
  for_all(y.size(0) * y.size(1) * y.size(2), [&](int64_t i) {
    const int64_t token = rule.token(i);
    char* to = static_cast<char*>(y.raw()) + i * width;
    if (token < 0) {
      std::memset(to, 0, static_cast<size_t>(width));
      return;
    }
    std::memcpy(to, static_cast<const char*>(x.raw()) + token * width, static_cast<size_t>(width));
  });
}

// dx: the sum over the places of each token.
void take_backward(const Tensor& dy, const Chunks& chunks, const Tensor& dx) {
  if constexpr (kCuda) {
    if (on_cuda(dx)) return cuda::take_places_backward(dy, chunks, dx);
  }
  const RoundRule rule = rule_of(chunks);
  const int64_t K = dx.size(3);
  dispatch(dx.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for_all(dx.size(0) * dx.size(1) * dx.size(2), [&](int64_t i) {
      T* to = dx.data<T>() + i * K;
      std::fill_n(to, K, T{0});
      for (int64_t r = 0; r < rule.rounds; ++r) {
        const int64_t place = rule.place(i, r);
        if (place >= 0) axpy_row(K, T{1}, dy.data<T>() + place * K, to);
      }
    });
  });
}

template <typename T>
void join(const RoundRule& rule, const RoundTensors& in, const Tensor& y) {
  const int64_t V = y.size(3);
  for_all(y.size(0) * y.size(1) * y.size(2), [&](int64_t i) {
    rule.share(i, in.sums.data<T>(), in.shares.data<T>());
    T* to = y.data<T>() + i * V;
    std::fill_n(to, V, T{0});
    if (rule.is_alone(i, in.sums.data<T>())) std::copy_n(in.v.data<T>() + i * V, V, to);
    for (int64_t r = 0; r < rule.rounds; ++r) {
      const int64_t at = rule.place(i, r);
      if (at >= 0) axpy_row(V, in.shares.data<T>()[at], in.y.data<T>() + at * V, to);
    }
  });
}

// d.y and d.sums begin as zeros: places without a token stay so.
template <typename T>
void join_backward(const RoundRule& rule, const RoundTensors& in, const Tensor& dy,
                   const RoundTensors& d) {
  const int64_t V = dy.size(3);
  const T* shares = in.shares.data<T>();
  for_all(dy.size(0) * dy.size(1) * dy.size(2), [&](int64_t i) {
    const T* from = dy.data<T>() + i * V;
    std::fill_n(d.v.data<T>() + i * V, V, T{0});
    if (rule.is_alone(i, in.sums.data<T>())) std::copy_n(from, V, d.v.data<T>() + i * V);
    for (int64_t r = 0; r < rule.rounds; ++r) {
      const int64_t at = rule.place(i, r);
      if (at < 0) continue;
      d.sums.data<T>()[at] = dot_row(in.y.data<T>() + at * V, from, V);
      axpy_row(V, shares[at], from, d.y.data<T>() + at * V);
    }
    rule.centre(i, shares, d.sums.data<T>());
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
