// Block attention: the literal equation, and the checks of inputs that all versions share.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "attention/primitives/block_attention/checks.h"
#include "attention/primitives/block_attention/tiles.h"

namespace linnet {

using namespace block_attention_detail;

template <typename T>
void check_block_attention(const BlockAttentionInputs<T>& in,
                           const BlockAttentionOptions& options) {
  const auto& [q, k, v] = std::tie(in.q, in.k, in.v);
  check_attention("block attention", q, k, v, options.dropout);
  require(static_cast<bool>(in.past_k) == static_cast<bool>(in.past_v) &&
              (!in.past_k || (in.past_k.B == q.B && in.past_v.B == q.B &&
                              in.past_v.T == in.past_k.T && in.past_k.H == k.H &&
                              in.past_v.H == k.H && in.past_k.K == k.K && in.past_v.K == v.K)),
          "block attention: past keys and values must be [B,P,G,K] and [B,P,G,V]");
  require(options.pattern != BlockPattern::band || (options.left >= 0 && options.right >= 0),
          "block attention: a band needs left >= 0 and right >= 0");
  require(options.pattern != BlockPattern::blocks || options.block >= 1,
          "block attention: blocks need a size of at least 1, got ", options.block);
  if (in.spans.empty()) {
    require(options.pattern == BlockPattern::full && !options.causal && !in.past_k,
            "block attention: without spans (cross-attention) every query sees every key; pattern ",
            "full, not causal, no past");
  } else {
    require(q.T == k.T, "block attention: self-attention needs as many keys as queries, got ", k.T,
            " and ", q.T);
  }
  if (in.bias == nullptr) return;
  require(in.bias_heads == 1 || in.bias_heads == q.H, "block attention: the bias has ",
          in.bias_heads, " heads, expected 1 or ", q.H);
  for (const Segment& segment : make_segments(in)) {
    for (int64_t r = 0; r < segment.queries; ++r) {
      const KeyRange range = visible_keys(segment, options, r);
      const int64_t own = segment.past + r;
      require(range.begin == range.end || (range.begin - own + in.bias_origin >= 0 &&
                                           range.end - 1 - own + in.bias_origin < in.bias_count),
              "block attention: the bias covers distances ", -in.bias_origin, " to ",
              in.bias_count - 1 - in.bias_origin, ", but a query sees ", range.begin - own, " to ",
              range.end - 1 - own);
    }
  }
}

void block_attention_reference(const BlockAttentionInputs<double>& in,
                               const BlockAttentionOptions& options, SequenceView<double> y) {
  check_block_attention(in, options);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Segment& segment : make_segments(in)) {
    for (int64_t head = 0; head < in.q.H; ++head) {
      const int64_t group = head / (in.q.H / in.k.H);
      const int64_t example = in.example_ids ? in.example_ids[segment.row] : segment.row;
      const DropoutDraws draws(options, example, head);
      for (int64_t r = 0; r < segment.queries; ++r) {
        const int64_t t = segment.query_begin + r;
        double* out = y.at(segment.row, t, head);
        std::fill(out, out + in.v.K, 0.0);
        if (!is_valid(in.query_mask, segment.row, t, in.q.T)) continue;
        const double* q = in.q.at(segment.row, t, head);
        std::vector<double> logits(static_cast<size_t>(segment.all_keys()), -infinity);
        double largest = -infinity, sum = 0;
        const int64_t position = segment.start + r;
        const auto key_at = [&](int64_t u, const SequenceView<const double>& past,
                                const SequenceView<const double>& now) {
          return u < segment.past
                     ? past.at(segment.row, u, group)
                     : now.at(segment.row, segment.key_begin + u - segment.past, group);
        };
        for (int64_t u = 0; u < segment.all_keys(); ++u) {
          const int64_t j = segment.start - segment.past + u;
          const bool past = u < segment.past;
          const bool valid = past ? is_valid(in.past_mask, segment.row, u, in.past_k.T)
                                  : is_valid(in.key_mask, segment.row,
                                             segment.key_begin + u - segment.past, in.k.T);
          bool sees = valid && j >= 0 && (!options.causal || j <= position);
          if (options.pattern == BlockPattern::band) {
            sees = sees && j >= position - options.left &&
                   (options.causal || j <= position + options.right);
          } else if (options.pattern == BlockPattern::blocks) {
            sees = sees && j / options.block == position / options.block;
          }
          if (!sees) continue;
          const double* k = key_at(u, in.past_k, in.k);
          double dot = 0;
          for (int64_t c = 0; c < in.q.K; ++c) dot += q[c] * k[c];
          logits[u] = options.scale * dot;
          if (in.bias != nullptr) {
            const int64_t row = in.bias_heads == 1 ? 0 : head;
            logits[u] += in.bias[row * in.bias_count + j - position + in.bias_origin];
          }
          largest = std::max(largest, logits[u]);
        }
        for (const double logit : logits) {
          if (logit != -infinity) sum += std::exp(logit - largest);
        }
        for (int64_t u = 0; u < segment.all_keys(); ++u) {
          if (logits[u] == -infinity) continue;
          double weight = std::exp(logits[u] - largest) / sum;
          const double positive = std::max(logits[u], 0.0);
          if (options.weights == BlockWeights::identity) weight = logits[u];
          if (options.weights == BlockWeights::relu) weight = positive;
          if (options.weights == BlockWeights::relu_squared) weight = positive * positive;
          if (options.weights == BlockWeights::laplace) {
            const double middle = std::sqrt(0.5), deviation = std::sqrt(0.25 / std::numbers::pi);
            weight = 0.5 * std::erfc(-(logits[u] - middle) / (deviation * std::numbers::sqrt2));
          }
          if (options.weights == BlockWeights::collision ||
              options.weights == BlockWeights::collision_exact) {
            const double angle = std::acos(std::clamp(logits[u], -1.0, 1.0));
            weight = std::pow(1 - angle / std::numbers::pi, options.exponent);
          }
          if (options.weights == BlockWeights::exponential) {
            weight = std::exp(std::min(logits[u], 0.0));
          }
          if (options.dropout > 0) {
            const bool kept = draws.keeps(segment.query_time + r, segment.key_time + u);
            weight = kept ? weight * draws.keep_scale : 0.0;
          }
          const double* v = key_at(u, in.past_v, in.v);
          for (int64_t c = 0; c < in.v.K; ++c) out[c] += weight * v[c];
        }
      }
    }
  }
}

template void check_block_attention<float>(const BlockAttentionInputs<float>&,
                                           const BlockAttentionOptions&);
template void check_block_attention<double>(const BlockAttentionInputs<double>&,
                                            const BlockAttentionOptions&);

}  // namespace linnet
