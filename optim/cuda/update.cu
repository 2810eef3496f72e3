#include "optim/cuda/update.h"

#include <cmath>

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;

// One grid block for each UpdateBlock: f(i, prepare(block)) for its elements. Values that do not
// depend on the element are prepared once per thread: the compiler cannot know that the weights
// written do not alias the scalars read. Sums nothing, so the order of threads does not matter.
template <typename P, typename F>
__global__ void for_each_update(const UpdateBlock* blocks, const double* scalars, P prepare, F f) {
  if (scalars[kSkip] != 0) return;
  const UpdateBlock block = blocks[blockIdx.x];
  const auto prepared = prepare(block);
  for (int64_t i = block.begin + threadIdx.x; i < block.end; i += kThreads) f(i, prepared);
}

template <typename P, typename F>
void for_each_weight(const UpdateBuffers& buffers, const P& prepare, const F& f) {
  const auto count = buffers.blocks.elements() / static_cast<int64_t>(sizeof(UpdateBlock));
  launch({"for_each_update", blocks_for(count, 1), kThreads}, for_each_update<P, F>,
         reinterpret_cast<const UpdateBlock*>(pointer<uint8_t>(buffers.blocks)),
         pointer<double>(buffers.scalars), prepare, f);
}

// Factors of one block's update, the same for all its elements.
struct AdamFactors {
  float rate, keep, decay, factor, b1, one_minus_b1, b2, one_minus_b2, root_correction2, eps;
};
struct SgdFactors {
  float rate, factor, decay;
};
struct NagFactors {
  float keep, rate, rate_now, look_ahead, carry;
};

__global__ void prepare_update_scalars(double* scalars, const double* squares, const double* loss,
                                       bool scaled) {
  const double norm = sqrt(*squares) * scalars[kGradientScale];
  const double limit = scalars[kClipNorm];
  scalars[kGradientNorm] = norm;
  scalars[kSkip] = isfinite(norm) && isfinite(*loss) ? 0 : 1;
  scalars[kFactor] =
      (scaled ? 1 : scalars[kGradientScale]) * (limit > 0 && norm > limit ? limit / norm : 1);
}

__global__ void finish_update_scalars(const double* scalars, int64_t* updates,
                                      double* previous_lr) {
  if (scalars[kSkip] != 0) return;
  ++*updates;
  if (previous_lr != nullptr) *previous_lr = scalars[kLearningRate];
}

}  // namespace

Tensor upload_blocks(const std::vector<UpdateBlock>& blocks, Device device) {
  const Tensor result =
      Tensor::empty({static_cast<int64_t>(blocks.size() * sizeof(UpdateBlock))}, DType::u8, device);
  device_interface(device).copy_from_host(result.raw(), blocks.data(), result.bytes());
  return result;
}

void prepare_update(const Tensor& scalars, const Tensor& sum_of_squares, const Tensor& loss,
                    bool scaled) {
  launch({"prepare_update_scalars", 1, 1}, prepare_update_scalars, pointer<double>(scalars),
         pointer<double>(sum_of_squares), pointer<double>(loss), scaled);
}

void clip_by_value(const Tensor& gradients, const Tensor& scalars, double limit) {
  float* g = pointer<float>(gradients);
  const double* n = pointer<double>(scalars);
  const auto high = static_cast<float>(limit);
  for_each("clip_by_value", gradients.elements(), [=] __device__(int64_t i) {
    if (n[kSkip] != 0) return;
    const float value = g[i] * static_cast<float>(n[kGradientScale]);
    g[i] = value > high ? high : value < -high ? -high : value;
  });
}

void adam(const UpdateBuffers& buffers, const Tensor& m_tensor, const Tensor& v_tensor,
          const AdamConstants& options) {
  float* w = pointer<float>(buffers.weights);
  const float* g = pointer<float>(buffers.gradients);
  float* m = pointer<float>(m_tensor);
  float* v = pointer<float>(v_tensor);
  const double* n = pointer<double>(buffers.scalars);
  const int64_t* updates = pointer<int64_t>(buffers.updates);
  const auto prepare = [=] __device__(const UpdateBlock& block) {
    const double beta1 = isnan(n[kBeta1]) ? options.beta1 : n[kBeta1];
    const auto update = static_cast<double>(*updates + 1);
    const double correction1 = 1 - pow(beta1, update);
    const double correction2 = 1 - pow(options.beta2, update);
    const double lr = n[kLearningRate] * block.lr_scale;
    AdamFactors s{};
    s.rate = static_cast<float>(lr / correction1);
    s.keep = static_cast<float>(options.decoupled ? 1 - lr * block.weight_decay : 1);
    s.decay = static_cast<float>(options.decoupled ? 0 : block.weight_decay);
    s.factor = static_cast<float>(n[kFactor]);
    s.b1 = static_cast<float>(beta1);
    s.one_minus_b1 = static_cast<float>(1 - beta1);
    s.b2 = static_cast<float>(options.beta2);
    s.one_minus_b2 = static_cast<float>(1 - options.beta2);
    s.root_correction2 = static_cast<float>(1 / sqrt(correction2));
    s.eps = static_cast<float>(options.eps);
    return s;
  };
  for_each_weight(buffers, prepare, [=] __device__(int64_t i, const AdamFactors& s) {
    const float gradient = g[i] * s.factor + s.decay * w[i];
    m[i] = s.b1 * m[i] + s.one_minus_b1 * gradient;
    v[i] = s.b2 * v[i] + s.one_minus_b2 * gradient * gradient;
    w[i] = s.keep * w[i] - s.rate * m[i] / (sqrtf(v[i]) * s.root_correction2 + s.eps);
  });
}

void sgd(const UpdateBuffers& buffers, const Tensor& momentum_buffer, double momentum) {
  float* w = pointer<float>(buffers.weights);
  const float* g = pointer<float>(buffers.gradients);
  float* buffer = pointer_or_null<float>(momentum_buffer);
  const double* n = pointer<double>(buffers.scalars);
  const auto mu = static_cast<float>(momentum);
  const auto prepare = [=] __device__(const UpdateBlock& block) {
    return SgdFactors{static_cast<float>(n[kLearningRate] * block.lr_scale),
                      static_cast<float>(n[kFactor]), static_cast<float>(block.weight_decay)};
  };
  for_each_weight(buffers, prepare, [=] __device__(int64_t i, const SgdFactors& s) {
    float step = g[i] * s.factor + s.decay * w[i];
    if (buffer != nullptr) step = buffer[i] = mu * buffer[i] + step;
    w[i] -= s.rate * step;
  });
}

void nag(const UpdateBuffers& buffers, const Tensor& momentum_buffer, const Tensor& previous_lr,
         double momentum) {
  float* w = pointer<float>(buffers.weights);
  const float* g = pointer<float>(buffers.gradients);
  float* buffer = pointer<float>(momentum_buffer);
  const double* n = pointer<double>(buffers.scalars);
  const double* previous = pointer<double>(previous_lr);
  const auto prepare = [=] __device__(const UpdateBlock& block) {
    const double ratio = *previous == 0 ? 1 : n[kLearningRate] / *previous;
    const double lr = n[kLearningRate] * block.lr_scale;
    NagFactors s{};
    s.keep = static_cast<float>(1 - lr * block.weight_decay);
    s.rate = static_cast<float>(lr * n[kFactor]);
    s.rate_now = static_cast<float>((1 + momentum) * lr * n[kFactor]);
    s.look_ahead = static_cast<float>(momentum * momentum * ratio);
    s.carry = static_cast<float>(momentum * ratio);
    return s;
  };
  for_each_weight(buffers, prepare, [=] __device__(int64_t i, const NagFactors& s) {
    w[i] = s.keep * w[i] + s.look_ahead * buffer[i] - s.rate_now * g[i];
    buffer[i] = s.carry * buffer[i] - s.rate * g[i];
  });
}

void average(const Tensor& average, const Tensor& weights, const Tensor& scalars,
             const Tensor& updates, double decay, bool warmup) {
  float* mean = pointer<float>(average);
  const float* w = pointer<float>(weights);
  const double* n = pointer<double>(scalars);
  const int64_t* before = pointer<int64_t>(updates);
  for_each("average", average.elements(), [=] __device__(int64_t i) {
    if (n[kSkip] != 0) return;
    const auto t = static_cast<double>(*before + 1);
    const double ramp = t / (t + 9);
    const auto take = static_cast<float>(1 - (warmup && ramp < decay ? ramp : decay));
    mean[i] += take * (w[i] - mean[i]);
  });
}

void finish_update(const Tensor& scalars, const Tensor& updates, const Tensor& previous_lr) {
  launch({"finish_update_scalars", 1, 1}, finish_update_scalars, pointer<double>(scalars),
         pointer<int64_t>(updates), pointer_or_null<double>(previous_lr));
}

void swap(const Tensor& a, const Tensor& b) {
  float* x = pointer<float>(a);
  float* y = pointer<float>(b);
  require(a.elements() == b.elements(), "swap: ", a.shape(), " with ", b.shape());
  for_each("swap", a.elements(), [=] __device__(int64_t i) {
    const float value = x[i];
    x[i] = y[i];
    y[i] = value;
  });
}

}  // namespace linnet::cuda
