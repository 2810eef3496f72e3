// Which tokens are in whose memory, and the sums over them, forward and back: one thread scans
// along a row, for every element of a sum.
#include "attention/primitives/orthogonal_memory/cuda/kernels.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::orthogonal_memory_detail {
namespace {

struct PlanPointers {
  const int32_t* segments;
  const int32_t* positions;
  const uint8_t* code_mask;
  const int64_t* counts;
  int64_t time_offset;
  uint8_t* marks;
  int64_t* tokens;
  int64_t* counts_out;
};

__device__ void plan_row(const Sizes& s, const PlanPointers& p, int64_t b) {
  const bool windows = s.scope == MemoryScope::completed_windows;
  const int64_t* carried = p.counts == nullptr ? nullptr : p.counts + 2 * b;
  int64_t completed = carried == nullptr ? 0 : carried[0];
  int64_t partial = carried == nullptr || !windows ? 0 : carried[1];
  int64_t position = p.time_offset;  // in the window
  if (p.positions != nullptr && s.queries > 0) position = p.positions[b * s.queries];
  if (windows) position %= s.window;
  const auto* segments = p.segments == nullptr ? nullptr : p.segments + b * s.codes;
  for (int64_t t = 0; t < s.codes; ++t) {
    const bool first = t == 0 || (segments != nullptr && segments[t] != segments[t - 1]);
    const bool last = t + 1 == s.codes || (segments != nullptr && segments[t] != segments[t + 1]);
    if (first && t > 0) position = completed = partial = 0;
    const bool over = windows && position + 1 == s.window;
    const int64_t counted = p.code_mask == nullptr || p.code_mask[b * s.codes + t] != 0 ? 1 : 0;
    p.marks[b * s.codes + t] =
        static_cast<uint8_t>((first ? kFirst : 0) | (last ? kLast : 0) | (over ? kWindowEnd : 0));
    if (windows) {
      p.tokens[b * s.queries + t] = completed;
      partial += counted;
      if (over) {
        completed += partial;
        partial = 0;
      }
      position = over ? 0 : position + 1;
    } else {
      completed += counted;
      if (s.sums_per_token) p.tokens[b * s.queries + t] = completed;
    }
  }
  if (s.scope == MemoryScope::whole) {  // the total of the segment, for all of its tokens
    int64_t total = completed;
    for (int64_t t = s.queries - 1; t >= 0; --t) {
      if (s.sums_per_token && (p.marks[b * s.codes + t] & kLast) != 0) {
        total = p.tokens[b * s.queries + t];
      }
      p.tokens[b * s.queries + t] = total;
    }
  }
  if (p.counts_out == nullptr) return;
  p.counts_out[2 * b] = completed;
  p.counts_out[2 * b + 1] = partial;
}

struct SumPointers {
  const uint8_t* marks;
  const float* codes;
  const float* completed;
  const float* partial;
  float* sums;
  float* completed_out;
  float* partial_out;
};

// Number l of all sums of row b.
__device__ void sum_element(const Sizes& s, const SumPointers& p, int64_t b, int64_t l) {
  const int64_t stride = s.memories * s.rank, place = b * stride + l;
  const bool windows = s.scope == MemoryScope::completed_windows;
  float completed = p.completed == nullptr ? 0.0f : p.completed[place];
  float partial = p.partial == nullptr || !windows ? 0.0f : p.partial[place];
  float* sums = p.sums + b * (s.sums_per_token ? s.queries : 1) * stride + l;
  for (int64_t t = 0; t < s.codes; ++t) {
    const uint8_t marks = p.marks[b * s.codes + t];
    const float code = p.codes[(b * s.codes + t) * stride + l];
    if ((marks & kFirst) != 0 && t > 0) completed = partial = 0;
    if (windows) {
      sums[t * stride] = completed;
      partial += code;
      if ((marks & kWindowEnd) != 0) {
        completed += partial;
        partial = 0;
      }
    } else {
      completed += code;
      if (s.sums_per_token) sums[t * stride] = completed;
    }
  }
  if (s.scope == MemoryScope::whole) {
    float total = completed;
    for (int64_t t = (s.sums_per_token ? s.queries : 1) - 1; t >= 0; --t) {
      if (s.sums_per_token && (p.marks[b * s.codes + t] & kLast) != 0) total = sums[t * stride];
      sums[t * stride] = total;
    }
  }
  if (p.completed_out != nullptr) p.completed_out[place] = completed;
  if (p.partial_out != nullptr) p.partial_out[place] = partial;
}

struct SumGradientPointers {
  const uint8_t* marks;
  const float* dreads;
  const float* dcompleted_out;
  const float* dpartial_out;
  float* dcodes;
  float* dcompleted;
  float* dpartial;
};

// The gradient of element l of the read of token t, over the heads that share the memory.
__device__ float read_gradient(const Sizes& s, const SumGradientPointers& p, int64_t b, int64_t t,
                               int64_t l) {
  const float* reads = p.dreads + (b * s.queries + t) * s.heads * s.rank + l;
  if (s.memories > 1 || s.heads == 1) return *reads;
  float sum = 0;
  for (int64_t h = 0; h < s.heads; ++h) sum += reads[h * s.rank];
  return sum;
}

__device__ void sum_element_gradient(const Sizes& s, const SumGradientPointers& p, int64_t b,
                                     int64_t l) {
  const int64_t stride = s.memories * s.rank, place = b * stride + l;
  const bool windows = s.scope == MemoryScope::completed_windows;
  const bool prefix = s.scope == MemoryScope::prefix;
  float* dcodes = p.dcodes + b * s.codes * stride + l;
  // The gradient of completed windows, of the open one, and of the codes of the window at hand.
  float completed = p.dcompleted_out == nullptr ? 0.0f : p.dcompleted_out[place];
  float open = p.dpartial_out == nullptr || !windows ? 0.0f : p.dpartial_out[place];
  float window = open;
  for (int64_t t = s.queries - 1; t >= 0; --t) {
    const float read = read_gradient(s, p, b, t, l);
    if (!s.sums_per_token) {
      completed += read;
      continue;
    }
    const uint8_t marks = p.marks[b * s.codes + t];
    const bool last = (marks & kLast) != 0;
    if (last && t + 1 < s.queries) completed = open = 0;
    if (windows) {
      if ((marks & kWindowEnd) != 0) {
        window = completed;
      } else if (last) {
        window = open;
      }
      dcodes[t * stride] = window;
    }
    completed += read;
    if (!windows) dcodes[t * stride] = completed;
  }
  if (!windows && !prefix) {  // all codes of a segment have the gradient of its total
    float total = completed;
    for (int64_t t = 0; t < s.codes; ++t) {
      if (s.sums_per_token && (p.marks[b * s.codes + t] & kFirst) != 0) total = dcodes[t * stride];
      dcodes[t * stride] = total;
    }
  }
  if (p.dcompleted != nullptr) p.dcompleted[place] = completed;
  if (p.dpartial != nullptr) p.dpartial[place] = windows ? window : 0.0f;
}

}  // namespace

void make_plan(const Sizes& sizes, const PlanInputs& in, const Plan& plan,
               const Tensor& counts_out) {
  const PlanPointers p{pointer_or_null<const int32_t>(in.segments),
                       pointer_or_null<const int32_t>(in.positions),
                       pointer_or_null<const uint8_t>(in.code_mask),
                       pointer_or_null<const int64_t>(in.counts),
                       in.time_offset,
                       pointer<uint8_t>(plan.marks),
                       pointer<int64_t>(plan.tokens),
                       pointer_or_null<int64_t>(counts_out)};
  for_each("orthogonal_memory_plan", sizes.rows,
           [sizes, p] __device__(int64_t b) { plan_row(sizes, p, b); });
}

void sum_codes(const Sizes& sizes, const Plan& plan, const Tensor& codes, const CarriedSums& in,
               const Tensor& sums, const CarriedSums& out) {
  const SumPointers p{pointer<const uint8_t>(plan.marks),
                      pointer<const float>(codes),
                      pointer_or_null<const float>(in.completed),
                      pointer_or_null<const float>(in.partial),
                      pointer<float>(sums),
                      pointer_or_null<float>(out.completed),
                      pointer_or_null<float>(out.partial)};
  const int64_t stride = sizes.memories * sizes.rank;
  for_each("orthogonal_memory_sums", sizes.rows * stride,
           [=] __device__(int64_t i) { sum_element(sizes, p, i / stride, i % stride); });
}

void sum_gradients(const Sizes& sizes, const Plan& plan, const Tensor& dreads,
                   const CarriedSums& dout, const Tensor& dcodes, const CarriedSums& din) {
  const SumGradientPointers p{pointer<const uint8_t>(plan.marks),
                              pointer<const float>(dreads),
                              pointer_or_null<const float>(dout.completed),
                              pointer_or_null<const float>(dout.partial),
                              pointer<float>(dcodes),
                              pointer_or_null<float>(din.completed),
                              pointer_or_null<float>(din.partial)};
  const int64_t stride = sizes.memories * sizes.rank;
  for_each("orthogonal_memory_sum_gradients", sizes.rows * stride,
           [=] __device__(int64_t i) { sum_element_gradient(sizes, p, i / stride, i % stride); });
}

}  // namespace linnet::cuda::orthogonal_memory_detail
