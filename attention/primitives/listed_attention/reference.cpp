// Listed attention: the literal equation, and the checks of inputs that all versions share.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "attention/primitives/block_attention/checks.h"
#include "attention/primitives/listed_attention/pattern.h"

namespace linnet {

using namespace listed_attention_detail;

template <typename T>
void check_listed_attention(const ListedAttentionInputs<T>& in,
                            const ListedAttentionOptions& options) {
  const auto& [q, k, v] = std::tie(in.q, in.k, in.v);
  block_attention_detail::check_attention("listed attention", q, k, v, options.dropout);
  require(options.group >= 1, "listed attention: a group needs at least one query, got ",
          options.group);
  require((in.index_rows == 1 || in.index_rows == q.B) &&
              (in.index_heads == 1 || in.index_heads == q.H) &&
              in.lists == lists_of(q.T, options.group),
          "listed attention: expected index [1 or ", q.B, ", 1 or ", q.H, ", ",
          lists_of(q.T, options.group), ", length], got [", in.index_rows, ", ", in.index_heads,
          ", ", in.lists, ", ", in.length, "]");
  require(
      (in.bias_rows == 1 || in.bias_rows == q.B) && (in.bias_heads == 1 || in.bias_heads == q.H),
      "listed attention: expected bias [1 or ", q.B, ", 1 or ", q.H, ", queries, length], got ",
      in.bias_rows, " rows and ", in.bias_heads, " heads");
  if (in.index == nullptr) return;
  const int64_t places = in.index_rows * in.index_heads * in.lists * in.length;
  const auto* wrong = std::find_if(in.index, in.index + places,
                                   [&](int32_t key) { return key < -1 || key >= k.T; });
  require(wrong == in.index + places, "listed attention: a list names key ",
          wrong == in.index + places ? 0 : *wrong, ", but there are ", k.T,
          " keys; an empty place is -1");
}

void listed_attention_reference(const ListedAttentionInputs<double>& in,
                                const ListedAttentionOptions& options, SequenceView<double> y,
                                double* log_sum_exp) {
  check_listed_attention(in, options);
  const double infinity = std::numeric_limits<double>::infinity();
  for (int64_t b = 0; b < in.q.B; ++b) {
    for (int64_t t = 0; t < in.q.T; ++t) {
      for (int64_t h = 0; h < in.q.H; ++h) {
        double* out = y.at(b, t, h);
        std::fill(out, out + in.v.K, 0.0);
        double& lse = log_sum_exp[(b * in.q.T + t) * in.q.H + h];
        lse = -infinity;
        if (!is_valid(in.query_mask, b, t, in.q.T)) continue;
        const int64_t g = h / (in.q.H / in.k.H);
        const int64_t row = in.index_rows == 1 ? 0 : b, head = in.index_heads == 1 ? 0 : h;
        const int32_t* list =
            in.index + ((row * in.index_heads + head) * in.lists + t / options.group) * in.length;
        std::vector<double> logits(static_cast<size_t>(in.length), -infinity);
        double largest = -infinity, sum = 0;
        for (int64_t l = 0; l < in.length; ++l) {
          if (list[l] < 0 || !is_valid(in.key_mask, b, list[l], in.k.T)) continue;
          double dot = 0;
          for (int64_t c = 0; c < in.q.K; ++c)
            dot += in.q.at(b, t, h)[c] * in.k.at(b, list[l], g)[c];
          logits[l] = options.scale * dot;
          if (in.bias != nullptr) {
            const int64_t bias_row = in.bias_rows == 1 ? 0 : b;
            const int64_t bias_head = in.bias_heads == 1 ? 0 : h;
            logits[l] +=
                in.bias[((bias_row * in.bias_heads + bias_head) * in.q.T + t) * in.length + l];
          }
          largest = std::max(largest, logits[l]);
        }
        if (largest == -infinity) continue;
        for (const double logit : logits) sum += std::exp(logit - largest);
        lse = largest + std::log(sum);
        const auto draws = draws_of(options, in.example_ids != nullptr ? in.example_ids[b] : b, h);
        for (int64_t l = 0; l < in.length; ++l) {
          if (logits[l] == -infinity) continue;
          double weight = std::exp(logits[l] - lse);
          if (options.dropout > 0) {
            weight *= draws.keeps(in.time_offset + t, l) ? draws.keep_scale : 0.0;
          }
          for (int64_t c = 0; c < in.v.K; ++c) out[c] += weight * in.v.at(b, list[l], g)[c];
        }
      }
    }
  }
}

template void check_listed_attention<float>(const ListedAttentionInputs<float>&,
                                            const ListedAttentionOptions&);
template void check_listed_attention<double>(const ListedAttentionInputs<double>&,
                                             const ListedAttentionOptions&);

}  // namespace linnet
