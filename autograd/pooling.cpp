#include "autograd/pooling.h"

#include <vector>

#include "core/threads.h"

namespace linnet {
namespace {

// Weight of token t of row b in the mean.
std::vector<double> pool_weights(const Tensor& mask, int64_t rows, int64_t time, bool by_length) {
  std::vector<double> weights(static_cast<size_t>(rows * time), 0.0);
  for (int64_t b = 0; b < rows; ++b) {
    int64_t valid = 0;
    for (int64_t t = 0; t < time; ++t) {
      valid += !mask.defined() || mask.data<uint8_t>()[b * time + t] != 0 ? 1 : 0;
    }
    if (valid == 0) continue;
    const double weight = 1.0 / static_cast<double>(by_length ? time : valid);
    for (int64_t t = 0; t < time; ++t) {
      if (!mask.defined() || mask.data<uint8_t>()[b * time + t] != 0) {
        weights[static_cast<size_t>(b * time + t)] = weight;
      }
    }
  }
  return weights;
}

}  // namespace

Variable gather_time(const Variable& x, const Tensor& index) {
  require(x.shape().rank() == 3 && index.dtype() == DType::i32 && index.elements() == x.size(0),
          "gather_time: x ", x.shape(), ", index ", index.shape());
  const int64_t rows = x.size(0);
  const int64_t time = x.size(1);
  const int64_t channels = x.size(2);
  const Tensor y = Tensor::empty({rows, channels}, x.dtype(), x.value().device());
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t t = index.data<int32_t>()[b];
    require(t >= 0 && t < time, "gather_time: index ", t, " outside [0, ", time, ")");
    y.slice(b * channels, {channels})
        .copy_from(x.value().slice((b * time + t) * channels, {channels}));
  }
  return record("gather_time", y, {x}, [index, shape = x.shape()](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const int64_t channels = shape[2];
    const Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
    for (int64_t b = 0; b < shape[0]; ++b) {
      dx.slice((b * shape[1] + index.data<int32_t>()[b]) * channels, {channels})
          .copy_from(dy.slice(b * channels, {channels}));
    }
    gradients.add(0, dx);
  });
}

Variable mean_pool(const Variable& x, const Tensor& mask, bool divide_by_length) {
  require(x.shape().rank() == 3 && (!mask.defined() || mask.elements() == x.size(0) * x.size(1)),
          "mean_pool: x ", x.shape(), ", mask ", mask.shape());
  const int64_t rows = x.size(0);
  const int64_t time = x.size(1);
  const int64_t channels = x.size(2);
  const std::vector<double> weights = pool_weights(mask, rows, time, divide_by_length);
  const Tensor y = Tensor::zeros({rows, channels}, x.dtype(), x.value().device());
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        std::vector<double> total(static_cast<size_t>(channels), 0.0);
        for (int64_t t = 0; t < time; ++t) {
          const double weight = weights[static_cast<size_t>(b * time + t)];
          if (weight == 0) continue;
          const T* line = x.value().data<T>() + (b * time + t) * channels;
          for (int64_t c = 0; c < channels; ++c) {
            total[static_cast<size_t>(c)] += weight * static_cast<double>(line[c]);
          }
        }
        for (int64_t c = 0; c < channels; ++c) {
          y.data<T>()[b * channels + c] =
              static_cast<T>(static_cast<Compute<T>>(total[static_cast<size_t>(c)]));
        }
      }
    });
  });
  return record("mean_pool", y, {x}, [weights, shape = x.shape()](Gradients& gradients) {
    const Tensor& dy = gradients.output();
    const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
    dispatch_floating(dy.dtype(), [&](auto zero) {
      using T = decltype(zero);
      using C = Compute<T>;
      const int64_t channels = shape[2];
      const T* dys = dy.data<T>();
      T* dxs = dx.data<T>();
      parallel_for(shape[0] * shape[1], 64, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const C weight = static_cast<C>(weights[static_cast<size_t>(row)]);
          const T* from = dys + row / shape[1] * channels;
          T* to = dxs + row * channels;
          for (int64_t c = 0; c < channels; ++c) {
            to[c] = static_cast<T>(weight * static_cast<C>(from[c]));
          }
        }
      });
    });
    gradients.add(0, dx);
  });
}

}  // namespace linnet
