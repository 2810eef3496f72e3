// Depthwise convolutions on the CPU: one task per head, which adds whole rows of channels.
#include "attention/primitives/depthwise_conv/cpu.h"

#include <algorithm>

#include "attention/primitives/block_attention/tiles.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/error.h"
#include "core/threads.h"

namespace linnet {
namespace {

using block_attention_detail::KeyRange;
using block_attention_detail::make_segments;
using block_attention_detail::Segment;
using block_attention_detail::visible_keys;

template <typename T>
void check(const BlockAttentionInputs<T>& in, const ConvTaps<const T>& taps) {
  require(taps.count >= 1 && taps.before >= 0 && taps.before < taps.count,
          "depthwise convolution: expected one of ", taps.count, " taps at the token, got number ",
          taps.before);
  require(taps.channels == 1 || taps.channels == in.v.K, "depthwise convolution: expected 1 or ",
          in.v.K, " filters per head, got ", taps.channels);
  require(!in.spans.empty(), "depthwise convolution: it is defined along one sequence only");
  check_block_attention(in, conv_band(taps.count, taps.before));
}

// Calls body(x, past, t, query, tap) for every query of a segment and every valid token t, carried
// or of this call, that its taps reach; x [V] is that token's. Masked queries reach none.
template <typename T, typename Body>
void for_pairs(const BlockAttentionInputs<T>& in, const ConvTaps<const T>& taps,
               const Segment& segment, int64_t h, const Body& body) {
  const BlockAttentionOptions band = conv_band(taps.count, taps.before);
  int64_t pairs = 0;
  for (int64_t r = 0; r < segment.queries; ++r) {
    if (!is_valid(in.query_mask, segment.row, segment.query_begin + r, in.q.T)) continue;
    const KeyRange keys = visible_keys(segment, band, r);
    pairs += keys.end - keys.begin;
    for (int64_t u = keys.begin; u < keys.end; ++u) {
      const bool past = u < segment.past;
      const int64_t t = past ? u : segment.key_begin + u - segment.past;
      const SequenceView<const T>& x = past ? in.past_v : in.v;
      if (!is_valid(past ? in.past_mask : in.key_mask, segment.row, t, x.T)) continue;
      body(x.at(segment.row, t, h), past, t, segment.query_begin + r,
           u - segment.past - r + taps.before);
    }
  }
  count_multiply_adds(pairs * in.v.K);
}

template <typename T>
void clear(const SequenceView<T>& view) {
  if (view) std::fill_n(view.data, view.B * view.T * view.H * view.K, T{0});
}

}  // namespace

BlockAttentionOptions conv_band(int64_t count, int64_t before) {
  BlockAttentionOptions band;
  band.pattern = BlockPattern::band;
  band.left = before;
  band.right = count - 1 - before;
  band.causal = band.right == 0;
  return band;
}

template <typename T>
void depthwise_conv_forward(const BlockAttentionInputs<T>& in, const ConvTaps<const T>& taps,
                            SequenceView<T> y) {
  check(in, taps);
  clear(y);
  const std::vector<Segment> segments = make_segments(in);
  const int64_t heads = in.v.H, V = in.v.K;
  const auto tasks = static_cast<int64_t>(segments.size()) * heads;
  parallel_for(tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const Segment& segment = segments[static_cast<size_t>(task / heads)];
      const int64_t h = task % heads;
      for_pairs(in, taps, segment, h, [&](const T* x, bool, int64_t, int64_t query, int64_t n) {
        T* out = y.at(segment.row, query, h);
        if (taps.channels == 1) {
          axpy_row(V, taps.at(h, 0)[n], x, out);
        } else {
          for (int64_t c = 0; c < V; ++c) out[c] += taps.at(h, c)[n] * x[c];
        }
      });
    }
  });
}

template <typename T>
void depthwise_conv_backward(const BlockAttentionInputs<T>& in, const ConvTaps<const T>& taps,
                             SequenceView<const T> dy, SequenceView<T> dx, SequenceView<T> dpast,
                             const ConvTaps<T>& dtaps) {
  check(in, taps);
  clear(dx);
  clear(dpast);
  const std::vector<Segment> segments = make_segments(in);
  const int64_t V = in.v.K;
  // A head's filter is summed over all segments in order.
  parallel_for(in.v.H, 1, [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      std::fill_n(dtaps.at(h, 0), taps.channels * taps.count, T{0});
      for (const Segment& segment : segments) {
        for_pairs(in, taps, segment, h,
                  [&](const T* x, bool past, int64_t t, int64_t query, int64_t n) {
                    const T* d = dy.at(segment.row, query, h);
                    const SequenceView<T>& to = past ? dpast : dx;
                    T* out = to ? to.at(segment.row, t, h) : nullptr;
                    if (taps.channels == 1) {
                      if (out != nullptr) axpy_row(V, taps.at(h, 0)[n], d, out);
                      dtaps.at(h, 0)[n] += dot_row(d, x, V);
                      return;
                    }
                    for (int64_t c = 0; c < V; ++c) {
                      if (out != nullptr) out[c] += taps.at(h, c)[n] * d[c];
                      dtaps.at(h, c)[n] += d[c] * x[c];
                    }
                  });
      }
    }
  });
}

void depthwise_conv_reference(const BlockAttentionInputs<double>& in,
                              const ConvTaps<const double>& taps, SequenceView<double> y) {
  check(in, taps);
  for (const Segment& segment : make_segments(in)) {
    for (int64_t h = 0; h < in.v.H; ++h) {
      for (int64_t r = 0; r < segment.queries; ++r) {
        const int64_t query = segment.query_begin + r;
        for (int64_t c = 0; c < in.v.K; ++c) {
          double total = 0;
          for (int64_t n = 0; n < taps.count; ++n) {
            // The position that tap n looks at, and where its vector is.
            const int64_t offset = r - taps.before + n, position = segment.start + offset;
            const bool past = offset < 0;
            const int64_t t = past ? segment.past + offset : segment.key_begin + offset;
            if (position < 0 || t < 0 || offset >= segment.keys) continue;
            const auto& x = past ? in.past_v : in.v;
            if (!is_valid(past ? in.past_mask : in.key_mask, segment.row, t, x.T)) continue;
            total += taps.at(h, c)[n] * x.at(segment.row, t, h)[c];
          }
          y.at(segment.row, query, h)[c] =
              is_valid(in.query_mask, segment.row, query, in.q.T) ? total : 0.0;
        }
      }
    }
  }
}

#define LINNET_INSTANTIATE(T)                                                               \
  template void depthwise_conv_forward<T>(const BlockAttentionInputs<T>&,                   \
                                          const ConvTaps<const T>&, SequenceView<T>);       \
  template void depthwise_conv_backward<T>(const BlockAttentionInputs<T>&,                  \
                                           const ConvTaps<const T>&, SequenceView<const T>, \
                                           SequenceView<T>, SequenceView<T>, const ConvTaps<T>&)
LINNET_INSTANTIATE(float);
LINNET_INSTANTIATE(double);
#undef LINNET_INSTANTIATE

}  // namespace linnet
