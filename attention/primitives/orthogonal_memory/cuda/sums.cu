// Which tokens are in whose memory, and the sums over them, forward and back: one thread scans
// along a row, for every element of a sum.
#include "attention/primitives/orthogonal_memory/cuda/kernels.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda::orthogonal_memory_detail {
namespace {

__device__ void plan_row(const Problem& p, int64_t b) {
  const bool windows = p.scope == MemoryScope::completed_windows;
  const int64_t* carried = p.counts == nullptr ? nullptr : p.counts + 2 * b;
  int64_t completed = carried == nullptr ? 0 : carried[0];
  int64_t partial = carried == nullptr || !windows ? 0 : carried[1];
  int64_t position = p.time_offset;  // in the window
  if (p.positions != nullptr && p.queries > 0) position = p.positions[b * p.queries];
  if (windows) position %= p.window;
  const auto* segments = p.segments == nullptr ? nullptr : p.segments + b * p.codes;
  for (int64_t t = 0; t < p.codes; ++t) {
    const bool first = t == 0 || (segments != nullptr && segments[t] != segments[t - 1]);
    const bool last = t + 1 == p.codes || (segments != nullptr && segments[t] != segments[t + 1]);
    if (first && t > 0) position = completed = partial = 0;
    const bool over = windows && position + 1 == p.window;
    const int64_t counted = p.code_mask == nullptr || p.code_mask[b * p.codes + t] != 0 ? 1 : 0;
    p.marks[b * p.codes + t] =
        static_cast<uint8_t>((first ? kFirst : 0) | (last ? kLast : 0) | (over ? kWindowEnd : 0));
    if (windows) {
      p.tokens[b * p.queries + t] = completed;
      partial += counted;
      if (over) {
        completed += partial;
        partial = 0;
      }
      position = over ? 0 : position + 1;
    } else {
      completed += counted;
      if (p.sums_per_token) p.tokens[b * p.queries + t] = completed;
    }
  }
  if (p.scope == MemoryScope::whole) {  // the total of the segment, for all of its tokens
    int64_t total = completed;
    for (int64_t t = p.queries - 1; t >= 0; --t) {
      if (p.sums_per_token && (p.marks[b * p.codes + t] & kLast) != 0) {
        total = p.tokens[b * p.queries + t];
      }
      p.tokens[b * p.queries + t] = total;
    }
  }
  if (p.counts_out == nullptr) return;
  p.counts_out[2 * b] = completed;
  p.counts_out[2 * b + 1] = partial;
}

// Number l of all sums of row b.
__device__ void sum_element(const Problem& p, const float* all_codes, float* all_sums, int64_t b,
                            int64_t l) {
  const int64_t stride = p.memories * p.rank, place = b * stride + l;
  const bool windows = p.scope == MemoryScope::completed_windows;
  float completed = p.completed == nullptr ? 0.0f : p.completed[place];
  float partial = p.partial == nullptr || !windows ? 0.0f : p.partial[place];
  float* sums = all_sums + b * (p.sums_per_token ? p.queries : 1) * stride + l;
  for (int64_t t = 0; t < p.codes; ++t) {
    const uint8_t marks = p.marks[b * p.codes + t];
    const float code = all_codes[(b * p.codes + t) * stride + l];
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
      if (p.sums_per_token) sums[t * stride] = completed;
    }
  }
  if (p.scope == MemoryScope::whole) {
    float total = completed;
    for (int64_t t = (p.sums_per_token ? p.queries : 1) - 1; t >= 0; --t) {
      if (p.sums_per_token && (p.marks[b * p.codes + t] & kLast) != 0) total = sums[t * stride];
      sums[t * stride] = total;
    }
  }
  if (p.completed_out != nullptr) p.completed_out[place] = completed;
  if (p.partial_out != nullptr) p.partial_out[place] = partial;
}

// The gradient of element l of the read of token t, over the heads that share the memory.
__device__ float read_gradient(const Problem& p, const float* dreads, int64_t b, int64_t t,
                               int64_t l) {
  const float* reads = dreads + (b * p.queries + t) * p.heads * p.rank + l;
  if (p.memories > 1 || p.heads == 1) return *reads;
  float sum = 0;
  for (int64_t h = 0; h < p.heads; ++h) sum += reads[h * p.rank];
  return sum;
}

__device__ void sum_element_gradient(const Problem& p, const float* dreads, float* all_dcodes,
                                     int64_t b, int64_t l) {
  const int64_t stride = p.memories * p.rank, place = b * stride + l;
  const bool windows = p.scope == MemoryScope::completed_windows;
  const bool prefix = p.scope == MemoryScope::prefix;
  float* dcodes = all_dcodes + b * p.codes * stride + l;
  // The gradient of completed windows, of the open one, and of the codes of the window at hand.
  float completed = p.dcompleted_out == nullptr ? 0.0f : p.dcompleted_out[place];
  float open = p.dpartial_out == nullptr || !windows ? 0.0f : p.dpartial_out[place];
  float window = open;
  for (int64_t t = p.queries - 1; t >= 0; --t) {
    const float read = read_gradient(p, dreads, b, t, l);
    if (!p.sums_per_token) {
      completed += read;
      continue;
    }
    const uint8_t marks = p.marks[b * p.codes + t];
    const bool last = (marks & kLast) != 0;
    if (last && t + 1 < p.queries) completed = open = 0;
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
    for (int64_t t = 0; t < p.codes; ++t) {
      if (p.sums_per_token && (p.marks[b * p.codes + t] & kFirst) != 0) total = dcodes[t * stride];
      dcodes[t * stride] = total;
    }
  }
  if (p.dcompleted != nullptr) p.dcompleted[place] = completed;
  if (p.dpartial != nullptr) p.dpartial[place] = windows ? window : 0.0f;
}

}  // namespace

void make_plan(const Problem& p) {
  for_each("orthogonal_memory_plan", p.rows, [p] __device__(int64_t b) { plan_row(p, b); });
}

Tensor sum_codes(const Problem& p, const Tensor& codes) {
  const Tensor sums = Tensor::empty({p.rows, p.sums_per_token ? p.queries : 1, p.memories, p.rank},
                                    DType::f32, codes.device());
  const int64_t stride = p.memories * p.rank;
  const float* from = pointer<float>(codes);
  float* to = pointer<float>(sums);
  for_each("orthogonal_memory_sums", p.rows * stride,
           [=] __device__(int64_t i) { sum_element(p, from, to, i / stride, i % stride); });
  return sums;
}

Tensor sum_gradients(const Problem& p, const Tensor& dreads) {
  const Tensor dcodes =
      Tensor::empty({p.rows, p.codes, p.memories, p.rank}, DType::f32, dreads.device());
  const int64_t stride = p.memories * p.rank;
  const float* from = pointer<float>(dreads);
  float* to = pointer<float>(dcodes);
  for_each("orthogonal_memory_sum_gradients", p.rows * stride, [=] __device__(int64_t i) {
    sum_element_gradient(p, from, to, i / stride, i % stride);
  });
  return dcodes;
}

}  // namespace linnet::cuda::orthogonal_memory_detail
