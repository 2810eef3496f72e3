// Depthwise convolutions, forward and backward: the plain kernels, and the way to the fast ones.
#include "attention/primitives/depthwise_conv/cuda/depthwise_conv.h"

#include "attention/primitives/block_attention/cuda/problem.h"
#include "attention/primitives/depthwise_conv/cuda/fast.h"
#include "attention/primitives/depthwise_conv/cuda/path.h"
#include "attention/tensor_core/aligned_views.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

using block_attention_detail::BlockProblem;
using block_attention_detail::KeyRange;
using block_attention_detail::problem_of;
using block_attention_detail::Segment;
using linnet::block_attention_detail::visible_keys;
using linnet::block_attention_detail::visible_queries;

// One call's tensors; x is the v of the problem.
struct Call {
  BlockAttentionTensors in;
  BlockAttentionSetting setting;
  Tensor taps;
  int64_t before;

  ConvTaps<const float> filters() const {
    return {pointer<float>(taps), taps.shape().rank() == 3 ? taps.size(1) : 1, taps.size(-1),
            before};
  }
};

void convolve(const Call& call, const Tensor& y) {
  const BlockProblem p = problem_of(call.in, call.setting);
  const ConvTaps<const float> taps = call.filters();
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
void convolve_back(const Call& call, const Tensor& dy, bool past, const Tensor& dx) {
  const BlockProblem p = problem_of(call.in, call.setting);
  const ConvTaps<const float> taps = call.filters();
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
__global__ void conv_tap_gradients(BlockProblem p, ConvTaps<const float> taps, StoredValues dy,
                                   int64_t chunk, int64_t chunks, float* partial) {
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

void tap_gradients(const Call& call, const Tensor& dy, const Tensor& dtaps) {
  const BlockProblem p = problem_of(call.in, call.setting);
  // At most 64 chunks: enough to fill a GPU, memory that does not depend on the number of tokens.
  const int64_t tokens = p.B * p.Tq, count = dtaps.elements();
  const int64_t chunk = std::max<int64_t>(64, (tokens + 63) / 64);
  const int64_t chunks = (tokens + chunk - 1) / chunk;
  const Tensor sums = Tensor::empty({chunks, count}, DType::f32, dtaps.device());
  float* partial = pointer<float>(sums);
  launch(warps("conv_tap_gradients", chunks * count, 0), conv_tap_gradients, p, call.filters(),
         stored_values(dy), chunk, chunks, partial);
  float* to = pointer<float>(dtaps);
  for_each("depthwise_conv", count, [=] __device__(int64_t i) {
    float total = 0;
    for (int64_t n = 0; n < chunks; ++n) total += partial[n * count + i];
    to[i] = total;
  });
}

void plain_backward(const Call& call, const Tensor& dy, const Tensor& dx, const Tensor& dpast,
                    const Tensor& dtaps) {
  convolve_back(call, dy, false, dx);
  if (dpast.defined()) convolve_back(call, dy, true, dpast);
  tap_gradients(call, dy, dtaps);
}

// x of a call, or its gradient.
template <typename E>
depthwise_conv_fast::Line<E> line_of(const Call& call, const Tensor& now, const Tensor& past) {
  const BlockAttentionContext& context = call.setting.context;
  return {view_of<E>(now), view_of<E>(past), pointer_or_null<const uint8_t>(context.key_mask),
          pointer_or_null<const uint8_t>(context.past_mask)};
}
// The same of y: its masked tokens are those of queries, and nothing precedes them.
template <typename E>
depthwise_conv_fast::Line<E> output_line_of(const Call& call, const Tensor& y) {
  return {view_of<E>(y), {}, pointer_or_null<const uint8_t>(call.setting.context.query_mask), {}};
}

depthwise_conv_fast::Pass pass_of(const Call& call) {
  const BlockProblem p = problem_of(call.in, call.setting);
  depthwise_conv_fast::Pass pass;
  pass.positions = p.positions;
  pass.span_begins = p.span_begins;
  pass.span_ends = p.span_ends;
  pass.time = p.Tk;
  pass.past = p.P;
  pass.time_offset = p.time_offset;
  pass.taps = call.filters();
  return pass;
}

void fast_forward(const Call& call, const Tensor& y) {
  depthwise_conv_fast::Pass pass = pass_of(call);
  pass.source = line_of<const kernel_bf16>(call, call.in.v, call.in.past_v);
  pass.out = output_line_of<kernel_bf16>(call, y);
  depthwise_conv_fast::run(pass, {});
}

void fast_backward(const Call& call, const Tensor& dy, const Tensor& dx, const Tensor& dpast,
                   const Tensor& dtaps) {
  const Tensor readable = aligned(dy);
  if (dpast.defined() && dpast.size(1) > call.before) dpast.fill(0);  // tokens that no tap reaches
  depthwise_conv_fast::Pass pass = pass_of(call);
  pass.source = output_line_of<const kernel_bf16>(call, readable);
  pass.other = line_of<const kernel_bf16>(call, call.in.v, call.in.past_v);
  pass.out = line_of<kernel_bf16>(call, dx, dpast);
  depthwise_conv_fast::run(pass, dtaps);
}

}  // namespace

Variable depthwise_conv(const Variable& x, const Variable& past, const Variable& taps,
                        int64_t before, const BlockAttentionContext& context) {
  BlockAttentionContext at = context;
  at.options = conv_band(taps.size(-1), before);
  require(taps.value().device().kind == DeviceKind::cuda,
          "depthwise convolution: expected taps on the device of x");
  const Call call{block_attention_tensors({x, x, x, past, past, {}}, at),
                  block_attention_setting(at), taps.value().to(DType::f32), before};
  const DType dtype = call.in.v.dtype();
  const Tensor y = Tensor::empty(x.shape(), dtype, x.value().device());
  const bool fast = depthwise_conv_is_fast(call.in.v, call.in.past_v, call.taps);
  if (fast) {
    fast_forward(call, y);
  } else {
    convolve(call, y);
  }
  return record("depthwise_conv", y.to(x.dtype()), {x, past, taps},
                [call, dtype, fast](Gradients& gradients) {
                  const auto like = [](const Tensor& t) {
                    return t.defined() ? Tensor::empty(t.shape(), t.dtype(), t.device()) : Tensor();
                  };
                  const Tensor dx = like(call.in.v), dpast = like(call.in.past_v);
                  const Tensor dtaps = like(call.taps);
                  const Tensor dy = gradients.output().to(dtype);
                  (fast ? fast_backward : plain_backward)(call, dy, dx, dpast, dtaps);
                  gradients.add(0, dx);
                  if (dpast.defined()) gradients.add(1, dpast);
                  gradients.add(2, dtaps);
                });
}

}  // namespace linnet::cuda
