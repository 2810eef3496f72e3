#include "attention/common/wave_features.h"

#include <cmath>

#include "attention/common/cuda/wave_features.h"
#include "autograd/arithmetic.h"
#include "autograd/functions.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 16;  // rows of a part

template <typename Body>
void typed(const Tensor& x, const Body& body) {
  require(x.dtype() == DType::f32 || x.dtype() == DType::f64, "random features: expected f32 or ",
          "f64, got ", name_of(x.dtype()));
  x.dtype() == DType::f64 ? body(double{}) : body(float{});
}

Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

// Calls body(row) for every row of a sequence [B,T,H,.].
template <typename Body>
void for_rows(const Tensor& x, const Body& body) {
  parallel_for(x.size(0) * x.size(1) * x.size(2), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) body(r);
  });
}

template <typename T>
struct Directions {
  Directions(const Tensor& x_in, const Tensor& sigma_in, const Tensor& mask_in)
      : x(x_in.data<T>()),
        sigma(sigma_in.data<T>()),
        mask(mask_in.defined() ? mask_in.data<uint8_t>() : nullptr),
        H(x_in.size(2)),
        K(x_in.size(3)) {}
  const T *x, *sigma;
  const uint8_t* mask;
  int64_t H, K;

  bool valid(int64_t row) const { return mask == nullptr || mask[row / H] != 0; }
  T length(int64_t row) const {
    T square = 0;
    for (int64_t c = 0; c < K; ++c) square += x[row * K + c] * x[row * K + c];
    return std::sqrt(square);
  }
};

template <typename T>
void directions(const Tensor& x, const Tensor& sigma, const Tensor& mask, const Tensor& to) {
  const Directions<T> in(x, sigma, mask);
  T* out = to.data<T>();
  for_rows(x, [&](int64_t r) {
    const bool valid = in.valid(r);
    const T factor = valid ? 1 / (in.length(r) + static_cast<T>(kLengthFloor)) : T(0);
    for (int64_t c = 0; c < in.K; ++c) {
      out[r * in.K + c] =
          valid ? factor * in.sigma[r % in.H * in.K + c] * in.x[r * in.K + c] : T(0);
    }
  });
}

// dx, and the term that every row adds to the gradient of sigma.
template <typename T>
void directions_backward(const Tensor& x, const Tensor& sigma, const Tensor& mask, const Tensor& dy,
                         const Tensor& dx, const Tensor& dsigma_rows) {
  const Directions<T> in(x, sigma, mask);
  const T* from = dy.data<T>();
  T *to = dx.data<T>(), *row_shares = dsigma_rows.data<T>();
  for_rows(x, [&](int64_t r) {
    const int64_t at = r * in.K;
    if (!in.valid(r)) {
      std::fill_n(to + at, in.K, T(0));
      std::fill_n(row_shares + at, in.K, T(0));
      return;
    }
    const T length = in.length(r), factor = 1 / (length + static_cast<T>(kLengthFloor));
    const T* scale = in.sigma + r % in.H * in.K;
    T along = 0;
    for (int64_t c = 0; c < in.K; ++c) along += in.x[at + c] * scale[c] * from[at + c];
    const T radial = length > 0 ? along * factor * factor / length : T(0);
    for (int64_t c = 0; c < in.K; ++c) {
      to[at + c] = factor * scale[c] * from[at + c] - radial * in.x[at + c];
      row_shares[at + c] = factor * in.x[at + c] * from[at + c];
    }
  });
}

template <typename T>
void waves(const Tensor& p, double amplitude, const Tensor& factor, const Tensor& to) {
  const int64_t D = p.size(3);
  const T *from = p.data<T>(), *factors = factor.defined() ? factor.data<T>() : nullptr;
  T* out = to.data<T>();
  for_rows(p, [&](int64_t r) {
    const T scale = static_cast<T>(amplitude) * (factors == nullptr ? T(1) : factors[r]);
    for (int64_t c = 0; c < D; ++c) {
      out[2 * r * D + c] = scale * std::sin(from[r * D + c]);
      out[2 * r * D + D + c] = scale * std::cos(from[r * D + c]);
    }
  });
}

template <typename T>
void waves_backward(const Tensor& p, double amplitude, const Tensor& factor, const Tensor& dy,
                    const Tensor& dp, const Tensor& dfactor) {
  const int64_t D = p.size(3);
  const T *from = p.data<T>(), *factors = factor.defined() ? factor.data<T>() : nullptr,
          *d = dy.data<T>();
  T *to = dp.data<T>(), *dfactors = dfactor.defined() ? dfactor.data<T>() : nullptr;
  for_rows(p, [&](int64_t r) {
    const T scale = static_cast<T>(amplitude) * (factors == nullptr ? T(1) : factors[r]);
    T along = 0;
    for (int64_t c = 0; c < D; ++c) {
      const T sine = std::sin(from[r * D + c]), cosine = std::cos(from[r * D + c]);
      const T dsine = d[2 * r * D + c], dcosine = d[2 * r * D + D + c];
      to[r * D + c] = scale * (cosine * dsine - sine * dcosine);
      along += sine * dsine + cosine * dcosine;
    }
    if (dfactors != nullptr) dfactors[r] = static_cast<T>(amplitude) * along;
  });
}

}  // namespace

// Composed of dot, sqrt, a division and a product it keeps the unit vectors too: rfa takes 10 %
// more time and 15 % more memory.
Variable scaled_directions(const Variable& x, const Variable& sigma, const Tensor& mask) {
  const int64_t H = x.size(2), K = x.size(3);
  require(sigma.shape() == Shape({H, K}) && sigma.dtype() == x.dtype(),
          "scaled_directions: expected sigma [", H, ", ", K, "] in ", name_of(x.dtype()), ", got ",
          sigma.shape(), " in ", name_of(sigma.dtype()));
  const Tensor y = empty_like(x.value());
  if (on_cuda(y)) {
    if constexpr (kCuda) cuda::scaled_directions(x.value(), sigma.value(), mask, y);
  } else {
    typed(y, [&](auto zero) { directions<decltype(zero)>(x.value(), sigma.value(), mask, y); });
  }
  // Fused: at x = 0, as in dead rows, the gradient of a composed length is 0 times infinity.
  return record(
      "scaled_directions", y, {x, sigma},
      [x = x.value(), sigma = sigma.value(), mask, H, K](Gradients& gradients) {
        const Tensor& dy = gradients.output();
        const Tensor dx = empty_like(x), rows = empty_like(x), dsigma = empty_like(sigma);
        if (on_cuda(dy)) {
          if constexpr (kCuda) {
            cuda::scaled_directions_backward(x, sigma, mask, dy, dx, rows);
          }
        } else {
          typed(dy, [&](auto zero) {
            directions_backward<decltype(zero)>(x, sigma, mask, dy, dx, rows);
          });
        }
        sum_rows(rows.reshape({x.size(0) * x.size(1), H * K}), dsigma.reshape({H * K}), false);
        gradients.add(0, dx);
        gradients.add(1, dsigma);
      });
}

Variable wave_features(const Variable& projections, double amplitude, const Variable& factor) {
  const Tensor& p = projections.value();
  const Tensor factors = factor.defined() ? factor.value() : Tensor();
  const Tensor y =
      Tensor::empty({p.size(0), p.size(1), p.size(2), 2 * p.size(3)}, p.dtype(), p.device());
  if (on_cuda(p)) {
    if constexpr (kCuda) cuda::wave_features(p, amplitude, factors, y);
  } else {
    typed(p, [&](auto zero) { waves<decltype(zero)>(p, amplitude, factors, y); });
  }
  // Fused: sine and cosine come from one call; composed, rfa takes 1.8 times as long.
  return record("wave_features", y, {projections, factor},
                [p, amplitude, factors](Gradients& gradients) {
                  const Tensor& dy = gradients.output();
                  const Tensor dp = empty_like(p);
                  const Tensor dfactors = factors.defined() ? empty_like(factors) : Tensor();
                  if (on_cuda(dy)) {
                    if constexpr (kCuda) {
                      cuda::wave_features_backward(p, amplitude, factors, dy, dp, dfactors);
                    }
                  } else {
                    typed(dy, [&](auto zero) {
                      waves_backward<decltype(zero)>(p, amplitude, factors, dy, dp, dfactors);
                    });
                  }
                  gradients.add(0, dp);
                  if (dfactors.defined()) gradients.add(1, dfactors);
                });
}

Gate sigmoid_gate(const Variable& logits) {
  const Variable opposite = scale(logits, -1);
  return {scale(softplus(opposite), -1), sigmoid(opposite)};
}

}  // namespace linnet
