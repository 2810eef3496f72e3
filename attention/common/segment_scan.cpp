#include "attention/common/segment_scan.h"

#include <algorithm>
#include <limits>

#include "attention/common/cuda/segment_scan.h"
#include "core/cuda/backend.h"
#include "core/sequence_view.h"
#include "core/threads.h"

namespace linnet {
namespace {

template <typename T>
T combined(ScanKind kind, T a, T b) {
  return kind == ScanKind::sum ? a + b : std::max(a, b);
}

// One span of a row; `running` [C] holds the initial value on entry and the final value on return.
template <typename T>
void scan_span(const SegmentScan& scan, const Span& span, int64_t T_all, int64_t C, const T* x,
               T* out, std::vector<T>& running) {
  const uint8_t* mask = scan.mask.defined() ? scan.mask.data<uint8_t>() : nullptr;
  const int64_t tokens = span.end - span.begin;
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t t = scan.reach == ScanReach::suffix ? span.end - 1 - i : span.begin + i;
    const int64_t row = (span.row * T_all + t) * C;
    if (is_valid(mask, span.row, t, T_all)) {
      for (int64_t c = 0; c < C; ++c) running[c] = combined(scan.kind, running[c], x[row + c]);
    }
    std::copy(running.begin(), running.end(), out + row);
  }
  const uint8_t* results = scan.result_mask.defined() ? scan.result_mask.data<uint8_t>() : nullptr;
  for (int64_t t = span.begin; t < span.end; ++t) {
    T* row = out + (span.row * T_all + t) * C;
    if (scan.reach == ScanReach::whole) std::copy(running.begin(), running.end(), row);
    if (!is_valid(results, span.row, t, T_all)) std::fill_n(row, C, T(0));
  }
}

template <typename T>
void scan_on_host(const Tensor& x, const SegmentScan& scan, const Tensor& out) {
  const int64_t B = x.size(0), T_all = x.size(1), C = x.size(2);
  const int32_t* segments = scan.segments.defined() ? scan.segments.data<int32_t>() : nullptr;
  const std::vector<Span> spans = make_spans(segments, B, T_all, scan.carried.defined());
  const bool reverse = scan.reach == ScanReach::suffix;
  const T empty = scan.kind == ScanKind::sum ? T(0) : -std::numeric_limits<T>::infinity();
  parallel_for(std::ssize(spans), 1, [&](int64_t begin, int64_t end) {
    std::vector<T> running(static_cast<size_t>(C));
    for (int64_t s = begin; s < end; ++s) {
      const Span& span = spans[static_cast<size_t>(s)];
      std::fill(running.begin(), running.end(), empty);
      const bool enters = reverse ? span.carries_out : span.begin == 0;
      const bool leaves = reverse ? span.begin == 0 : span.carries_out;
      if (enters && scan.carried.defined()) {
        std::copy_n(scan.carried.data<T>() + span.row * C, C, running.begin());
      }
      scan_span(scan, span, T_all, C, x.data<T>(), out.data<T>(), running);
      if (leaves && scan.last.defined()) {
        std::copy(running.begin(), running.end(), scan.last.data<T>() + span.row * C);
      }
    }
  });
}

void check(const Tensor& tensor, const Shape& expected, const char* what) {
  require(!tensor.defined() || tensor.shape() == expected, "segment_scan: expected ", what, " ",
          expected, ", got ", tensor.defined() ? tensor.shape() : Shape());
}

}  // namespace

Tensor segment_scan(const Tensor& x, const SegmentScan& scan) {
  require(x.shape().rank() == 3, "segment_scan: expected x [B,T,C], got ", x.shape());
  const Shape tokens{x.size(0), x.size(1)}, state{x.size(0), x.size(2)};
  check(scan.mask, tokens, "mask");
  check(scan.result_mask, tokens, "result_mask");
  check(scan.segments, tokens, "segments");
  check(scan.carried, state, "carried");
  check(scan.last, state, "last");
  const Tensor out = Tensor::empty(x.shape(), x.dtype(), x.device());
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::segment_scan(x, scan, out);
      return out;
    }
  }
  require(x.dtype() == DType::f32 || x.dtype() == DType::f64, "segment_scan: expected f32 or f64, ",
          "got ", name_of(x.dtype()));
  x.dtype() == DType::f64 ? scan_on_host<double>(x, scan, out) : scan_on_host<float>(x, scan, out);
  return out;
}

RunningSum running_sum(const Variable& x, const Variable& carried, const Tensor& mask,
                       const Tensor& segments, bool causal) {
  const auto empty_state = [shape = Shape{x.size(0), x.size(2)}, dtype = x.dtype(),
                            device = x.value().device()] {
    return Tensor::empty(shape, dtype, device);
  };
  SegmentScan scan;
  scan.reach = causal ? ScanReach::prefix : ScanReach::whole;
  scan.mask = mask;
  scan.segments = segments;
  if (carried.defined()) scan.carried = carried.value();
  if (causal) scan.last = empty_state();
  const Tensor sums = segment_scan(x.value(), scan);
  // A sum passes its gradient to the tokens that it covers; `last` counts as the result of one more
  // token.
  const auto back = [mask, segments, causal, empty_state](Gradients& gradients) {
    SegmentScan reverse;
    reverse.reach = causal ? ScanReach::suffix : ScanReach::whole;
    reverse.result_mask = mask;
    reverse.segments = segments;
    if (causal) {
      reverse.carried = gradients.output(1);
      reverse.last = empty_state();
    }
    gradients.add(0, segment_scan(gradients.output(0), reverse));
    if (causal && gradients.wanted(1)) gradients.add(1, reverse.last);
  };
  // Fused: cumulative_sum knows neither documents nor carried sums.
  if (!causal) return {record("running_sum", sums, {x}, back), {}};
  std::vector<Variable> outputs = record_many("running_sum", {sums, scan.last}, {x, carried}, back);
  return {outputs[0], outputs[1]};
}

}  // namespace linnet
