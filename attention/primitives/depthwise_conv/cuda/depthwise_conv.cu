// Depthwise convolutions, forward and backward: the plain kernels, and the way to the fast ones.
#include "attention/primitives/depthwise_conv/cuda/depthwise_conv.h"

#include "attention/primitives/block_attention/cuda/problem.h"
#include "attention/primitives/depthwise_conv/cuda/fast.h"
#include "attention/tensor_core/aligned_views.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

using block_attention_detail::BlockProblem;
using block_attention_detail::KeyRange;
using block_attention_detail::problem_of;
using block_attention_detail::Segment;
using depthwise_conv_fast::Line;
using depthwise_conv_fast::Pass;
using linnet::block_attention_detail::visible_keys;
using linnet::block_attention_detail::visible_queries;

void convolve(const BlockProblem& p, const ConvTaps<const float>& taps, const Tensor& y) {
  const StoredResults out = stored_results(y);
  for_each("depthwise_conv", y.elements(), [=] __device__(int64_t i) {
    const int64_t c = i % p.V, h = i / p.V % p.H, t = i / p.V / p.H % p.Tq;
    const int64_t b = i / p.V / p.H / p.Tq;
    const Segment segment = p.segment(b, t);
    const int64_t r = t - segment.query_begin;
    const KeyRange keys = visible_keys(segment, p.options, r);
    float total = 0;
    for (int64_t u = keys.begin; p.query_valid(b, t) && u < keys.end; ++u) {
      if (!p.key_valid(segment, u)) continue;
      total += taps.at(h, c)[u - segment.past - r + taps.before] * p.value(segment, u, h).at(c);
    }
    out.put(i, total);
  });
}

// dx, or, with past, the gradient of the carried tokens.
void convolve_back(const BlockProblem& p, const ConvTaps<const float>& taps, const Tensor& dy,
                   bool past, const Tensor& dx) {
  const StoredValues d = stored_values(dy);
  const StoredResults out = stored_results(dx);
  const int64_t tokens = past ? p.P : p.Tk;
  for_each("depthwise_conv", dx.elements(), [=] __device__(int64_t i) {
    const int64_t c = i % p.V, h = i / p.V % p.H, t = i / p.V / p.H % tokens;
    const int64_t b = i / p.V / p.H / tokens;
    const Segment segment = p.segment(b, past ? 0 : t);
    const int64_t u = past ? t : segment.past + t - segment.key_begin;
    const KeyRange queries = visible_queries(segment, p.options, u);
    float total = 0;
    for (int64_t r = queries.begin; p.key_valid(segment, u) && r < queries.end; ++r) {
      const int64_t query = segment.query_begin + r;
      if (!p.query_valid(b, query)) continue;
      total +=
          taps.at(h, c)[u - segment.past - r + taps.before] * d.at(p.query(b, query, h) * p.V + c);
    }
    out.put(i, total);
  });
}

// partial [chunks, taps]: a warp for each tap and `chunk` tokens of the batch; lanes are tokens.
__global__ void conv_tap_gradients(const __grid_constant__ BlockProblem p,
                                   ConvTaps<const float> taps, StoredValues dy, int64_t chunk,
                                   int64_t chunks, float* partial) {
  const int64_t count = p.H * taps.channels * taps.count;
  const int64_t item = global_warp();
  if (item >= chunks * count) return;
  const int64_t tap = item % count, n = tap % taps.count;
  const int64_t channel = tap / taps.count % taps.channels, h = tap / taps.count / taps.channels;
  const int64_t first = item / count * chunk, end = min(first + chunk, p.B * p.Tq);
  const int64_t begin_channel = taps.channels == 1 ? 0 : channel;
  const int64_t end_channel = taps.channels == 1 ? p.V : channel + 1;
  float total = 0;
  for (int64_t token = first + warp_lane(); token < end; token += kLanes) {
    const int64_t b = token / p.Tq, t = token % p.Tq;
    if (!p.query_valid(b, t)) continue;
    const Segment segment = p.segment(b, t);
    const int64_t r = t - segment.query_begin, u = segment.past + r + n - taps.before;
    const KeyRange keys = visible_keys(segment, p.options, r);
    if (u < keys.begin || u >= keys.end || !p.key_valid(segment, u)) continue;
    const StoredValues d = dy.from(p.query(b, t, h) * p.V);
    const StoredValues x = p.value(segment, u, h);
    for (int64_t c = begin_channel; c < end_channel; ++c) total += d.at(c) * x.at(c);
  }
  total = warp_sum(total);
  if (warp_lane() == 0) partial[item] = total;
}

void tap_gradients(const BlockProblem& p, const ConvTaps<const float>& taps, const Tensor& dy,
                   const Tensor& dtaps) {
  // At most 64 chunks: enough to fill a GPU, memory that does not depend on the number of tokens.
  const int64_t tokens = p.B * p.Tq, count = dtaps.elements();
  const int64_t chunk = std::max<int64_t>(64, (tokens + 63) / 64);
  const int64_t chunks = (tokens + chunk - 1) / chunk;
  const Tensor sums = Tensor::empty({chunks, count}, DType::f32, dtaps.device());
  float* partial = pointer<float>(sums);
  launch(warps("conv_tap_gradients", chunks * count, 0), conv_tap_gradients, p, taps,
         stored_values(dy), chunk, chunks, partial);
  float* to = pointer<float>(dtaps);
  for_each("depthwise_conv", count, [=] __device__(int64_t i) {
    float total = 0;
    for (int64_t n = 0; n < chunks; ++n) total += partial[n * count + i];
    to[i] = total;
  });
}

// x of a call, or its gradient.
template <typename E>
Line<E> line_of(const BlockProblem& p, const Tensor& now, const Tensor& past) {
  return {view_of<E>(now), view_of<E>(past), p.key_mask, p.past_mask};
}
// The same of y: its masked tokens are those of queries, and nothing precedes them.
template <typename E>
Line<E> output_line_of(const BlockProblem& p, const Tensor& y) {
  return {view_of<E>(y), {}, p.query_mask, nullptr};
}

Pass pass_of(const BlockProblem& p, const ConvTaps<const float>& taps) {
  Pass pass;
  pass.positions = p.positions;
  pass.span_begins = p.span_begins;
  pass.span_ends = p.span_ends;
  pass.time = p.Tk;
  pass.past = p.P;
  pass.time_offset = p.time_offset;
  pass.taps = taps;
  return pass;
}

}  // namespace

void depthwise_conv_forward(const DepthwiseConvTensors& call, const BlockAttentionContext& context,
                            const Tensor& y) {
  const BlockProblem p = problem_of(call.in, context);
  const auto taps = call.filters<const float>();
  if (call.in.path == CallPath::plain) return convolve(p, taps, y);
  Pass pass = pass_of(p, taps);
  pass.source = line_of<const kernel_bf16>(p, call.in.v, call.in.past_v);
  pass.out = output_line_of<kernel_bf16>(p, y);
  depthwise_conv_fast::run(pass, {});
}

void depthwise_conv_backward(const DepthwiseConvTensors& call, const BlockAttentionContext& context,
                             const Tensor& dy, const DepthwiseConvTensors& gradients) {
  const BlockProblem p = problem_of(call.in, context);
  const auto taps = call.filters<const float>();
  const Tensor &dx = gradients.in.v, &dpast = gradients.in.past_v;
  if (call.in.path == CallPath::plain) {
    convolve_back(p, taps, dy, false, dx);
    if (dpast.defined()) convolve_back(p, taps, dy, true, dpast);
    return tap_gradients(p, taps, dy, gradients.taps);
  }
  const Tensor readable = aligned(dy);
  if (dpast.defined() && p.P > call.before) dpast.fill(0);  // tokens that no tap reaches
  Pass pass = pass_of(p, taps);
  pass.source = output_line_of<const kernel_bf16>(p, readable);
  pass.other = line_of<const kernel_bf16>(p, call.in.v, call.in.past_v);
  pass.out = line_of<kernel_bf16>(p, dx, dpast);
  depthwise_conv_fast::run(pass, gradients.taps);
}

}  // namespace linnet::cuda
