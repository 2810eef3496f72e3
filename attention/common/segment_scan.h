// Scans over time: running sums and maxima of tokens, which a mechanism needs beside a linear
// state.
#pragma once

#include "autograd/variable.h"

namespace linnet {

enum class ScanKind : uint8_t { sum, max };
// Tokens of t's segment that the result at t covers: tokens up to t, tokens from t on, or all.
enum class ScanReach : uint8_t { prefix, suffix, whole };

// One scan along time over x [B,T,C], f32 or f64. Masked tokens count as 0 (sum) or -infinity
// (maximum) and are never read, but they have a result.
struct SegmentScan {
  ScanKind kind = ScanKind::sum;
  ScanReach reach = ScanReach::prefix;
  Tensor mask;         // u8 [B,T], 1 = valid; undefined: all
  Tensor result_mask;  // u8 [B,T]: results of other tokens are 0; undefined: all have results
  Tensor segments;     // i32 [B,T]: a scan restarts where the id changes; undefined: one per row
  // [B,C]: the initial value of the first segment of a row (suffix: of the last segment).
  // Undefined: none.
  Tensor carried;
  // [B,C]: receives the result after the last token of a row (suffix: before the first), and
  // `carried` for a row without tokens. Undefined: not wanted.
  Tensor last;
};
// The result [B,T,C] in the dtype and on the device of x. Results of earlier tokens do not depend
// on later ones where reach is prefix. Throws Error on shapes that do not fit.
Tensor segment_scan(const Tensor& x, const SegmentScan& scan);

// The sum of x [B,T,C] over the valid tokens of t's segment: up to t (causal), or all of them.
// `carried` [B,C] (may be undefined) is the initial value of the first segment of a row. `last`
// [B,C]: the sum after the last token (causal; else undefined). Differentiable in x and carried.
struct RunningSum {
  Variable sums, last;
};
RunningSum running_sum(const Variable& x, const Variable& carried, const Tensor& mask,
                       const Tensor& segments, bool causal);

}  // namespace linnet
