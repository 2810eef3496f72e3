#include "attention/performer/positive_features.h"

#include <cmath>

#include "attention/performer/cuda/positive_features.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 16;  // rows of a part

template <typename Body>
void typed(const Tensor& x, const Body& body) {
  require(x.dtype() == DType::f32 || x.dtype() == DType::f64,
          "performer: expected f32 or f64, got ", name_of(x.dtype()));
  x.dtype() == DType::f64 ? body(double{}) : body(float{});
}

Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

// Calls body(row, valid) for every row of a sequence [B,T,H,.].
template <typename Body>
void for_rows(const Tensor& x, const Tensor& mask, const Body& body) {
  const int64_t H = x.size(2);
  const uint8_t* valid = mask.defined() ? mask.data<uint8_t>() : nullptr;
  parallel_for(x.size(0) * x.size(1) * H, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r, valid == nullptr || valid[r / H] != 0);
  });
}

template <typename T>
void forward(const PositiveFeatures& how, const Tensor& p, const Tensor& x, const Tensor& to) {
  const int64_t m = p.size(3), K = x.size(3);
  const T *from = p.data<T>(), *vectors = x.data<T>();
  const T epsilon = static_cast<T>(how.epsilon), scale = 1 / std::sqrt(static_cast<T>(m));
  for_rows(p, how.mask, [&](int64_t r, bool valid) {
    T* out = to.data<T>() + r * m;
    if (!valid) {
      std::fill_n(out, m, T(0));
    } else if (how.kernel == PerformerKernel::relu) {
      for (int64_t c = 0; c < m; ++c) out[c] = std::max(from[r * m + c], T(0)) + epsilon;
    } else {
      const T* vector = vectors + r * K;
      const T shift = dot_row(vector, vector, K) / 2 + how.stabilizers.data<T>()[r];
      // Rounding of large lengths must not make an exponent positive.
      for (int64_t c = 0; c < m; ++c) out[c] = std::min(from[r * m + c] - shift, T(0));
      exp_row(out, m, T(0), out);
      for (int64_t c = 0; c < m; ++c) out[c] = scale * (out[c] + epsilon);
    }
  });
}

template <typename T>
void backward(const PositiveFeatures& how, const Tensor& p, const Tensor& x, const Tensor& y,
              const Tensor& dy, const Tensor& dp, const Tensor& dx) {
  const int64_t m = p.size(3), K = x.size(3);
  const T shift = static_cast<T>(how.epsilon) / std::sqrt(static_cast<T>(m));
  for_rows(p, how.mask, [&](int64_t r, bool valid) {
    const T *from = p.data<T>() + r * m, *features = y.data<T>() + r * m, *d = dy.data<T>() + r * m,
            *vector = x.data<T>() + r * K;
    T *to = dp.data<T>() + r * m, *dvector = dx.data<T>() + r * K;
    T total = 0;
    for (int64_t c = 0; c < m; ++c) {
      if (!valid) {
        to[c] = 0;
      } else if (how.kernel == PerformerKernel::relu) {
        to[c] = from[c] > 0 ? d[c] : T(0);
      } else {
        to[c] = (features[c] - shift) * d[c];
        total += to[c];
      }
    }
    // Only the exponential has the length of x in it.
    for (int64_t c = 0; c < K; ++c) dvector[c] = valid ? -total * vector[c] : T(0);
  });
}

template <typename T>
void largest(const Tensor& p, const Tensor& x, bool of_exponents, const Tensor& to) {
  const int64_t m = p.size(3), K = x.size(3);
  for_rows(p, Tensor(), [&](int64_t r, bool) {
    const T *from = p.data<T>() + r * m, *vector = x.data<T>() + r * K;
    T most = from[0];
    for (int64_t c = 1; c < m; ++c) most = std::max(most, from[c]);
    to.data<T>()[r] = of_exponents ? std::ceil(most - dot_row(vector, vector, K) / 2) : most;
  });
}

template <typename T>
void decay(const Tensor& maxima, const Tensor& carried, const Tensor& segments,
           const MaximumDecay& to) {
  const int64_t B = maxima.size(0), T_all = maxima.size(1), H = maxima.size(2);
  const auto none = static_cast<T>(kNoMaximum);
  const int32_t* ids = segments.defined() ? segments.data<int32_t>() : nullptr;
  for (int64_t number = 0; number < B * H; ++number) {
    const int64_t row = number / H, head = number % H;
    T before = carried.defined() ? static_cast<T>(carried.data<int64_t>()[number]) : none;
    for (int64_t t = 0; t < T_all; ++t) {
      const int64_t token = row * T_all + t;
      if (t > 0 && ids != nullptr && ids[token] != ids[token - 1]) before = none;
      const T now = std::max(maxima.data<T>()[token * H + head], none);
      to.log_decay.data<T>()[token * H + head] = before > none ? before - now : T(0);
      before = now;
    }
    to.last.data<int64_t>()[number] = static_cast<int64_t>(before);
  }
}

}  // namespace

Variable positive_features(const Variable& projections, const Variable& x,
                           const PositiveFeatures& how) {
  const Tensor &p = projections.value(), &vectors = x.value();
  const Tensor y = empty_like(p);
  if (on_cuda(p)) {
    if constexpr (kCuda) cuda::positive_features(how, p, vectors, y);
  } else {
    typed(p, [&](auto zero) { forward<decltype(zero)>(how, p, vectors, y); });
  }
  // Fused: composed, four more tensors of performer's largest shape, [B,T,H,features], are kept.
  return record("positive_features", y, {projections, x}, [=](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const Tensor dp = empty_like(p), dx = empty_like(vectors);
    if (on_cuda(p)) {
      if constexpr (kCuda) cuda::positive_features_backward(how, p, vectors, y, dy, dp, dx);
    } else {
      typed(p, [&](auto zero) { backward<decltype(zero)>(how, p, vectors, y, dy, dp, dx); });
    }
    gradients.add(0, dp);
    gradients.add(1, dx);
  });
}

Tensor largest_projections(const Tensor& projections, const Tensor& x, bool of_exponents) {
  const Tensor to = Tensor::empty({projections.size(0), projections.size(1), projections.size(2)},
                                  projections.dtype(), projections.device());
  if (on_cuda(to)) {
    if constexpr (kCuda) cuda::largest_projections(projections, x, of_exponents, to);
  } else {
    typed(to, [&](auto zero) { largest<decltype(zero)>(projections, x, of_exponents, to); });
  }
  return to;
}

MaximumDecay maximum_decay(const Tensor& maxima, const Tensor& carried, const Tensor& segments) {
  const MaximumDecay to{empty_like(maxima), Tensor::empty({maxima.size(0), maxima.size(2)},
                                                          DType::i64, maxima.device())};
  if (on_cuda(maxima)) {
    if constexpr (kCuda) cuda::maximum_decay(maxima, carried, segments, to.log_decay, to.last);
  } else {
    typed(maxima, [&](auto zero) { decay<decltype(zero)>(maxima, carried, segments, to); });
  }
  return to;
}

}  // namespace linnet
