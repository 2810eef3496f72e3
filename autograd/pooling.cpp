#include "autograd/pooling.h"

#include <vector>

#include "autograd/arithmetic.h"
#include "autograd/cuda/pooling.h"
#include "autograd/layout.h"
#include "core/cuda/backend.h"
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

Tensor gathered(const Tensor& x, const Tensor& index) {
  const int64_t rows = x.size(0);
  const int64_t time = x.size(1);
  const int64_t channels = x.size(2);
  const Tensor y = Tensor::empty({rows, channels}, x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::gather_time(x, index, y);
      return y;
    }
  }
  for (int64_t b = 0; b < rows; ++b) {
    const int64_t t = index.data<int32_t>()[b];
    require(t >= 0 && t < time, "gather_time: index ", t, " outside [0, ", time, ")");
    y.slice(b * channels, {channels}).copy_from(x.slice((b * time + t) * channels, {channels}));
  }
  return y;
}

Tensor gathered_backward(const Tensor& dy, const Tensor& index, const Shape& shape) {
  if constexpr (kCuda) {
    if (on_cuda(dy)) {
      const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
      cuda::gather_time_backward(dy, index, dx);
      return dx;
    }
  }
  const int64_t channels = shape[2];
  const Tensor dx = Tensor::zeros(shape, dy.dtype(), dy.device());
  for (int64_t b = 0; b < shape[0]; ++b) {
    dx.slice((b * shape[1] + index.data<int32_t>()[b]) * channels, {channels})
        .copy_from(dy.slice(b * channels, {channels}));
  }
  return dx;
}

Tensor pooled(const Tensor& x, const std::vector<double>& weights) {
  const int64_t rows = x.size(0);
  const int64_t time = x.size(1);
  const int64_t channels = x.size(2);
  const Tensor y = Tensor::zeros({rows, channels}, x.dtype(), x.device());
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    parallel_for(rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        std::vector<double> total(static_cast<size_t>(channels), 0.0);
        for (int64_t t = 0; t < time; ++t) {
          const double weight = weights[static_cast<size_t>(b * time + t)];
          if (weight == 0) continue;
          const T* line = x.data<T>() + (b * time + t) * channels;
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
  return y;
}

Tensor pooled_backward(const Tensor& dy, const std::vector<double>& weights, const Shape& shape) {
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
  return dx;
}

// 1 at the last valid token of each row, else 0.
Tensor last_valid(const Tensor& mask) {
  const Tensor last = Tensor::zeros(mask.shape(), DType::u8, mask.device());
  if constexpr (kCuda) {
    if (on_cuda(mask)) {
      cuda::last_valid(mask, last);
      return last;
    }
  }
  const int64_t rows = mask.size(0), time = mask.size(1);
  const uint8_t* valid = mask.data<uint8_t>();
  for (int64_t b = 0; b < rows; ++b) {
    int64_t t = time - 1;
    while (t >= 0 && valid[b * time + t] == 0) --t;
    if (t >= 0) last.data<uint8_t>()[b * time + t] = 1;
  }
  return last;
}

// mean_pool() on a CUDA device, where the mask stays.
Variable mean_pool_cuda(const Variable& x, const Tensor& mask, bool divide_by_length) {
  if constexpr (kCuda) {
    const Tensor weights = Tensor::empty({x.size(0)}, DType::f32, x.value().device());
    const Tensor y = Tensor::empty({x.size(0), x.size(2)}, x.dtype(), x.value().device());
    cuda::pool_weights(mask, x.size(1), divide_by_length, weights);
    cuda::mean_pool(x.value(), mask, weights, y);
    return record("mean_pool", y, {x}, [mask, weights, shape = x.shape()](Gradients& gradients) {
      const Tensor& dy = gradients.output();
      const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
      cuda::mean_pool_backward(dy, mask, weights, dx);
      gradients.add(0, dx);
    });
  }
  return {};
}

}  // namespace

Variable gather_time(const Variable& x, const Tensor& index) {
  require(x.shape().rank() == 3 && index.dtype() == DType::i32 && index.elements() == x.size(0),
          "gather_time: x ", x.shape(), ", index ", index.shape());
  return record("gather_time", gathered(x.value(), index), {x},
                [index, shape = x.shape()](Gradients& gradients) {
                  gradients.add(0, gathered_backward(gradients.output(), index, shape));
                });
}

Variable mean_pool(const Variable& x, const Tensor& mask, bool divide_by_length) {
  require(x.shape().rank() == 3 && (!mask.defined() || mask.elements() == x.size(0) * x.size(1)),
          "mean_pool: x ", x.shape(), ", mask ", mask.shape());
  if (on_cuda(x.value())) return mean_pool_cuda(x, mask, divide_by_length);
  const std::vector<double> weights = pool_weights(mask, x.size(0), x.size(1), divide_by_length);
  return record("mean_pool", pooled(x.value(), weights), {x},
                [weights, shape = x.shape()](Gradients& gradients) {
                  gradients.add(0, pooled_backward(gradients.output(), weights, shape));
                });
}

Variable last_pool(const Variable& x, const Tensor& mask) {
  const int64_t time = x.size(1);
  if (!mask.defined()) return reshape(slice(x, 1, time - 1, time), {x.size(0), x.size(2)});
  return mean_pool(x, last_valid(mask), false);  // the mean of one token
}

}  // namespace linnet
