#include "attention/transnormer_norm/batch_norm.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "attention/transnormer_norm/batch_norm_rule.h"
#include "attention/transnormer_norm/cuda/batch_norm.h"

namespace linnet {
namespace {

using batch_norm_rule::kParts;
using binding::dispatch;
using binding::empty_like;

constexpr int64_t kGrain = 4096;

// What every channel is normalised by. `counts` f64 [kParts]: valid rows, undefined where mean and
// inverse are constants.
struct Statistics {
  Tensor mean, inverse, counts;
};

batch_norm_rule::Rows rows_of(const Tensor& x, const Tensor& mask) {
  return {mask.defined() ? mask.data<uint8_t>() : nullptr, x.size(0), x.size(1)};
}

Tensor part_sums(const Tensor& x) {
  return Tensor::empty({kParts, x.size(1)}, DType::f64);
}

// The statistics of a batch, of which the running ones, if defined, take a share.
void batch_statistics(const Tensor& x, const Tensor& mask, const Statistics& batch,
                      const RunningStatistics& running) {
  if constexpr (kCuda) {
    if (on_device(x)) {
      return cuda::batch_statistics(x, mask, batch.counts, batch.mean, batch.inverse, running.mean,
                                    running.variance);
    }
  }
  const Tensor sums = part_sums(x);
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const batch_norm_rule::Forward<T> rule{rows_of(x, mask),
                                           x.data<T>(),
                                           batch.counts.data<double>(),
                                           sums.data<double>(),
                                           batch.mean.data<T>(),
                                           batch.inverse.data<T>(),
                                           nullptr};
    fill_elements<double>(batch.counts, kParts, [&](int64_t i) { return rule.rows.valid_in(i); });
    fill_elements<double>(sums, 1, [&](int64_t i) { return rule.sum(i); });
    fill_elements<T>(batch.mean, kGrain, [&](int64_t c) { return rule.mean_of(c); });
    fill_elements<double>(sums, 1, [&](int64_t i) { return rule.squares(i); });
    const bool moves = running.mean.defined();
    for (int64_t c = 0; c < x.size(1); ++c) {
      rule.finish(c, moves ? running.mean.data<T>() : nullptr,
                  moves ? running.variance.data<T>() : nullptr);
    }
  });
}

Tensor inverse_deviations(const Tensor& variance) {
  const Tensor inverse = empty_like(variance);
  if constexpr (kCuda) {
    if (on_device(variance)) {
      cuda::inverse_deviations(variance, inverse);
      return inverse;
    }
  }
  dispatch(variance.dtype(), [&](auto zero) {
    using T = decltype(zero);
    fill_elements<T>(inverse, kGrain, [&](int64_t c) {
      return static_cast<T>(
          1 / std::sqrt(static_cast<double>(variance.data<T>()[c]) + batch_norm_rule::kEpsilon));
    });
  });
  return inverse;
}

void normalise(const Tensor& x, const Tensor& mask, const Statistics& by, const Tensor& y) {
  if constexpr (kCuda) {
    if (on_device(x)) return cuda::batch_normal(x, mask, by.mean, by.inverse, y);
  }
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const batch_norm_rule::Forward<T> rule{
        rows_of(x, mask),  x.data<T>(),          nullptr, nullptr,
        by.mean.data<T>(), by.inverse.data<T>(), nullptr};
    fill_elements<T>(y, kGrain, [&](int64_t i) { return rule.normal(i); });
  });
}

void normalise_backward(const Tensor& x, const Tensor& mask, const Statistics& by, const Tensor& dy,
                        const Tensor& dx) {
  if constexpr (kCuda) {
    if (on_device(x)) {
      return cuda::batch_normal_backward(x, mask, by.counts, by.mean, by.inverse, dy, dx);
    }
  }
  const Tensor sums = part_sums(x), products = part_sums(x);
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const bool of_batch = by.counts.defined();
    const batch_norm_rule::Backward<T> rule{
        rows_of(x, mask),    x.data<T>(),
        by.mean.data<T>(),   by.inverse.data<T>(),
        dy.data<T>(),        of_batch ? by.counts.data<double>() : nullptr,
        sums.data<double>(), products.data<double>()};
    if (!of_batch) {
      fill_elements<T>(dx, kGrain, [&](int64_t i) { return rule.gradient(i, nullptr, nullptr); });
      return;
    }
    fill_elements<double>(sums, 1, [&](int64_t i) { return rule.sum(i, false); });
    fill_elements<double>(products, 1, [&](int64_t i) { return rule.sum(i, true); });
    const double n = rule.rows.all(rule.counts);
    const auto mean_of = [&](const Tensor& parts) {
      const Tensor mean = empty_like(by.mean);
      fill_elements<T>(mean, kGrain, [&](int64_t c) {
        return n > 0 ? static_cast<T>(rule.rows.of_parts(parts.data<double>(), c) / n) : T(0);
      });
      return mean;
    };
    const Tensor mean_dy = mean_of(sums), mean_product = mean_of(products);
    fill_elements<T>(dx, kGrain, [&](int64_t i) {
      return rule.gradient(i, mean_dy.data<T>(), mean_product.data<T>());
    });
  });
}

}  // namespace

Variable batch_norm(const Variable& x, const Tensor& mask, const RunningStatistics& running,
                    bool training) {
  const Tensor& rows = x.value();
  require(rows.shape().rank() == 2 && running.mean.shape() == Shape({rows.size(1)}) &&
              running.variance.shape() == running.mean.shape() &&
              running.mean.dtype() == rows.dtype() &&
              (!mask.defined() || mask.elements() == rows.size(0)),
          "batch_norm: x ", rows.shape(), " in ", name_of(rows.dtype()), ", statistics ",
          running.mean.shape(), " in ", name_of(running.mean.dtype()));
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
