// The update rules: Adam and AdamW, SGD with momentum, fairseq's Nesterov.
#include <cmath>

#include "core/cuda/backend.h"
#include "core/threads.h"
#include "optim/cuda/update.h"
#include "optim/optimizer.h"

namespace linnet {
namespace {

// Calls body(block) for every block, in parallel; blocks are disjoint.
template <typename Blocks, typename Body>
void for_each_block(const Blocks& blocks, const Body& body) {
  parallel_for(static_cast<int64_t>(blocks.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(blocks[static_cast<size_t>(i)]);
  });
}

void refuse_beta1(const char* kind, const StepRates& rates) {
  require(!rates.beta1.has_value(), kind,
          " has no beta1: switch cycle_beta1 off or use adam or adamw");
}

// Calls body with float{} or double{}.
template <typename Body>
void dispatch_master(DType dtype, Body&& body) {
  if (dtype == DType::f64) {
    body(double{});
  } else {
    body(float{});
  }
}

}  // namespace

Adam::Adam(const std::vector<ParameterGroup>& groups, int64_t elements, DType dtype,
           const AdamOptions& options, Device device)
    : Optimizer(groups, elements, dtype, device),
      options_(options),
      m_(add_moment("m")),
      v_(add_moment("v")) {}

void Adam::apply(const Tensor& weights, const Tensor& gradients, const StepRates& rates,
                 int64_t update) {
  const double beta1 = rates.beta1.value_or(options_.beta1);
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(update));
  const double correction2 = 1 - std::pow(options_.beta2, static_cast<double>(update));
  dispatch_master(dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* const w = weights.data<T>();
    const T* const g = gradients.data<T>();
    T* const m = m_.data<T>();
    T* const v = v_.data<T>();
    const T b1 = static_cast<T>(beta1), one_minus_b1 = static_cast<T>(1 - beta1);
    const T b2 = static_cast<T>(options_.beta2), one_minus_b2 = static_cast<T>(1 - options_.beta2);
    const T eps = static_cast<T>(options_.eps), scale = static_cast<T>(rates.gradient_scale);
    const T root_correction2 = static_cast<T>(1 / std::sqrt(correction2));
    for_each_block(blocks(), [&](const Block& block) {
      const double lr = rates.lr * block.lr_scale;
      const T rate = static_cast<T>(lr / correction1);
      const T keep = static_cast<T>(options_.decoupled ? 1 - lr * block.weight_decay : 1);
      const T decay = static_cast<T>(options_.decoupled ? 0 : block.weight_decay);
#pragma omp simd
      for (int64_t i = block.begin; i < block.end; ++i) {
        const T grad = g[i] * scale + decay * w[i];
        m[i] = b1 * m[i] + one_minus_b1 * grad;
        v[i] = b2 * v[i] + one_minus_b2 * grad * grad;
        w[i] = keep * w[i] - rate * m[i] / (std::sqrt(v[i]) * root_correction2 + eps);
      }
    });
  });
}

void Adam::apply_on_device(const DeviceStep& step) {
  if constexpr (kCuda) {
    cuda::adam({step.weights, step.gradients, step.blocks, step.scalars, step.updates}, m_, v_,
               {options_.beta1, options_.beta2, options_.eps, options_.decoupled});
  }
}

Sgd::Sgd(const std::vector<ParameterGroup>& groups, int64_t elements, DType dtype, double momentum,
         Device device)
    : Optimizer(groups, elements, dtype, device), momentum_(momentum) {
  if (momentum != 0) buffer_ = add_moment("momentum");
}

void Sgd::apply(const Tensor& weights, const Tensor& gradients, const StepRates& rates, int64_t) {
  refuse_beta1("sgd", rates);
  dispatch_master(dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* const w = weights.data<T>();
    const T* const g = gradients.data<T>();
    T* const buffer = buffer_.defined() ? buffer_.data<T>() : nullptr;
    const T momentum = static_cast<T>(momentum_), scale = static_cast<T>(rates.gradient_scale);
    for_each_block(blocks(), [&](const Block& block) {
      const T rate = static_cast<T>(rates.lr * block.lr_scale);
      const T decay = static_cast<T>(block.weight_decay);
      if (buffer == nullptr) {
#pragma omp simd
        for (int64_t i = block.begin; i < block.end; ++i) {
          w[i] -= rate * (g[i] * scale + decay * w[i]);
        }
        return;
      }
#pragma omp simd
      for (int64_t i = block.begin; i < block.end; ++i) {
        buffer[i] = momentum * buffer[i] + (g[i] * scale + decay * w[i]);
        w[i] -= rate * buffer[i];
      }
    });
  });
}

void Sgd::apply_on_device(const DeviceStep& step) {
  if constexpr (kCuda) {
    cuda::sgd({step.weights, step.gradients, step.blocks, step.scalars, step.updates}, buffer_,
              momentum_);
  }
}

Nag::Nag(const std::vector<ParameterGroup>& groups, int64_t elements, DType dtype, double momentum,
         Device device)
    : Optimizer(groups, elements, dtype, device),
      momentum_(momentum),
      buffer_(add_moment("momentum")),
      previous_lr_(add_counter("previous_lr", DType::f64)) {}

void Nag::apply(const Tensor& weights, const Tensor& gradients, const StepRates& rates, int64_t) {
  refuse_beta1("nag", rates);
  double& previous_lr = *previous_lr_.data<double>();
  // Zero before the first update; after an update at lr 0 the buffer is zero and r does not matter.
  const double ratio = previous_lr == 0 ? 1 : rates.lr / previous_lr;
  dispatch_master(dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* const w = weights.data<T>();
    const T* const g = gradients.data<T>();
    T* const buffer = buffer_.data<T>();
    const T carry = static_cast<T>(momentum_ * ratio);
    const T look_ahead = static_cast<T>(momentum_ * momentum_ * ratio);
    for_each_block(blocks(), [&](const Block& block) {
      const double lr = rates.lr * block.lr_scale;
      const T keep = static_cast<T>(1 - lr * block.weight_decay);
      const T rate = static_cast<T>(lr * rates.gradient_scale);
      const T rate_now = static_cast<T>((1 + momentum_) * lr * rates.gradient_scale);
#pragma omp simd
      for (int64_t i = block.begin; i < block.end; ++i) {
        w[i] = keep * w[i] + look_ahead * buffer[i] - rate_now * g[i];
        buffer[i] = carry * buffer[i] - rate * g[i];
      }
    });
  });
  previous_lr = rates.lr;
}

void Nag::apply_on_device(const DeviceStep& step) {
  if constexpr (kCuda) {
    cuda::nag({step.weights, step.gradients, step.blocks, step.scalars, step.updates}, buffer_,
              previous_lr_, momentum_);
  }
}

}  // namespace linnet
