#include "attention/common/abc/token_queues.h"

#include <algorithm>
#include <vector>

#include "attention/common/abc/cuda/token_queues.h"
#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet {
namespace {

// The tokens that one queue of a row holds and passes on.
void fill_queue(const TokenQueueInputs& in, int64_t b, int64_t queue, const TokenQueues& out) {
  const int64_t T = in.T, Q = in.queues, r = b * Q + queue, n = out.order.size(1);
  const int64_t P = out.past_mask.size(1), kept = out.carry_order.size(1);
  const uint8_t* valid = in.mask.defined() ? in.mask.data<uint8_t>() + b * T : nullptr;
  const int32_t* ids = in.segments.defined() ? in.segments.data<int32_t>() + b * T : nullptr;
  const int64_t phase = in.phase.defined() ? in.phase.data<int64_t>()[b] : 0;
  int32_t* order = out.order.data<int32_t>() + r * n;
  int32_t* segments = out.segments.data<int32_t>() + r * n;
  int64_t count = 0;
  int32_t segment = 0;
  for (int64_t t = 0; t < T; ++t) {
    if (ids != nullptr && t > 0 && ids[t] != ids[t - 1]) ++segment;
    if ((phase + t) % Q != queue) continue;
    int32_t& place = out.place.data<int32_t>()[b * T + t];
    place = -1;
    if (valid != nullptr && valid[t] == 0) continue;
    place = static_cast<int32_t>(r * n + count);
    segments[count] = segment;
    order[count++] = static_cast<int32_t>(b * T + t);
  }
  out.pushed.data<int64_t>()[r] = count + (in.pushed.defined() ? in.pushed.data<int64_t>()[r] : 0);
  out.examples.data<int64_t>()[r] =
      (in.examples.defined() ? in.examples.data<int64_t>()[b] : b) * Q + queue;
  std::fill(order + count, order + n, -1);
  std::fill(segments + count, segments + n, segment);
  std::fill_n(out.mask.data<uint8_t>() + r * n, count, uint8_t{1});
  std::fill_n(out.mask.data<uint8_t>() + r * n + count, n - count, uint8_t{0});

  const bool continues = n == 0 || segments[0] == 0;
  uint8_t* past = out.past_mask.data<uint8_t>() + r * P;
  for (int64_t i = 0; i < P; ++i) past[i] = continues ? in.past_mask.data<uint8_t>()[r * P + i] : 0;

  int32_t* carried = out.carry_order.data<int32_t>() + r * kept;
  int64_t left = kept;
  const auto carry = [&](int64_t i) { carried[--left] = static_cast<int32_t>(r * (P + n) + i); };
  while (left > 0 && count > 0 && segments[count - 1] == segment) carry(P + --count);
  for (int64_t i = P; segment == 0 && left > 0 && i-- > 0;) {
    if (past[i] != 0) carry(i);
  }
  std::fill_n(carried, left, -1);
  std::fill_n(out.carry_mask.data<uint8_t>() + r * kept, left, uint8_t{0});
  std::fill_n(out.carry_mask.data<uint8_t>() + r * kept + left, kept - left, uint8_t{1});
}

}  // namespace

TokenQueues token_queues(const TokenQueueInputs& in) {
  const int64_t rows = in.B * in.queues, n = (in.T + in.queues - 1) / in.queues;
  const int64_t P = in.past_mask.defined() ? in.past_mask.size(1) : 0;
  const int64_t kept = in.keep;
  require(!in.past_mask.defined() || in.past_mask.shape() == Shape({rows, P}),
          "token_queues: expected past_mask of ", rows, " queues, got ",
          in.past_mask.defined() ? in.past_mask.shape() : Shape());
  require(std::max(in.B * in.T, rows * (P + n)) < (int64_t{1} << 31), "token_queues: ", in.B,
          " rows of ", in.T, " tokens are more than can be numbered");
  const auto indices = [&](const Shape& shape) {
    return Tensor::empty(shape, DType::i32, in.device);
  };
  const auto counts = [&](int64_t size) { return Tensor::empty({size}, DType::i64, in.device); };
  const auto masks = [&](int64_t width) {
    return Tensor::empty({rows, width}, DType::u8, in.device);
  };
  const TokenQueues out{indices({rows, n}), indices({in.B, in.T}), masks(n),    indices({rows, n}),
                        masks(P),           indices({rows, kept}), masks(kept), counts(in.B),
                        counts(rows),       counts(rows)};
  if constexpr (kCuda) {
    if (on_cuda(out.order)) {
      cuda::token_queues(in, out);
      return out;
    }
  }
  for (int64_t b = 0; b < in.B; ++b) {
    for (int64_t queue = 0; queue < in.queues; ++queue) fill_queue(in, b, queue, out);
    const int64_t phase = in.phase.defined() ? in.phase.data<int64_t>()[b] : 0;
    out.phase.data<int64_t>()[b] = (phase + in.T) % in.queues;
  }
  return out;
}

Tensor pushed_after(const Tensor& pushed, int64_t count) {
  const Tensor after = Tensor::empty(pushed.shape(), DType::i64, pushed.device());
  if constexpr (kCuda) {
    if (on_cuda(after)) {
      cuda::pushed_after(pushed, count, after);
      return after;
    }
  }
  for (int64_t i = 0; i < after.elements(); ++i) {
    after.data<int64_t>()[i] = pushed.data<int64_t>()[i] + count;
  }
  return after;
}

Variable take_tokens(const Variable& x, const Tensor& order, const Tensor& place) {
  require(x.shape().rank() >= 2 && order.shape().rank() == 2,
          "take_tokens: expected x [B,T,...] and an order [R,n], got ", x.shape(), " and ",
          order.shape());
  const int64_t all = x.size(0) * x.size(1), count = order.elements();
  std::vector<int64_t> sizes = x.shape().to_vector();
  sizes.erase(sizes.begin());
  sizes[0] = all;
  const Variable tokens = reshape(x, Shape(sizes));
  const Variable taken = place.defined()
                             ? gather(tokens, order.reshape({count}), place.reshape({all}))
                             : gather(tokens, order.reshape({count}));
  sizes[0] = order.size(1);
  sizes.insert(sizes.begin(), order.size(0));
  return reshape(taken, Shape(sizes));
}

}  // namespace linnet
