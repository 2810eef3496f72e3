// Diagonal linear recurrences over time, one set of complex modes per channel (S4D), on Variables.
#pragma once

#include "autograd/variable.h"

namespace linnet {

enum class Discretization : uint8_t { zoh, bilinear };

// Differentiable inputs; d and state may be undefined.
struct DiagonalScanVariables {
  Variable u;                     // [B,T,H]
  Variable log_step;              // [H]: log of a channel's step
  Variable log_decay, frequency;  // [1,M], the same for all channels, or [H,M]
  Variable c;                     // [G,H,M,2]: real and imaginary part
  Variable d;                     // [G,H]
  Variable state;                 // [B,H,M,2]: continues the first document of a row
};

// Tensors may be undefined.
struct DiagonalScanContext {
  Discretization discretization = Discretization::zoh;
  // Reads the tokens after its own instead of those up to it; there is no state then.
  bool later = false;
  Tensor mask;      // u8 [B,T], 1 = valid
  Tensor segments;  // i32 [B,T]: nothing is seen across documents
};

struct DiagonalScanResult {
  Variable y;      // [B,T,G,H] in the dtype of u
  Variable state;  // [B,H,M,2] in f32 (f64 for f64), that of the last document; not with `later`
};

//   x_t = pole x_{t-1} + gain u_t,   y_t = 2 Re sum_n c_n x_t,n + d u_t
//   later:  y_t = 2 Re sum_n c_n x_{t+1,n} + d u_t,   x_t = pole x_{t+1} + gain u_t
//
// with A = -exp(log_decay) + i frequency, z = exp(log_step) A, and pole = e^z, gain = (e^z - 1) / A
// (zoh) or pole = (1 + z/2) / (1 - z/2), gain = exp(log_step) / (1 - z/2) (bilinear). M modes stand
// for 2 M that are conjugates of each other. This is the convolution of u with the kernel
// 2 Re sum_n c_n gain_n pole_n^tau. Masked tokens are not read: they count as zeros in time, and
// give 0. Differentiable in every input; f64 is computed in f64 (on the CPU only), f32 and bf16 in
// f32. Poles are made in double and kept as the sum of two f32. Nothing is kept for backward but
// the inputs; it recomputes the states from one for every 64 tokens (a device: 32). Time T H M (6 +
// 2 G). Bitwise the same for any number of threads. Throws Error on shapes that do not fit.
DiagonalScanResult diagonal_scan(const DiagonalScanVariables& inputs,
                                 const DiagonalScanContext& context);

}  // namespace linnet
