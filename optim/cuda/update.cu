#include "optim/cuda/update.h"

#include <cmath>

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;

// One grid block for each UpdateBlock: f(i, block) for its elements. Sums nothing, so the order of
// threads does not matter.
template <typename F>
__global__ void for_each_update(const UpdateBlock* blocks, const double* numbers, F f) {
  if (numbers[kSkip] != 0) return;
  const UpdateBlock block = blocks[blockIdx.x];
  for (int64_t i = block.begin + threadIdx.x; i < block.end; i += kThreads) f(i, block);
}

template <typename F>
void for_each_weight(const UpdateBuffers& buffers, const F& f) {
  const auto count = buffers.blocks.elements() / static_cast<int64_t>(sizeof(UpdateBlock));
  launch({"for_each_update", blocks_for(count, 1), kThreads}, for_each_update<F>,
         reinterpret_cast<const UpdateBlock*>(pointer<uint8_t>(buffers.blocks)),
         pointer<double>(buffers.numbers), f);
}

__global__ void prepare_update_numbers(double* numbers, const double* squares, const double* loss,
                                       bool scaled) {
  const double norm = sqrt(*squares) * numbers[kGradientScale];
  const double limit = numbers[kClipNorm];
  numbers[kGradientNorm] = norm;
  numbers[kSkip] = isfinite(norm) && isfinite(*loss) ? 0 : 1;
  numbers[kFactor] =
      (scaled ? 1 : numbers[kGradientScale]) * (limit > 0 && norm > limit ? limit / norm : 1);
}

__global__ void finish_update_numbers(const double* numbers, int64_t* updates,
                                      double* previous_lr) {
  if (numbers[kSkip] != 0) return;
  ++*updates;
  if (previous_lr != nullptr) *previous_lr = numbers[kLearningRate];
}

}  // namespace

Tensor upload_blocks(const std::vector<UpdateBlock>& blocks, Device device) {
  const Tensor result =
      Tensor::empty({static_cast<int64_t>(blocks.size() * sizeof(UpdateBlock))}, DType::u8, device);
  device_interface(device).copy_from_host(result.raw(), blocks.data(), result.bytes());
  return result;
}

void prepare_update(const Tensor& numbers, const Tensor& sum_of_squares, const Tensor& loss,
                    bool scaled) {
  launch({"prepare_update_numbers", 1, 1}, prepare_update_numbers, pointer<double>(numbers),
         pointer<double>(sum_of_squares), pointer<double>(loss), scaled);
}

void clip_by_value(const Tensor& gradients, const Tensor& numbers, double limit) {
  float* g = pointer<float>(gradients);
  const double* n = pointer<double>(numbers);
  const auto high = static_cast<float>(limit);
  for_each("clip_by_value", gradients.elements(), [=] __device__(int64_t i) {
    if (n[kSkip] != 0) return;
    const float value = g[i] * static_cast<float>(n[kGradientScale]);
    g[i] = value > high ? high : value < -high ? -high : value;
  });
}

void adam(const UpdateBuffers& buffers, const Tensor& m_tensor, const Tensor& v_tensor,
          const AdamNumbers& options) {
  float* w = pointer<float>(buffers.weights);
  const float* g = pointer<float>(buffers.gradients);
  float* m = pointer<float>(m_tensor);
  float* v = pointer<float>(v_tensor);
  const double* n = pointer<double>(buffers.numbers);
  const int64_t* updates = pointer<int64_t>(buffers.updates);
  for_each_weight(buffers, [=] __device__(int64_t i, const UpdateBlock& block) {
    const double beta1 = isnan(n[kBeta1]) ? options.beta1 : n[kBeta1];
    const auto update = static_cast<double>(*updates + 1);
    const double correction1 = 1 - pow(beta1, update);
    const double correction2 = 1 - pow(options.beta2, update);
    const double lr = n[kLearningRate] * block.lr_scale;
    const auto rate = static_cast<float>(lr / correction1);
    const auto keep = static_cast<float>(options.decoupled ? 1 - lr * block.weight_decay : 1);
    const auto decay = static_cast<float>(options.decoupled ? 0 : block.weight_decay);
    const auto b1 = static_cast<float>(beta1), one_minus_b1 = static_cast<float>(1 - beta1);
    const auto b2 = static_cast<float>(options.beta2);
    const auto one_minus_b2 = static_cast<float>(1 - options.beta2);
    const auto root_correction2 = static_cast<float>(1 / sqrt(correction2));
    const float gradient = g[i] * static_cast<float>(n[kFactor]) + decay * w[i];
    m[i] = b1 * m[i] + one_minus_b1 * gradient;
    v[i] = b2 * v[i] + one_minus_b2 * gradient * gradient;
    w[i] = keep * w[i] -
           rate * m[i] / (sqrtf(v[i]) * root_correction2 + static_cast<float>(options.eps));
  });
}

void sgd(const UpdateBuffers& buffers, const Tensor& momentum_buffer, double momentum) {
  float* w = pointer<float>(buffers.weights);
  const float* g = pointer<float>(buffers.gradients);
  float* buffer = pointer_or_null<float>(momentum_buffer);
  const double* n = pointer<double>(buffers.numbers);
  const auto mu = static_cast<float>(momentum);
  for_each_weight(buffers, [=] __device__(int64_t i, const UpdateBlock& block) {
    const auto rate = static_cast<float>(n[kLearningRate] * block.lr_scale);
    float step =
        g[i] * static_cast<float>(n[kFactor]) + static_cast<float>(block.weight_decay) * w[i];
    if (buffer != nullptr) step = buffer[i] = mu * buffer[i] + step;
    w[i] -= rate * step;
  });
}

void nag(const UpdateBuffers& buffers, const Tensor& momentum_buffer, const Tensor& previous_lr,
         double momentum) {
  float* w = pointer<float>(buffers.weights);
  const float* g = pointer<float>(buffers.gradients);
  float* buffer = pointer<float>(momentum_buffer);
  const double* n = pointer<double>(buffers.numbers);
  const double* previous = pointer<double>(previous_lr);
  for_each_weight(buffers, [=] __device__(int64_t i, const UpdateBlock& block) {
    const double ratio = *previous == 0 ? 1 : n[kLearningRate] / *previous;
    const double lr = n[kLearningRate] * block.lr_scale;
    const auto keep = static_cast<float>(1 - lr * block.weight_decay);
    const auto rate = static_cast<float>(lr * n[kFactor]);
    const auto rate_now = static_cast<float>((1 + momentum) * lr * n[kFactor]);
    const auto look_ahead = static_cast<float>(momentum * momentum * ratio);
    const auto carry = static_cast<float>(momentum * ratio);
    w[i] = keep * w[i] + look_ahead * buffer[i] - rate_now * g[i];
    buffer[i] = carry * buffer[i] - rate * g[i];
  });
}

void average(const Tensor& average, const Tensor& weights, const Tensor& numbers,
             const Tensor& updates, double decay, bool warmup) {
  float* mean = pointer<float>(average);
  const float* w = pointer<float>(weights);
  const double* n = pointer<double>(numbers);
  const int64_t* before = pointer<int64_t>(updates);
  for_each("average", average.elements(), [=] __device__(int64_t i) {
    if (n[kSkip] != 0) return;
    const auto t = static_cast<double>(*before + 1);
    const double ramp = t / (t + 9);
    const auto take = static_cast<float>(1 - (warmup && ramp < decay ? ramp : decay));
    mean[i] += take * (w[i] - mean[i]);
  });
}

void finish_update(const Tensor& numbers, const Tensor& updates, const Tensor& previous_lr) {
  launch({"finish_update_numbers", 1, 1}, finish_update_numbers, pointer<double>(numbers),
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
