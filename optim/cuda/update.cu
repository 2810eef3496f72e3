#include "optim/cuda/update.h"

#include <cmath>

#include "core/cuda/for_each.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;

// What an update reads and writes: weights, gradients, the optimizer's states (null: none).
struct UpdateArrays {
  float* w;
  const float* g;
  float *first, *second;
};

// Calls f(w, g, first, second, s) for `count` elements from i on, and stores all but g.
template <int count, typename F, typename S>
__device__ __forceinline__ void update_at(const UpdateArrays& a, int64_t i, const F& f,
                                          const S& s) {
  float w[count], g[count], first[count] = {}, second[count] = {};
  load_vector(a.w + i, w);
  load_vector(a.g + i, g);
  if (a.first != nullptr) load_vector(a.first + i, first);
  if (a.second != nullptr) load_vector(a.second + i, second);
#pragma unroll
  for (int j = 0; j < count; ++j) f(w[j], g[j], first[j], second[j], s);
  store_vector(a.w + i, w);
  if (a.first != nullptr) store_vector(a.first + i, first);
  if (a.second != nullptr) store_vector(a.second + i, second);
}

// One grid block for each UpdateBlock, whose elements it reads 16 bytes at a time but for those
// before the first multiple of 16 bytes and behind the last. Values that do not depend on the
// element are prepared once per thread. Sums nothing, so the order of threads does not matter.
template <typename P, typename F>
__global__ void for_each_update(const UpdateBlock* blocks, const double* scalars, UpdateArrays a,
                                bool aligned, P prepare, F f) {
  if (scalars[kSkip] != 0) return;
  constexpr int64_t kTogether = kVector<float>;
  const UpdateBlock block = blocks[blockIdx.x];
  const auto prepared = prepare(block);
  const int64_t thread = threadIdx.x;
  const int64_t begin = (block.begin + kTogether - 1) / kTogether * kTogether;
  const int64_t end = block.end / kTogether * kTogether;
  if (!aligned || begin >= end) {
    for (int64_t i = block.begin + thread; i < block.end; i += kThreads) {
      update_at<1>(a, i, f, prepared);
    }
    return;
  }
  for (int64_t i = begin + thread * kTogether; i < end; i += kThreads * kTogether) {
    update_at<kTogether>(a, i, f, prepared);
  }
  if (block.begin + thread < begin) update_at<1>(a, block.begin + thread, f, prepared);
  if (end + thread < block.end) update_at<1>(a, end + thread, f, prepared);
}

template <typename P, typename F>
void for_each_weight(const UpdateBuffers& buffers, const Tensor& first, const Tensor& second,
                     const P& prepare, const F& f) {
  const auto count = buffers.blocks.elements() / static_cast<int64_t>(sizeof(UpdateBlock));
  const UpdateArrays a{pointer<float>(buffers.weights), pointer<float>(buffers.gradients),
                       pointer_or_null<float>(first), pointer_or_null<float>(second)};
  launch({"for_each_update", blocks_for(count, 1), kThreads}, for_each_update<P, F>,
         reinterpret_cast<const UpdateBlock*>(pointer<uint8_t>(buffers.blocks)),
         pointer<double>(buffers.scalars), a, are_aligned(a.w, a.g, a.first, a.second), prepare, f);
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
  for_each_weight(buffers, m_tensor, v_tensor, prepare,
                  [=] __device__(float& w, float g, float& m, float& v, const AdamFactors& s) {
                    const float gradient = g * s.factor + s.decay * w;
                    m = s.b1 * m + s.one_minus_b1 * gradient;
                    v = s.b2 * v + s.one_minus_b2 * gradient * gradient;
                    w = s.keep * w - s.rate * m / (sqrtf(v) * s.root_correction2 + s.eps);
                  });
}

void sgd(const UpdateBuffers& buffers, const Tensor& momentum_buffer, double momentum) {
  const bool has_momentum = momentum_buffer.defined();
  const double* n = pointer<double>(buffers.scalars);
  const auto mu = static_cast<float>(momentum);
  const auto prepare = [=] __device__(const UpdateBlock& block) {
    return SgdFactors{static_cast<float>(n[kLearningRate] * block.lr_scale),
                      static_cast<float>(n[kFactor]), static_cast<float>(block.weight_decay)};
  };
  for_each_weight(buffers, momentum_buffer, {}, prepare,
                  [=] __device__(float& w, float g, float& kept, float&, const SgdFactors& s) {
                    float step = g * s.factor + s.decay * w;
                    if (has_momentum) step = kept = mu * kept + step;
                    w -= s.rate * step;
                  });
}

void nag(const UpdateBuffers& buffers, const Tensor& momentum_buffer, const Tensor& previous_lr,
         double momentum) {
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
  for_each_weight(buffers, momentum_buffer, {}, prepare,
                  [=] __device__(float& w, float g, float& kept, float&, const NagFactors& s) {
                    w = s.keep * w + s.look_ahead * kept - s.rate_now * g;
                    kept = s.carry * kept - s.rate * g;
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
