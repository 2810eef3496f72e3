#include "autograd/dropout.h"

#include <algorithm>
#include <cmath>

#include "autograd/cuda/dropout.h"
#include "autograd/dropout_check.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/threads.h"

namespace linnet {
namespace {

// y = base + factors * x, or factors * x when base is undefined.
Tensor apply(const Tensor& x, const Tensor& base, const DropoutSpec& spec) {
  require_droppable(x, spec);
  const int64_t time = x.size(1);
  const int64_t channels = x.size(2);
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::dropout(x, base, spec, y);
      return y;
    }
  }
  dispatch_floating(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const T* from = x.data<T>();
    const T* plus = base.defined() ? base.data<T>() : nullptr;
    T* to = y.data<T>();
    const int64_t* examples = spec.place.examples.data<int64_t>();
    parallel_for(x.size(0) * time, 8, [&](int64_t begin, int64_t end) {
      std::vector<float> factors(static_cast<size_t>(channels));
      for (int64_t row = begin; row < end; ++row) {
        dropout_row(spec, examples[row / time], spec.place.time_offset + row % time, channels,
                    factors.data());
        const float* factor = factors.data();
        const T* in = from + row * channels;
        T* out = to + row * channels;
        if (plus == nullptr) {
          for (int64_t c = 0; c < channels; ++c) {
            out[c] = static_cast<T>(static_cast<C>(in[c]) * static_cast<C>(factor[c]));
          }
        } else {
          const T* onto = plus + row * channels;
          for (int64_t c = 0; c < channels; ++c) {
            out[c] = static_cast<T>(static_cast<C>(onto[c]) +
                                    static_cast<C>(in[c]) * static_cast<C>(factor[c]));
          }
        }
      }
    });
  });
  return y;
}

}  // namespace

void require_droppable(const Tensor& x, const DropoutSpec& spec) {
  require(spec.probability > 0 && spec.probability < 1,
          "dropout: probability must be in [0, 1), got ", spec.probability);
  require(x.shape().rank() == 3, "dropout: expected [B, T, C], got ", x.shape());
  const Tensor& examples = spec.place.examples;
  require(examples.defined() && examples.dtype() == DType::i64 && examples.elements() == x.size(0),
          "dropout: needs the global example number (i64) of each of the ", x.size(0), " rows");
}

float dropout_scale(double probability) {
  return static_cast<float>(1.0 / (1.0 - probability));
}
uint32_t dropout_limit(double probability) {
  return static_cast<uint32_t>(std::llround(probability * 4294967295.0));
}

void dropout_row(const DropoutSpec& spec, int64_t example, int64_t time, int64_t channels,
                 float* factors) {
  const float keep = dropout_scale(spec.probability);
  const uint32_t limit = dropout_limit(spec.probability);
  // One counter yields four words: four channels share it.
  const int64_t groups = (channels + 3) / 4;
  const uint64_t first = random_element(static_cast<uint64_t>(example), static_cast<uint64_t>(time),
                                        0, static_cast<uint64_t>(groups));
  constexpr int64_t kAtOnce = 64;
  uint32_t words[4 * kAtOnce];
  for (int64_t g = 0; g < groups; g += kAtOnce) {
    spec.key.fill_words(first + static_cast<uint64_t>(g), std::min(kAtOnce, groups - g), words);
    const int64_t count = std::min(4 * kAtOnce, channels - 4 * g);
    float* to = factors + 4 * g;
    for (int64_t i = 0; i < count; ++i) to[i] = words[i] < limit ? 0.0f : keep;
  }
}

Variable dropout(const Variable& x, const DropoutSpec& spec) {
  if (spec.probability == 0) return x;
  return record("dropout", apply(x.value(), {}, spec), {x}, [spec](Gradients& gradients) {
    gradients.add(0, apply(gradients.output(), {}, spec));
  });
}

Variable residual_dropout(const Variable& residual, const Variable& branch,
                          const DropoutSpec& spec) {
  require(residual.shape() == branch.shape() && residual.dtype() == branch.dtype(),
          "residual_dropout: residual ", residual.shape(), ", branch ", branch.shape());
  Tensor y;
  if (spec.probability == 0) {
    y = Tensor::empty(branch.shape(), branch.dtype(), branch.value().device());
    add(residual.value(), branch.value(), y);
  } else {
    y = apply(branch.value(), residual.value(), spec);
  }
  return record("residual_dropout", y, {residual, branch}, [spec](Gradients& gradients) {
    gradients.add(0, gradients.output());
    if (!gradients.wanted(1)) return;
    gradients.add(1,
                  spec.probability == 0 ? gradients.output() : apply(gradients.output(), {}, spec));
  });
}

}  // namespace linnet
