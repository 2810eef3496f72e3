// Diagonal recurrences on a CUDA device: a warp for every row and channel goes along time, tile by
// tile; in a tile its lanes are modes first and tokens then.
#pragma once

#include "attention/primitives/diagonal_scan/modes.h"
#include "core/tensor.h"

namespace linnet::cuda {

// One call's tensors, or their gradients, in the computing type (f32 on a device): u [B,T,H], on a
// device in f32 or bf16, log_step [H], log_decay and frequency [1 or H,M], c [G,H,M,2], d [G,H] and
// state [B,H,M,2]; d and state may be undefined. modes [H,M,4] in f64: pole and gain.
struct DiagonalScanTensors {
  Tensor u, log_step, log_decay, frequency, c, d, state, modes;

  template <typename T>
  diagonal::Rates<T> rates(bool bilinear) const {
    const auto elements = [](const Tensor& x) { return static_cast<const T*>(x.raw()); };
    return {log_step.size(0),   log_decay.size(1),   log_decay.size(0),  bilinear,
            elements(log_step), elements(log_decay), elements(frequency)};
  }
};

// Writes in.modes.
void diagonal_modes(const DiagonalScanTensors& in, bool bilinear);
// From to.modes, the gradients of modes, to those of the rates, which are overwritten.
void diagonal_rates_backward(const DiagonalScanTensors& in, bool bilinear,
                             const DiagonalScanTensors& to);

// y [B,T,G,H] as u; last [B,H,M,2] in f32, may be undefined. The scan's pointers are device memory.
// A block's shared memory bounds M: 600 on sm_80.
void diagonal_scan(const diagonal::Scan& scan, const DiagonalScanTensors& in, const Tensor& y,
                   const Tensor& last);
// The gradients of sum(y * dy) + sum(last * dlast), but for those of rates; dlast may be undefined.
// `to` is overwritten. A block's shared memory bounds M: 300 on sm_80.
void diagonal_scan_backward(const diagonal::Scan& scan, const DiagonalScanTensors& in,
                            const Tensor& dy, const Tensor& dlast, const DiagonalScanTensors& to);

}  // namespace linnet::cuda
