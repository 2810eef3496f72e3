// Diagonal recurrences on a CUDA device: a warp for every row and channel goes along time, tile by
// tile; in a tile its lanes are modes first and tokens then.
#pragma once

#include "attention/primitives/diagonal_scan/tensors.h"

namespace linnet::cuda {

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
