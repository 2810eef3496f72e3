// Diagonal recurrences on a CUDA device: a warp for every row and channel goes along time, tile by
// tile; in a tile its lanes are modes first and tokens then.
#pragma once

#include "attention/primitives/diagonal_scan/modes.h"
#include "core/tensor.h"

namespace linnet::cuda {

// f32: log_step [H], log_decay and frequency [1 or H,M]; or their gradients.
struct RateTensors {
  Tensor log_step, log_decay, frequency;
};

// u [B,T,H] in f32 or bf16, modes [H,M,4] in f64; c [G,H,M,2], d [G,H] and state [B,H,M,2] in f32,
// of which d and state may be undefined. Or their gradients.
struct DiagonalTensors {
  Tensor u, modes, c, d, state;
};

// modes [H,M,4]: pole and gain.
void diagonal_modes(const RateTensors& rates, bool bilinear, const Tensor& modes);
// `to` is overwritten.
void diagonal_rates_backward(const RateTensors& rates, bool bilinear, const Tensor& dmodes,
                             const RateTensors& to);

// y [B,T,G,H] as u; last [B,H,M,2] in f32, may be undefined. The scan's pointers are device memory.
// A block's shared memory bounds M: 600 on sm_80.
void diagonal_scan(const diagonal::Scan& scan, const DiagonalTensors& in, const Tensor& y,
                   const Tensor& last);
// The gradients of sum(y * dy) + sum(last * dlast); dlast may be undefined. `to` is overwritten. A
// block's shared memory bounds M: 300 on sm_80.
void diagonal_scan_backward(const diagonal::Scan& scan, const DiagonalTensors& in, const Tensor& dy,
                            const Tensor& dlast, const DiagonalTensors& to);

}  // namespace linnet::cuda
