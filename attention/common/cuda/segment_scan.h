// Running sums and maxima of tokens on a CUDA device; attention/common/segment_scan.h calls it.
#pragma once

#include "attention/common/segment_scan.h"

namespace linnet::cuda {

// `out` like x [B,T,C], f32. Masks and segments are read by the kernel.
void segment_scan(const Tensor& x, const SegmentScan& scan, const Tensor& out);

}  // namespace linnet::cuda
