// Optimizer updates on a CUDA device: one pass over the flat buffers. Values that change from
// update to update are read from device memory, so that a captured step can be replayed;
// optim/optimizer.h has the formula of each rule.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace linnet::cuda {

// Elements [begin, end) of the flat buffers and how they are updated, in device memory.
struct UpdateBlock {
  int64_t begin, end;
  double weight_decay, lr_scale;
};

// The blocks as a tensor of bytes on the device.
Tensor upload_blocks(const std::vector<UpdateBlock>& blocks, Device device);

// The scalars of an update, f64 [kUpdateScalars] on the device. The host writes the first four.
enum UpdateScalar : uint8_t {
  kLearningRate,
  kBeta1,          // NaN: the optimizer's own
  kGradientScale,  // one over the update's targets
  kClipNorm,       // 0: no clipping
  kGradientNorm,   // of the scaled gradient, before clipping
  kFactor,         // by which the update multiplies gradients: scale and clipping
  kSkip,           // 1 when the loss or a gradient is not finite: nothing is updated
  kUpdateScalars
};

// Fills in kGradientNorm, kFactor and kSkip from the sum of squares of the gradients (f64 [1]) and
// the summed loss (f64 [1]). Where gradients were already scaled (clipping by value), `scaled`.
void prepare_update(const Tensor& scalars, const Tensor& sum_of_squares, const Tensor& loss,
                    bool scaled);
// Multiplies the gradients by kGradientScale and brings each into +-limit, unless skipped.
void clip_by_value(const Tensor& gradients, const Tensor& scalars, double limit);

// Flat f32 buffers. `updates` (i64 [1]) counts the updates made before this one.
struct UpdateBuffers {
  Tensor weights, gradients, blocks, scalars, updates;
};
struct AdamConstants {
  double beta1, beta2, eps;
  bool decoupled;
};
void adam(const UpdateBuffers& buffers, const Tensor& m, const Tensor& v,
          const AdamConstants& options);
// `momentum_buffer` is undefined without momentum.
void sgd(const UpdateBuffers& buffers, const Tensor& momentum_buffer, double momentum);
// previous_lr f64 [1].
void nag(const UpdateBuffers& buffers, const Tensor& momentum_buffer, const Tensor& previous_lr,
         double momentum);
// average += take * (weights - average), take = 1 - decay, or that of `warmup` (optim/ema.h).
void average(const Tensor& average, const Tensor& weights, const Tensor& scalars,
             const Tensor& updates, double decay, bool warmup);
// After the rule: ++updates and previous_lr = lr (where defined), unless skipped.
void finish_update(const Tensor& scalars, const Tensor& updates, const Tensor& previous_lr);
void swap(const Tensor& a, const Tensor& b);

}  // namespace linnet::cuda
