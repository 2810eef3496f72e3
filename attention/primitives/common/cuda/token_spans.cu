// Begin and end of every token's span, by scans over a row.
#include "attention/primitives/common/cuda/token_spans.h"

#include "core/cuda/kernel.h"

namespace linnet::cuda {
namespace {

constexpr int kLanes = 32;

// The largest value of this lane and those before it.
__device__ __forceinline__ int scan_max(int value) {
  const int lane = static_cast<int>(threadIdx.x);
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int other = __shfl_up_sync(~0u, value, distance);
    if (lane >= distance) value = value > other ? value : other;
  }
  return value;
}

// One warp per row. Begins are the last change of id up to a token; ends the first change after it,
// found by the same scan from the other side, with tokens counted from the end.
__global__ void find_token_spans(const int32_t* segments, int64_t T, int32_t* begins,
                                 int32_t* ends) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * T;
  const int lane = static_cast<int>(threadIdx.x);
  int begin = 0, from_end = 0;  // of the tokens scanned so far
  for (int64_t first = 0; first < T; first += kLanes) {
    const int64_t t = first + lane, back = T - 1 - t;
    const bool inside = t < T;
    const bool begins_here = inside && t > 0 && segments[row + t] != segments[row + t - 1];
    const bool ends_here =
        inside && back + 1 < T && segments[row + back] != segments[row + back + 1];
    const int latest = scan_max(begins_here ? static_cast<int>(t) : begin);
    const int latest_end = scan_max(ends_here ? static_cast<int>(t) : from_end);
    if (inside) {
      begins[row + t] = latest;
      ends[row + back] = static_cast<int32_t>(T - latest_end);
    }
    begin = __shfl_sync(~0u, latest, kLanes - 1);
    from_end = __shfl_sync(~0u, latest_end, kLanes - 1);
  }
}

}  // namespace

Tensor token_spans(const Tensor& segments) {
  const int64_t B = segments.size(0), T = segments.size(1);
  require(T <= std::numeric_limits<int32_t>::max(), "spans of segments: ", T,
          " tokens per row are more than 32 bits can count; make the context shorter");
  const Tensor spans = Tensor::empty({2, B, T}, DType::i32, segments.device());
  int32_t* begins = pointer<int32_t>(spans);
  if (T == 0) return spans;
  launch({"find_token_spans", blocks_for(B, 1), kLanes}, find_token_spans,
         pointer<int32_t>(segments), T, begins, begins + B * T);
  return spans;
}

}  // namespace linnet::cuda
