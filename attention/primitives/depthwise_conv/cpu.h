// Depthwise convolutions along time on plain arrays: reference and CPU kernels.
// attention/primitives/depthwise_conv/depthwise_conv.h has it on Variables.
//
//   y_i = sum_n taps[h, n] x_{i - before + n},   n = 0 ... count - 1
//
// with one filter per head, or one per channel. Positions outside the document and masked ones are
// zeros. The inputs are those of block attention with a band; x is its v, and its q and k have no
// other use than to give sizes.
#pragma once

#include "attention/primitives/block_attention/cpu.h"

namespace linnet {

// taps [heads, channels, count]: channels is 1 (one filter per head) or V.
template <typename T>
struct ConvTaps {
  T* data = nullptr;
  int64_t channels = 1, count = 0, before = 0;

  constexpr T* at(int64_t h, int64_t c) const {
    return data + (h * channels + (channels == 1 ? 0 : c)) * count;
  }
};

// The band that these taps see.
BlockAttentionOptions conv_band(int64_t count, int64_t before);

// Bitwise the same for any number of threads. Throws Error on shapes that do not fit.
template <typename T>
void depthwise_conv_forward(const BlockAttentionInputs<T>& in, const ConvTaps<const T>& taps,
                            SequenceView<T> y);
// The gradients of sum(y * dy), overwritten; dpast may be empty.
template <typename T>
void depthwise_conv_backward(const BlockAttentionInputs<T>& in, const ConvTaps<const T>& taps,
                             SequenceView<const T> dy, SequenceView<T> dx, SequenceView<T> dpast,
                             const ConvTaps<T>& dtaps);

// The literal equation. For tests.
void depthwise_conv_reference(const BlockAttentionInputs<double>& in,
                              const ConvTaps<const double>& taps, SequenceView<double> y);

}  // namespace linnet
