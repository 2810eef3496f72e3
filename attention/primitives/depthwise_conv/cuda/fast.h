// Depthwise convolutions in bf16 that read every element once: filters of up to 8 taps in the
// registers of a thread (window.cu), one filter per head of up to 65 taps on tensor cores
// (toeplitz.cu). Internal to this folder; which calls come here is decided in path.h.
//
// Both convolve a source with a window of taps: the input with the taps for y, dy with the taps
// from the last to the first for dx. The backward pass makes the gradients of the taps meanwhile,
// in sums of runs of tokens, which a last kernel (tap_sums.cu) adds in order.
#pragma once

#include <algorithm>

#include "attention/primitives/depthwise_conv/cpu.h"
#include "core/cuda/kernel.h"
#include "core/sequence_view.h"

namespace linnet::cuda::depthwise_conv_fast {

inline constexpr int kShortTaps = 8, kMaxTaps = 65;

// Tokens 0 to T - 1 of each row, and the P tokens before them, which are -P to -1 and may be
// missing. Masks (u8 [B,T], [B,P]; 1: counts) may be null.
template <typename E>
struct Line {
  SequenceView<E> now, past;
  const uint8_t* mask = nullptr;
  const uint8_t* past_mask = nullptr;

  // `first`: the first token of this row that there is.
  __device__ __forceinline__ bool counts(int64_t row, int64_t token, int64_t first) const {
    if (token < first || token < -past.T || token >= now.T) return false;
    const uint8_t* entries = token < 0 ? past_mask : mask;
    const int64_t at = token < 0 ? row * past.T + past.T + token : row * now.T + token;
    return entries == nullptr || entries[at] != 0;
  }
  __device__ __forceinline__ E* at(int64_t row, int64_t token, int64_t head) const {
    if (token < 0) {
      return past.data + row * past.batch_stride + (past.T + token) * past.time_stride +
             head * past.head_stride;
    }
    return now.data + row * now.batch_stride + token * now.time_stride + head * now.head_stride;
  }
};

// The reach of a token: tokens [begin, end) of its row.
struct Reach {
  int64_t begin, end;
};

// One pass over time, as both kinds of kernels take it. Views begin on 16 bytes and have strides
// and widths that are multiples of 8 (short filters: 8 bytes, 4).
struct Pass {
  // Segments of rows: the positions of their first tokens (i32 [B,T]; null: all `time_offset`), and
  // spans as token_spans makes them, null where a row is one.
  const int32_t* positions = nullptr;
  const int32_t* span_begins = nullptr;
  const int32_t* span_ends = nullptr;
  int64_t time = 0, past = 0, time_offset = 0;
  ConvTaps<const float> taps;
  Line<const kernel_bf16> source;  // x; backward: dy, without past
  Line<const kernel_bf16> other;   // backward: x, by which gradients of taps are multiplied
  // y, without past; masked tokens become 0. Backward: dx, masked as x; of its past the last
  // `before` tokens are written.
  Line<kernel_bf16> out;
  // What follows from these, set by run().
  int64_t first_out = 0;     // the first token of `out`
  int64_t run = 0;           // tokens of `out` that one block does
  float* partial = nullptr;  // of backward: [runs * B, count, H, width]

  int64_t tokens() const { return time - first_out; }
  int64_t runs() const { return (tokens() + run - 1) / run; }
  // Before position 0 there is nothing, whatever the carried tokens hold.
  __device__ __forceinline__ int64_t first(int64_t row) const {
    const int64_t start = positions != nullptr ? positions[row * time] : time_offset;
    return -(start < past ? start : past);
  }
  __device__ __forceinline__ Reach reach(int64_t row, int64_t token, int64_t first) const {
    if (span_begins == nullptr) return {first, time};
    const int64_t at = row * time + (token < 0 ? 0 : token);
    const int64_t begin = span_begins[at];
    return {begin == 0 ? first : begin, span_ends[at]};
  }
  // Tap n of a window, and how many tokens before the own it begins.
  template <bool backward>
  __device__ __forceinline__ float tap(int64_t head, int64_t channel, int64_t n) const {
    return taps.at(head, channel)[backward ? taps.count - 1 - n : n];
  }
  template <bool backward>
  __host__ __device__ __forceinline__ int64_t before() const {
    return backward ? taps.count - 1 - taps.before : taps.before;
  }
};

// The pass, forward, or, where dtaps [H,channels,count] f32 is defined, backward.
void run(Pass pass, const Tensor& dtaps);

// The two kinds: how many tokens a run has, how wide `partial` is (an element for each channel, or
// several of a filter that channels share), the launch.
int64_t window_run(const Pass& pass);
void run_window(const Pass& pass, bool backward);
int64_t toeplitz_run(const Pass& pass);
int64_t toeplitz_width(const Pass& pass);
void run_toeplitz(const Pass& pass, bool backward);

}  // namespace linnet::cuda::depthwise_conv_fast
