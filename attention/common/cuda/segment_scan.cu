// Time is cut into parts that blocks take side by side: the first kernel reduces every part, the
// second one goes through it from what the parts around it hold. Sums have one order, that of the
// tokens of a part and then of the parts.
#include "attention/common/cuda/segment_scan.h"

#include <algorithm>

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

// A part holds at least so many tokens, and there are at most so many parts: a thread reads
// all that come before its own.
constexpr int64_t kLeastTokens = 32, kMaxParts = 128;

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
  int64_t length, parts;  // tokens of a part (the last one may have fewer)
  // [B, parts, C]: of a part's tokens before its first boundary (of all where it has none), and of
  // those from its last boundary on.
  float *heads, *tails;
  uint8_t* cut;  // [B, parts]: whether a segment begins after a part's first token

  __device__ float empty() const { return kind == ScanKind::sum ? 0.0f : -INFINITY; }
  __device__ float combined(float a, float b) const {
    return kind == ScanKind::sum ? a + b : fmaxf(a, b);
  }
  __device__ bool has_result(int64_t token) const {
    return result_mask == nullptr || result_mask[token] != 0;
  }
  // The i-th token in the direction of the scan.
  __device__ int64_t token_at(int64_t row, int64_t i) const {
    return row * time + (reach == ScanReach::suffix ? time - 1 - i : i);
  }
  // Whether a segment begins at the i-th token.
  __device__ bool begins(int64_t row, int64_t i) const {
    return i > 0 && i < time && segments != nullptr &&
           segments[token_at(row, i)] != segments[token_at(row, i - 1)];
  }
  __device__ float with(float running, int64_t row, int64_t i, int64_t channel) const {
    const int64_t token = token_at(row, i);
    if (mask != nullptr && mask[token] == 0) return running;
    return combined(running, x[token * channels + channel]);
  }
  __device__ int64_t end_of(int64_t part) const { return min(time, (part + 1) * length); }
};

// One channel of one part of a row.
struct Place {
  int64_t row, part, channel;
  __device__ Place(const Arguments& a, int64_t number)
      : row(number / a.channels / a.parts),
        part(number / a.channels % a.parts),
        channel(number % a.channels) {}
};

__device__ void reduce_part(const Arguments& a, int64_t number) {
  const Place at(a, number);
  float running = a.empty();
  bool cut = false;
  for (int64_t i = at.part * a.length; i < a.end_of(at.part); ++i) {
    if (i > at.part * a.length && a.begins(at.row, i)) {
      if (!cut) a.heads[number] = running;
      cut = true;
      running = a.empty();
    }
    running = a.with(running, at.row, i, at.channel);
  }
  if (!cut) a.heads[number] = running;
  a.tails[number] = running;
  if (at.channel == 0) a.cut[at.row * a.parts + at.part] = cut ? 1 : 0;
}

// Of what comes before a part in the segment of its first token.
__device__ float before_part(const Arguments& a, const Place& at) {
  int64_t from = at.part;  // the first part that reaches here
  bool whole = true;       // no segment began up to there
  while (from > 0 && whole) {
    if (a.begins(at.row, from * a.length)) break;
    --from;
    whole = a.cut[at.row * a.parts + from] == 0;
  }
  float running = a.empty();
  if (from == 0 && whole && a.carried != nullptr) {
    running = a.carried[at.row * a.channels + at.channel];
  }
  for (int64_t part = from; part < at.part; ++part) {
    running = a.combined(running, a.tails[(at.row * a.parts + part) * a.channels + at.channel]);
  }
  return running;
}

// `running` with what comes after a part in the segment of its last token.
__device__ float through_later_parts(const Arguments& a, const Place& at, float running) {
  for (int64_t part = at.part + 1; part < a.parts; ++part) {
    if (a.begins(at.row, part * a.length)) break;
    running = a.combined(running, a.heads[(at.row * a.parts + part) * a.channels + at.channel]);
    if (a.cut[at.row * a.parts + part] != 0) break;
  }
  return running;
}

__device__ void scan_part(const Arguments& a, int64_t number) {
  const Place at(a, number);
  const int64_t begin = at.part * a.length, end = a.end_of(at.part);
  const float before = before_part(a, at);
  float running = before;
  int64_t first_cut = end;
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin && a.begins(at.row, i)) {
      running = a.empty();
      first_cut = min(first_cut, i);
    }
    running = a.with(running, at.row, i, at.channel);
    const int64_t token = a.token_at(at.row, i);
    const bool kept = a.reach == ScanReach::whole || a.has_result(token);
    a.out[token * a.channels + at.channel] = kept ? running : 0.0f;
  }
  if (a.last != nullptr && at.part + 1 == a.parts) {
    a.last[at.row * a.channels + at.channel] = running;
  }
  if (a.reach != ScanReach::whole) return;
  // Backward from the end of every segment. Its total is made of the same sums in every part.
  const float head = a.combined(before, a.heads[number]);
  running = through_later_parts(a, at, first_cut < end ? a.tails[number] : head);
  for (int64_t i = end - 1; i >= begin; --i) {
    const int64_t token = a.token_at(at.row, i);
    float* out = a.out + token * a.channels + at.channel;
    if (i + 1 < end && a.begins(at.row, i + 1)) running = i + 1 == first_cut ? head : *out;
    *out = a.has_result(token) ? running : 0.0f;
  }
}

}  // namespace

void segment_scan(const Tensor& x, const SegmentScan& scan, const Tensor& out) {
  const int64_t rows = x.size(0), time = x.size(1), channels = x.size(2);
  const int64_t wanted = std::clamp<int64_t>(time / kLeastTokens, 1, kMaxParts);
  const int64_t length = std::max<int64_t>(1, (time + wanted - 1) / wanted);
  const int64_t parts = std::max<int64_t>(1, (time + length - 1) / length);
  const Tensor heads = Tensor::empty({rows, parts, channels}, DType::f32, x.device());
  const Tensor tails = Tensor::empty({rows, parts, channels}, DType::f32, x.device());
  const Tensor cut = Tensor::empty({rows, parts}, DType::u8, x.device());
  const Arguments a{pointer<const float>(x),
                    pointer_or_null<const uint8_t>(scan.mask),
                    pointer_or_null<const uint8_t>(scan.result_mask),
                    pointer_or_null<const int32_t>(scan.segments),
                    pointer_or_null<const float>(scan.carried),
                    pointer_or_null<float>(scan.last),
                    pointer<float>(out),
                    time,
                    channels,
                    scan.kind,
                    scan.reach,
                    length,
                    parts,
                    pointer<float>(heads),
                    pointer<float>(tails),
                    pointer<uint8_t>(cut)};
  for_each("parts of a segment_scan", heads.elements(),
           [a] __device__(int64_t number) { reduce_part(a, number); });
  for_each("segment_scan", heads.elements(),
           [a] __device__(int64_t number) { scan_part(a, number); });
}

}  // namespace linnet::cuda
