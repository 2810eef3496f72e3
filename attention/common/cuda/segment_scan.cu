#include "attention/common/cuda/segment_scan.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

struct Arguments {
  const float* x;
  const uint8_t* mask;
  const uint8_t* result_mask;
  const int32_t* segments;
  const float* carried;
  float* last;
  float* out;
  int64_t time, channels;
  ScanKind kind;
  ScanReach reach;

  __device__ float empty() const { return kind == ScanKind::sum ? 0.0f : -INFINITY; }
  __device__ float combined(float a, float b) const {
    return kind == ScanKind::sum ? a + b : fmaxf(a, b);
  }
  __device__ bool has_result(int64_t token) const {
    return result_mask == nullptr || result_mask[token] != 0;
  }
};

// One thread per channel of a row: it loops over time, so that every sum has the order of the
// tokens.
__device__ void scan_channel(const Arguments& a, int64_t number) {
  const int64_t row = number / a.channels, channel = number % a.channels;
  const bool reverse = a.reach == ScanReach::suffix;
  const auto token_at = [&](int64_t i) { return row * a.time + (reverse ? a.time - 1 - i : i); };
  float running = a.carried != nullptr ? a.carried[number] : a.empty();
  for (int64_t i = 0; i < a.time; ++i) {
    const int64_t token = token_at(i);
    if (i > 0 && a.segments != nullptr && a.segments[token] != a.segments[token_at(i - 1)]) {
      running = a.empty();
    }
    if (a.mask == nullptr || a.mask[token] != 0) {
      running = a.combined(running, a.x[token * a.channels + channel]);
    }
    const bool kept = a.reach == ScanReach::whole || a.has_result(token);
    a.out[token * a.channels + channel] = kept ? running : 0.0f;
  }
  if (a.last != nullptr) a.last[number] = running;
  if (a.reach != ScanReach::whole) return;
  // A second loop, backward from the end of every segment, where the total is known.
  for (int64_t i = a.time - 1; i >= 0; --i) {
    const int64_t token = token_at(i);
    const bool ends =
        i + 1 < a.time && a.segments != nullptr && a.segments[token] != a.segments[token_at(i + 1)];
    float* out = a.out + token * a.channels + channel;
    if (ends) running = *out;
    *out = a.has_result(token) ? running : 0.0f;
  }
}

}  // namespace

void segment_scan(const Tensor& x, const SegmentScan& scan, const Tensor& out) {
  const Arguments a{pointer<const float>(x),
                    pointer_or_null<const uint8_t>(scan.mask),
                    pointer_or_null<const uint8_t>(scan.result_mask),
                    pointer_or_null<const int32_t>(scan.segments),
                    pointer_or_null<const float>(scan.carried),
                    pointer_or_null<float>(scan.last),
                    pointer<float>(out),
                    x.size(1),
                    x.size(2),
                    scan.kind,
                    scan.reach};
  for_each("segment_scan", x.size(0) * x.size(2),
           [a] __device__(int64_t number) { scan_channel(a, number); });
}

}  // namespace linnet::cuda
