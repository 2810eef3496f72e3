#include "attention/common/abc/cuda/token_queues.h"

#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

struct QueueArrays {
  int64_t T, queues, n, P, kept;
  const uint8_t *valid, *past_in;
  const int32_t* ids;
  const int64_t *phase_in, *pushed_in, *examples_in;
  int32_t *order, *place, *segments, *carry_order;
  uint8_t *mask, *past, *carry_mask;
  int64_t *phase, *pushed, *examples;
};

// One thread loops over the tokens of its queue's row, as on the CPU.
__device__ void fill_queue(const QueueArrays& a, int64_t r) {
  const int64_t b = r / a.queues, queue = r % a.queues;
  const int64_t phase = a.phase_in != nullptr ? a.phase_in[b] : 0;
  int64_t count = 0;
  int32_t segment = 0;
  for (int64_t t = 0; t < a.T; ++t) {
    const int64_t token = b * a.T + t;
    if (a.ids != nullptr && t > 0 && a.ids[token] != a.ids[token - 1]) ++segment;
    if ((phase + t) % a.queues != queue) continue;
    const bool pushed = a.valid == nullptr || a.valid[token] != 0;
    a.place[token] = pushed ? static_cast<int32_t>(r * a.n + count) : -1;
    if (!pushed) continue;
    a.order[r * a.n + count] = static_cast<int32_t>(token);
    a.segments[r * a.n + count] = segment;
    ++count;
  }
  a.pushed[r] = count + (a.pushed_in != nullptr ? a.pushed_in[r] : 0);
  a.examples[r] = (a.examples_in != nullptr ? a.examples_in[b] : b) * a.queues + queue;
  for (int64_t i = 0; i < a.n; ++i) {
    a.mask[r * a.n + i] = i < count ? 1 : 0;
    if (i < count) continue;
    a.order[r * a.n + i] = -1;
    a.segments[r * a.n + i] = segment;
  }
  const bool continues = a.n == 0 || a.segments[r * a.n] == 0;
  for (int64_t i = 0; i < a.P; ++i) {
    a.past[r * a.P + i] = continues && a.past_in[r * a.P + i] != 0 ? 1 : 0;
  }
  int64_t left = a.kept;
  const auto carry = [&](int64_t i) {
    --left;
    a.carry_order[r * a.kept + left] = static_cast<int32_t>(r * (a.P + a.n) + i);
    a.carry_mask[r * a.kept + left] = 1;
  };
  for (; left > 0 && count > 0 && a.segments[r * a.n + count - 1] == segment; --count) {
    carry(a.P + count - 1);
  }
  for (int64_t i = a.P - 1; segment == 0 && left > 0 && i >= 0; --i) {
    if (a.past[r * a.P + i] != 0) carry(i);
  }
  for (int64_t i = 0; i < left; ++i) {
    a.carry_order[r * a.kept + i] = -1;
    a.carry_mask[r * a.kept + i] = 0;
  }
  if (queue == 0) a.phase[b] = (phase + a.T) % a.queues;
}

}  // namespace

void token_queues(const TokenQueueInputs& in, const TokenQueues& out) {
  const QueueArrays a{in.T,
                      in.queues,
                      out.order.size(1),
                      out.past_mask.size(1),
                      out.carry_order.size(1),
                      pointer_or_null<uint8_t>(in.mask),
                      pointer_or_null<uint8_t>(in.past_mask),
                      pointer_or_null<int32_t>(in.segments),
                      pointer_or_null<int64_t>(in.phase),
                      pointer_or_null<int64_t>(in.pushed),
                      pointer_or_null<int64_t>(in.examples),
                      pointer<int32_t>(out.order),
                      pointer<int32_t>(out.place),
                      pointer<int32_t>(out.segments),
                      pointer<int32_t>(out.carry_order),
                      pointer<uint8_t>(out.mask),
                      pointer<uint8_t>(out.past_mask),
                      pointer<uint8_t>(out.carry_mask),
                      pointer<int64_t>(out.phase),
                      pointer<int64_t>(out.pushed),
                      pointer<int64_t>(out.examples)};
  for_each("token_queues", in.B * in.queues, [=] __device__(int64_t r) { fill_queue(a, r); });
}

void pushed_after(const Tensor& pushed, int64_t count, const Tensor& after) {
  const int64_t* from = pointer<int64_t>(pushed);
  int64_t* to = pointer<int64_t>(after);
  for_each("pushed_after", after.elements(),
           [=] __device__(int64_t i) { to[i] = from[i] + count; });
}

}  // namespace linnet::cuda
