#include "attention/common/lrpe.h"

#include "attention/common/cuda/lrpe.h"
#include "attention/common/mixer_support.h"
#include "autograd/embedding.h"
#include "autograd/linear.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 16;  // tokens of a part

bool valid(const Tensor& mask, int64_t token) {
  return !mask.defined() || mask.data<uint8_t>()[token] != 0;
}

// Calls body(token, i, cosine, sine) for the n pairs of every valid token, and masked(token) for
// the others.
template <typename C, typename Masked, typename Body>
void for_angles(const Tensor& positions, const Tensor& frequencies, const Tensor& mask,
                const Masked& masked, const Body& body) {
  const int32_t* position = positions.data<int32_t>();
  const C* frequency = frequencies.data<C>();
  parallel_for(positions.elements(), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      if (!valid(mask, token)) {
        masked(token);
        continue;
      }
      for (int64_t i = 0; i < frequencies.elements(); ++i) {
        // In double: far positions keep their phase.
        const double angle = position[token] * static_cast<double>(frequency[i]);
        body(token, i, static_cast<C>(std::cos(angle)), static_cast<C>(std::sin(angle)));
      }
    }
  });
}

void rotate(const Tensor& x, const Tensor& positions, const Tensor& frequencies, const Tensor& mask,
            const Tensor& y) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::learned_rotary(x, positions, frequencies, mask, y);
  }
  const int64_t H = x.size(2), K = x.size(3), n = frequencies.elements();
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = x.data<T>();
    T* to = y.data<T>();
    for_angles<C>(
        positions, frequencies, mask,
        [&](int64_t token) { std::fill_n(to + token * H * K, H * K, T(0)); },
        [&](int64_t token, int64_t i, C cosine, C sine) {
          for (int64_t at = token * H * K; at < (token + 1) * H * K; at += K) {
            const C a = static_cast<C>(from[at + 2 * i]), b = static_cast<C>(from[at + 2 * i + 1]);
            to[at + 2 * i] = static_cast<T>(a * cosine - b * sine);
            to[at + 2 * i + 1] = static_cast<T>(a * sine + b * cosine);
            if (i == 0) std::copy(from + at + 2 * n, from + at + K, to + at + 2 * n);
          }
        });
  });
}

// dx, and the term that every token adds to the gradient of the frequencies: [B T, n].
void rotate_backward(const Tensor& x, const Tensor& positions, const Tensor& frequencies,
                     const Tensor& mask, const Tensor& dy, const Tensor& dx, const Tensor& terms) {
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      return cuda::learned_rotary_backward(x, positions, frequencies, mask, dy, dx, terms);
    }
  }
  const int64_t H = x.size(2), K = x.size(3), n = frequencies.elements();
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T *from = x.data<T>(), *d = dy.data<T>();
    T* to = dx.data<T>();
    C* term = terms.data<C>();
    const int32_t* position = positions.data<int32_t>();
    for_angles<C>(
        positions, frequencies, mask,
        [&](int64_t token) {
          std::fill_n(to + token * H * K, H * K, T(0));
          std::fill_n(term + token * n, n, C(0));
        },
        [&](int64_t token, int64_t i, C cosine, C sine) {
          C along = 0;
          for (int64_t at = token * H * K; at < (token + 1) * H * K; at += K) {
            const C a = static_cast<C>(from[at + 2 * i]), b = static_cast<C>(from[at + 2 * i + 1]);
            const C u = static_cast<C>(d[at + 2 * i]), v = static_cast<C>(d[at + 2 * i + 1]);
            const C da = u * cosine + v * sine, db = v * cosine - u * sine;
            to[at + 2 * i] = static_cast<T>(da);
            to[at + 2 * i + 1] = static_cast<T>(db);
            along += a * db - b * da;
            if (i == 0) std::copy(d + at + 2 * n, d + at + K, to + at + 2 * n);
          }
          term[token * n + i] = static_cast<C>(position[token]) * along;
        });
  });
}

Initializer first_frequencies(int64_t width) {
  return [width](const Tensor& values, const RandomKey&) {
    dispatch_floating(values.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < values.elements(); ++i) {
        const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(width);
        values.data<T>()[i] = static_cast<T>(static_cast<Compute<T>>(std::pow(10000, exponent)));
      }
    });
  };
}

// I - 2 v v^T of a vector v of length 1 in a direction drawn at random.
Initializer random_reflection() {
  return [](const Tensor& values, const RandomKey& key) {
    const int64_t K = values.size(0);
    std::vector<double> v;
    double square = 0;
    for (int64_t c = 0; c < K; ++c) {
      v.push_back(key.normal(static_cast<uint64_t>(c)));
      square += v.back() * v.back();
    }
    dispatch_floating(values.dtype(), [&](auto zero) {
      using T = decltype(zero);
      for (int64_t i = 0; i < values.elements(); ++i) {
        const auto row = static_cast<size_t>(i / K), column = static_cast<size_t>(i % K);
        const double value = (row == column ? 1 : 0) - 2 * v[row] * v[column] / square;
        values.data<T>()[i] = static_cast<T>(static_cast<Compute<T>>(value));
      }
    });
  };
}

}  // namespace

Variable learned_rotary(const Variable& x, const Tensor& positions, const Variable& frequencies,
                        const Tensor& mask) {
  const Tensor &rows = x.value(), &rates = frequencies.value();
  require(rows.shape().rank() == 4 && positions.elements() == rows.size(0) * rows.size(1) &&
              rates.shape().rank() == 1 && rates.elements() > 0 &&
              2 * rates.elements() <= rows.size(3) && rates.dtype() == sum_dtype(rows.dtype()),
          "learned_rotary: x ", rows.shape(), ", positions ", positions.shape(), ", frequencies ",
          rates.shape(), " in ", name_of(rates.dtype()));
  const Tensor y = Tensor::empty(rows.shape(), rows.dtype(), rows.device());
  rotate(rows, positions, rates, mask, y);
  // Fused: angles of far positions need f64, in which devices have no composed operations.
  return record(
      "learned_rotary", y, {x, frequencies}, [rows, positions, rates, mask](Gradients& gradients) {
        const Tensor& dy = gradients.output();
        const Tensor dx = Tensor::empty(rows.shape(), rows.dtype(), rows.device());
        const Tensor terms =
            Tensor::empty({positions.elements(), rates.elements()}, rates.dtype(), rates.device());
        const Tensor sums = Tensor::empty(rates.shape(), rates.dtype(), rates.device());
        rotate_backward(rows, positions, rates, mask, dy, dx, terms);
        sum_rows(terms, sums, false);
        gradients.add(0, dx);
        gradients.add(1, sums);
      });
}

Lrpe::Lrpe(const std::string& lrpe, int64_t head_width, const ParameterScope& own)
    : width_(lrpe == "none" ? 0 : head_width - head_width % 2) {
  require_usage(lrpe == "none" || width_ > 0, "lrpe: ", lrpe,
                " rotates channels in pairs, and heads have ", head_width);
  if (lrpe == "reflected") {
    reflection_ = own.buffer("lrpe_reflection", {head_width, head_width}, random_reflection());
  }
  if (lrpe == "learned" || lrpe == "reflected") {
    frequencies_ = own.child("rates").parameter("lrpe", {width_ / 2}, first_frequencies(width_));
  }
}

Variable Lrpe::operator()(const Variable& x, const Tensor& positions, const Tensor& mask,
                          DType activations) const {
  if (!used()) return x;
  if (!frequencies_.defined()) return rotary(x, positions, width_);
  const DType dtype = sum_dtype(x.dtype());
  Variable y = as_dtype(x, dtype);
  if (reflection_.defined()) y = linear(y, as_dtype(as_dtype(reflection_, activations), dtype));
  return as_dtype(learned_rotary(y, positions, as_dtype(frequencies_, dtype), mask), x.dtype());
}

void Lrpe::add_cost(const MixerOptions& options, const MixerShape& shape, MixerCost& cost) const {
  const auto element = static_cast<double>(size_of(sum_dtype(shape.dtype)));
  const int64_t pairs = width_ / 2;
  if (frequencies_.defined()) cost.bytes += static_cast<double>(pairs) * element;
  if (!reflection_.defined()) return;
  const auto matrix = static_cast<double>(options.head_width() * options.head_width());
  cost.projections += 2 * static_cast<double>(shape.batch * shape.queries * options.heads) * matrix;
  cost.bytes += matrix * element;
}

}  // namespace linnet
