// Softmax, logsumexp, maxima and running sums along one dimension.
#include "autograd/cuda/reductions.h"

#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kThreads = 256;

// Lanes that share a line: a warp where the line is contiguous; else one, so that threads beside
// each other read neighbours.
template <int kLanes>
struct Lane {
  int64_t line = global_thread() / kLanes;
  int64_t lane = global_thread() % kLanes;

  __device__ float sum(float value) const { return kLanes == 1 ? value : warp_sum(value); }
  __device__ float max(float value) const { return kLanes == 1 ? value : warp_max(value); }
};

// exp(x - shift) adds up to `sum`. NaN reaches the sum; where all is -infinity, the sum is 0.
template <int kLanes>
__device__ __forceinline__ float2 exp_sum(const Lane<kLanes>& at, const StoredValues& x,
                                          const Lines& lines) {
  float largest = -INFINITY, sum = 0;
  for (int64_t j = at.lane; j < lines.n; j += kLanes) {
    largest = fmaxf(largest, x.at(lines.at(at.line, j)));
  }
  largest = at.max(largest);
  const float shift = largest == -INFINITY ? 0.0f : largest;
  for (int64_t j = at.lane; j < lines.n; j += kLanes) {
    sum += expf(x.at(lines.at(at.line, j)) - shift);
  }
  return make_float2(shift, at.sum(sum));
}

template <int kLanes>
__global__ void softmax_lines(StoredValues x, Lines lines, StoredResults y) {
  const Lane<kLanes> at;
  if (at.line >= lines.count()) return;
  const float2 e = exp_sum(at, x, lines);
  const float factor = e.y == 0.0f ? 0.0f : 1.0f / e.y;
  for (int64_t j = at.lane; j < lines.n; j += kLanes) {
    const int64_t i = lines.at(at.line, j);
    y.put(i, expf(x.at(i) - e.x) * factor);
  }
}

template <int kLanes>
__global__ void softmax_backward_lines(StoredValues y, StoredValues dy, Lines lines,
                                       StoredResults dx) {
  const Lane<kLanes> at;
  if (at.line >= lines.count()) return;
  float inner = 0;
  for (int64_t j = at.lane; j < lines.n; j += kLanes) {
    const int64_t i = lines.at(at.line, j);
    inner += y.at(i) * dy.at(i);
  }
  inner = at.sum(inner);
  for (int64_t j = at.lane; j < lines.n; j += kLanes) {
    const int64_t i = lines.at(at.line, j);
    dx.put(i, y.at(i) * (dy.at(i) - inner));
  }
}

template <int kLanes>
__global__ void logsumexp_lines(StoredValues x, Lines lines, StoredResults y) {
  const Lane<kLanes> at;
  if (at.line >= lines.count()) return;
  const float2 e = exp_sum(at, x, lines);
  if (at.lane == 0) y.put(at.line, e.x + logf(e.y));
}

// Calls body with the number of lanes and the blocks that cover all lines.
template <typename Body>
void with_lanes(const Lines& lines, const Body& body) {
  if (lines.inner == 1) {
    body(std::integral_constant<int, 32>{}, blocks_for(lines.count(), kThreads / 32));
  } else {
    body(std::integral_constant<int, 1>{}, blocks_for(lines.count(), kThreads));
  }
}

}  // namespace

void softmax(const Tensor& x, const Lines& lines, const Tensor& y) {
  with_lanes(lines, [&](auto lanes, unsigned blocks) {
    launch({"softmax_lines", blocks, kThreads}, softmax_lines<decltype(lanes)::value>,
           stored_values(x), lines, stored_results(y));
  });
}

void softmax_backward(const Tensor& y, const Tensor& dy, const Lines& lines, const Tensor& dx) {
  with_lanes(lines, [&](auto lanes, unsigned blocks) {
    launch({"softmax_backward_lines", blocks, kThreads},
           softmax_backward_lines<decltype(lanes)::value>, stored_values(y), stored_values(dy),
           lines, stored_results(dx));
  });
}

void logsumexp(const Tensor& x, const Lines& lines, const Tensor& y) {
  with_lanes(lines, [&](auto lanes, unsigned blocks) {
    launch({"logsumexp_lines", blocks, kThreads}, logsumexp_lines<decltype(lanes)::value>,
           stored_values(x), lines, stored_results(y));
  });
}

void logsumexp_backward(const Tensor& x, const Tensor& y, const Tensor& dy, const Lines& lines,
                        const Tensor& dx) {
  const StoredValues from = stored_values(x), whole = stored_values(y), d = stored_values(dy);
  const StoredResults to = stored_results(dx);
  for_each("logsumexp_backward", x.elements(), [=] __device__(int64_t i) {
    const int64_t line = i / (lines.n * lines.inner) * lines.inner + i % lines.inner;
    const float all = whole.at(line);
    to.put(i, all == -INFINITY ? 0.0f : d.at(line) * expf(from.at(i) - all));
  });
}

void largest(const Tensor& x, const Lines& lines, const Tensor& y, const Tensor& places) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  int32_t* place = pointer<int32_t>(places);
  for_each("largest", lines.count(), [=] __device__(int64_t line) {
    float best = from.at(lines.at(line, 0));
    int32_t found = 0;
    for (int64_t j = 1; j < lines.n; ++j) {
      const float value = from.at(lines.at(line, j));
      if (value > best || (value != value && best == best)) {
        best = value;
        found = static_cast<int32_t>(j);
      }
    }
    to.put(line, best);
    place[line] = found;
  });
}

void put_at_places(const Tensor& dy, const Tensor& places, const Lines& lines, const Tensor& dx) {
  const StoredValues d = stored_values(dy);
  const StoredResults to = stored_results(dx);
  const int32_t* place = pointer<int32_t>(places);
  for_each("put_at_places", lines.count(),
           [=] __device__(int64_t line) { to.put(lines.at(line, place[line]), d.at(line)); });
}

void running_sums(const Tensor& x, const Lines& lines, bool reverse, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  for_each("running_sums", lines.count(), [=] __device__(int64_t line) {
    float sum = 0;
    for (int64_t step = 0; step < lines.n; ++step) {
      const int64_t i = lines.at(line, reverse ? lines.n - 1 - step : step);
      sum += from.at(i);
      to.put(i, sum);
    }
  });
}

}  // namespace linnet::cuda
