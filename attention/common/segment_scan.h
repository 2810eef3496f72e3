// Running sums and maxima of tokens: what a mechanism carries along time besides a linear state.
#pragma once

#include "autograd/variable.h"

namespace linnet {

enum class ScanKind : uint8_t { sum, max };
// What the result at t covers of t's segment: tokens up to t, tokens from t on, all of them.
enum class ScanReach : uint8_t { prefix, suffix, whole };

// One scan along time over x [B,T,C], f32 or f64. Masked tokens count as nothing, which is 0 or
// -infinity, and are never read, but have a result like others.
struct SegmentScan {
  ScanKind kind = ScanKind::sum;
  ScanReach reach = ScanReach::prefix;
  Tensor mask;         // u8 [B,T], 1 = valid; undefined: all
  Tensor result_mask;  // u8 [B,T]: results of other tokens are 0; undefined: all have results
  Tensor segments;     // i32 [B,T]: a scan restarts where the id changes; undefined: one a row
  // [B,C]: what the first segment of a row begins with (suffix: what the last one ends with).
  // Undefined: nothing.
  Tensor carried;
  // [B,C]: receives the result after the last token of a row (suffix: before the first), what was
  // carried where a row has no token. Undefined: not wanted.
  Tensor last;
};
// The result [B,T,C] in the dtype and on the device of x. Results of earlier tokens do not depend
// on later ones where reach is prefix. Throws Error on shapes that do not fit.
Tensor segment_scan(const Tensor& x, const SegmentScan& scan);

// The sum of x [B,T,C] over the valid tokens of t's segment: up to t (causal), or all of them.
// `carried` [B,C] (may be undefined) is what the first segment of a row begins with. `last` [B,C]:
// the sum after the last token (causal; else undefined). Differentiable in x and carried.
struct RunningSum {
  Variable sums, last;
};
RunningSum running_sum(const Variable& x, const Variable& carried, const Tensor& mask,
                       const Tensor& segments, bool causal);

}  // namespace linnet
