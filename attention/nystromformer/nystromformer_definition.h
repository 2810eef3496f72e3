// Nystroemformer by plain loops: its literal definition.
#pragma once

#include "attention/common/conv_branch.h"
#include "attention/common/iterated_inverse_definition.h"
#include "attention/nystromformer/nystromformer.h"
#include "attention/reference.h"

namespace linnet {

inline std::vector<double> softmax_of_all(const ReferenceSequence<double>& s) {
  return softmax_attention_reference(
      s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
      [](int64_t, int64_t, int64_t) { return 0.0; });
}

// The tokens of each landmark, and the divisor of their sum.
struct LandmarkTokens {
  std::vector<int64_t> tokens;
  int64_t divisor = 0;
};

template <typename Number>
std::vector<LandmarkTokens> landmark_tokens(const NystromformerParams& params,
                                            const ReferenceSequence<Number>& s) {
  const bool skips = params.padding == LandmarkPadding::valid;
  std::vector<int64_t> all;
  // Rows that are split with their padding, which follows the sequence.
  for (int64_t t = 0; t < (skips ? s.T : s.padded_length); ++t) {
    if (!skips || s.key_valid[static_cast<size_t>(t)] != 0) all.push_back(t);
  }
  const auto n = static_cast<int64_t>(all.size()), count = std::min(n, params.landmarks);
  std::vector<LandmarkTokens> landmarks;
  for (int64_t c = 0, at = 0; c < count; ++c) {
    const int64_t length = n / count + (c >= count - n % count ? 1 : 0);
    LandmarkTokens mine;
    for (int64_t r = at; r < at + length; ++r) {
      const int64_t t = all[static_cast<size_t>(r)];
      if (t < s.T && s.key_valid[static_cast<size_t>(t)] != 0) mine.tokens.push_back(t);
    }
    at += length;
    const bool zeros = params.padding == LandmarkPadding::row_of_zeros;
    mine.divisor = zeros ? length : static_cast<int64_t>(mine.tokens.size());
    if (mine.divisor > 0) landmarks.push_back(std::move(mine));
  }
  return landmarks;
}

template <typename Number>
std::vector<Number> nystromformer_definition(const NystromformerParams& params,
                                             const ReferenceSequence<Number>& s) {
  using Vector = std::vector<Number>;
  const auto scale = static_cast<Number>(params.scale(s.K));
  const std::vector<LandmarkTokens> landmarks = landmark_tokens(params, s);
  const size_t p = landmarks.size(), V = static_cast<size_t>(s.V);
  const auto mean = [&](size_t c, int64_t h, const auto& vector_of) {
    Vector sum(static_cast<size_t>(s.K), 0);
    for (const int64_t t : landmarks[c].tokens) {
      for (int64_t e = 0; e < s.K; ++e) sum[static_cast<size_t>(e)] += vector_of(t, h)[e];
    }
    for (Number& value : sum) value /= static_cast<Number>(landmarks[c].divisor);
    return sum;
  };
  Vector y(static_cast<size_t>(s.T * s.H * s.V), 0);
  const bool exact = params.exact && s.padded_length <= params.landmarks;
  if (exact) {
    y = softmax_attention_reference(
        s, scale, [](int64_t, int64_t) { return true; },
        [](int64_t, int64_t, int64_t) { return Number{0}; });
  }
  for (int64_t h = 0; h < s.H && !exact && p > 0; ++h) {
    std::vector<Vector> queries, keys;
    for (size_t c = 0; c < p; ++c) {
      queries.push_back(mean(c, h, [&](int64_t t, int64_t g) { return s.query(t, g); }));
      keys.push_back(mean(c, h, [&](int64_t t, int64_t g) { return s.key(t, g); }));
    }
    const auto weights_of_landmarks = [&](const Number* query) {
      Vector logits;
      for (const Vector& key : keys) logits.push_back(scale * dot_product(query, key.data(), s.K));
      return softmax_of(std::move(logits));
    };
    SquareMatrix<Number> a;
    std::vector<Vector> written;  // B V
    for (const Vector& query : queries) {
      const Vector row = weights_of_landmarks(query.data());
      a.insert(a.end(), row.begin(), row.end());
      Vector logits(static_cast<size_t>(s.S), -std::numeric_limits<Number>::infinity());
      for (int64_t j = 0; j < s.S; ++j) {
        if (s.key_valid[static_cast<size_t>(j)] == 0) continue;
        logits[static_cast<size_t>(j)] = scale * dot_product(query.data(), s.key(j, h), s.K);
      }
      const Vector weights = softmax_of(std::move(logits));
      Vector sum(V, 0);
      for (int64_t j = 0; j < s.S; ++j) {
        const Number weight = weights[static_cast<size_t>(j)];
        for (size_t e = 0; e < V && weight != 0; ++e) sum[e] += weight * s.value(j, h)[e];
      }
      written.push_back(std::move(sum));
    }
    const SquareMatrix<Number> z =
        iterated_inverse_definition(a, p, params.steps, largest_column_sum(a, p));
    for (int64_t i = 0; i < s.T; ++i) {
      if (s.key_valid[static_cast<size_t>(i)] == 0) continue;
      const Vector f = weights_of_landmarks(s.query(i, h));
      for (size_t c = 0; c < p * p; ++c) {
        for (size_t e = 0; e < V; ++e) {
          y[static_cast<size_t>((i * s.H + h) * s.V) + e] += f[c / p] * z[c] * written[c % p][e];
        }
      }
    }
  }
  if (params.conv > 0) add_conv_definition(s, params.conv, "conv", y);
  return y;
}

}  // namespace linnet
