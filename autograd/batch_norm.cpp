#include "autograd/batch_norm.h"

#include "autograd/batch_norm_rule.h"
#include "autograd/cuda/batch_norm.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using batch_norm_rule::kParts;

constexpr int64_t kGrain = 4096;

// What every channel is normalised by. `counts` f64 [kParts]: valid rows, undefined where mean and
// inverse are constants.
struct Statistics {
  Tensor mean, inverse, counts;
};

template <typename T>
struct Values {
  const T* values;
  Compute<T> at(int64_t i) const { return static_cast<Compute<T>>(values[i]); }
};

Tensor empty_like(const Tensor& x) {
  return Tensor::empty(x.shape(), x.dtype(), x.device());
}

// to[i] = f(i) for every element.
template <typename T, typename F>
void fill(const Tensor& to, int64_t grain, const F& f) {
  T* out = to.data<T>();
  parallel_for(to.elements(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(f(i));
  });
}

batch_norm_rule::Rows rows_of(const Tensor& x, const Tensor& mask, int64_t channels) {
  return {mask.defined() ? mask.data<uint8_t>() : nullptr, x.elements() / channels, channels};
}

// The statistics of a batch, of which the running ones, if defined, take a share.
void batch_statistics(const Tensor& x, const Tensor& mask, const Statistics& batch,
                      const RunningStatistics& running) {
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      return cuda::batch_statistics(x, mask, batch.counts, batch.mean, batch.inverse, running.mean,
                                    running.variance);
    }
  }
  const int64_t channels = batch.mean.elements();
  const Tensor sums = Tensor::empty({kParts, channels}, DType::f64);
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const batch_norm_rule::Forward<C, Values<T>> rule{
        rows_of(x, mask, channels), {x.data<T>()},        batch.counts.data<double>(),
        sums.data<double>(),        batch.mean.data<C>(), batch.inverse.data<C>()};
    fill<double>(batch.counts, kParts, [&](int64_t i) { return rule.rows.valid_in(i); });
    fill<double>(sums, 1, [&](int64_t i) { return rule.sum(i); });
    fill<C>(batch.mean, kGrain, [&](int64_t c) { return rule.mean_of(c); });
    fill<double>(sums, 1, [&](int64_t i) { return rule.squares(i); });
    const bool moves = running.mean.defined();
    for (int64_t c = 0; c < channels; ++c) {
      rule.finish(c, moves ? running.mean.data<C>() : nullptr,
                  moves ? running.variance.data<C>() : nullptr);
    }
  });
}

Tensor inverse_deviations(const Tensor& variance) {
  const Tensor inverse = empty_like(variance);
  if constexpr (kCuda) {
    if (on_cuda(variance)) {
      cuda::inverse_deviations(variance, inverse);
      return inverse;
    }
  }
  dispatch_floating(variance.dtype(), [&](auto zero) {
    using T = decltype(zero);
    fill<T>(inverse, kGrain, [&](int64_t c) {
      return 1 / std::sqrt(static_cast<double>(variance.data<T>()[c]) + batch_norm_rule::kEpsilon);
    });
  });
  return inverse;
}

void normalise(const Tensor& x, const Tensor& mask, const Statistics& by, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_cuda(x)) return cuda::batch_normal(x, mask, by.mean, by.inverse, y);
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const batch_norm_rule::Forward<C, Values<T>> rule{rows_of(x, mask, by.mean.elements()),
                                                      {x.data<T>()},
                                                      nullptr,
                                                      nullptr,
                                                      by.mean.data<C>(),
                                                      by.inverse.data<C>()};
    fill<T>(y, kGrain, [&](int64_t i) { return rule.normal(i); });
  });
}

void normalise_backward(const Tensor& x, const Tensor& mask, const Statistics& by, const Tensor& dy,
                        const Tensor& dx) {
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      return cuda::batch_normal_backward(x, mask, by.counts, by.mean, by.inverse, dy, dx);
    }
  }
  const int64_t channels = by.mean.elements();
  const Tensor sums = Tensor::empty({kParts, channels}, DType::f64), products = empty_like(sums);
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const bool of_batch = by.counts.defined();
    const batch_norm_rule::Backward<C, Values<T>> rule{
        rows_of(x, mask, channels),
        {x.data<T>()},
        {dy.data<T>()},
        by.mean.data<C>(),
        by.inverse.data<C>(),
        of_batch ? by.counts.data<double>() : nullptr,
        sums.data<double>(),
        products.data<double>()};
    if (!of_batch) {
      fill<T>(dx, kGrain, [&](int64_t i) { return rule.gradient(i, nullptr, nullptr); });
      return;
    }
    fill<double>(sums, 1, [&](int64_t i) { return rule.sum(i, false); });
    fill<double>(products, 1, [&](int64_t i) { return rule.sum(i, true); });
    const double n = rule.rows.all(rule.counts);
    const auto mean_of = [&](const Tensor& parts) {
      const Tensor mean = empty_like(by.mean);
      fill<C>(mean, kGrain, [&](int64_t c) {
        return n > 0 ? rule.rows.of_parts(parts.data<double>(), c) / n : 0;
      });
      return mean;
    };
    const Tensor mean_dy = mean_of(sums), mean_product = mean_of(products);
    fill<T>(dx, kGrain,
            [&](int64_t i) { return rule.gradient(i, mean_dy.data<C>(), mean_product.data<C>()); });
  });
}

}  // namespace

Variable batch_norm(const Variable& x, const Tensor& mask, const RunningStatistics& running,
                    bool training) {
  const Tensor& rows = x.value();
  const int64_t channels = rows.shape().rank() > 0 ? rows.size(-1) : 0;
  const DType dtype = rows.dtype() == DType::bf16 ? DType::f32 : rows.dtype();
  require(channels > 0 && running.mean.shape() == Shape({channels}) &&
              running.variance.shape() == running.mean.shape() && running.mean.dtype() == dtype &&
              running.variance.dtype() == dtype &&
              (!mask.defined() || mask.elements() == rows.elements() / channels),
          "batch_norm: x ", rows.shape(), " in ", name_of(rows.dtype()), ", mask ",
          mask.defined() ? mask.shape() : Shape(), ", statistics ", running.mean.shape(), " in ",
          name_of(running.mean.dtype()));
  Statistics by;
  if (training) {
    by = {empty_like(running.mean), empty_like(running.mean),
          Tensor::empty({kParts}, DType::f64, rows.device())};
    batch_statistics(rows, mask, by, grad_enabled() ? running : RunningStatistics());
  } else {
    // Later updates move the running statistics: backward needs those of now.
    by = {running.mean.clone(), inverse_deviations(running.variance), {}};
  }
  const Tensor y = empty_like(rows);
  normalise(rows, mask, by, y);
  return record("batch_norm", y, {x}, [rows, mask, by](Gradients& gradients) {
    const Tensor dx = empty_like(rows);
    normalise_backward(rows, mask, by, gradients.output(), dx);
    gradients.add(0, dx);
  });
}

}  // namespace linnet
