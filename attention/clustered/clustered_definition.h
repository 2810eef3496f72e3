// Clustered attention's literal definition: k-means by plain searches, a softmax of every
// cluster's mean over all keys, and one of every query over its cluster's best keys.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "attention/clustered/clustered.h"

namespace linnet::clustered_definition {

using Code = std::vector<int>;

// The first centroid with the fewest different bits.
inline int32_t nearest(const Code& code, const std::vector<Code>& centroids) {
  int32_t best = 0;
  size_t fewest = code.size() + 1;
  for (size_t l = 0; l < centroids.size(); ++l) {
    size_t different = 0;
    for (size_t b = 0; b < code.size(); ++b) different += code[b] != centroids[l][b] ? 1 : 0;
    if (different >= fewest) continue;
    fewest = different;
    best = static_cast<int32_t>(l);
  }
  return best;
}

// Clusters of the valid tokens of head h, in order.
template <typename Number>
std::vector<int32_t> search(const ClusteredParams& params, const ReferenceSequence<Number>& s,
                            const std::vector<int64_t>& tokens, int64_t h) {
  const auto& planes = s.parameter("planes");
  const auto& starts = s.parameter("starts");
  const auto& spares = s.parameter("spares");
  std::vector<Code> codes, centroids;
  for (const int64_t t : tokens) {
    Code code;
    for (int64_t b = 0; b < params.bits; ++b) {
      const Number* plane = &planes[static_cast<size_t>(b * (s.K + 1))];
      code.push_back(dot_product(s.query(t, h), plane, s.K) > plane[s.K] ? 1 : 0);
    }
    codes.push_back(code);
  }
  const auto n = static_cast<int64_t>(tokens.size());
  const int64_t used = std::min(n, params.clusters);
  for (int64_t l = 0; l < used; ++l) {
    const int64_t begin = l * n / used, run = (l + 1) * n / used - begin;
    const double start = static_cast<double>(starts[static_cast<size_t>(l)]);
    const double inside = start > 0 && start < 1 ? start : 0;
    const auto offset = static_cast<int64_t>(inside * static_cast<double>(run));
    centroids.push_back(codes[static_cast<size_t>(begin + offset)]);
  }
  std::vector<int32_t> clusters(tokens.size());
  for (int64_t i = 1;; ++i) {
    for (size_t j = 0; j < codes.size(); ++j) clusters[j] = nearest(codes[j], centroids);
    if (i == params.iterations) return clusters;
    for (size_t l = 0; l < centroids.size(); ++l) {
      for (size_t b = 0; b < centroids[l].size(); ++b) {
        int members = 0, ones = 0;
        for (size_t j = 0; j < codes.size(); ++j) {
          if (clusters[j] != static_cast<int32_t>(l)) continue;
          ++members;
          ones += codes[j][b];
        }
        const Number spare = spares[l * centroids[l].size() + b];
        centroids[l][b] = (members > 0 ? 2 * ones > members : spare > 0) ? 1 : 0;
      }
    }
  }
}

// Clusters [T,H], recorded or found; -1: masked.
template <typename Number>
std::vector<int32_t> clusters_of(const ClusteredParams& params,
                                 const ReferenceSequence<Number>& s) {
  if (const auto found = s.choices.find("token_query_clusters"); found != s.choices.end()) {
    const std::vector<int32_t> all = found->second.template to_vector<int32_t>();
    const int64_t first = s.row * found->second.size(1) + s.begin;
    return {all.begin() + first * s.H, all.begin() + (first + s.T) * s.H};
  }
  std::vector<int32_t> all(static_cast<size_t>(s.T * s.H), -1);
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < s.T; ++t) {
    if (s.key_valid[static_cast<size_t>(t)] != 0) tokens.push_back(t);
  }
  for (int64_t h = 0; h < s.H; ++h) {
    const std::vector<int32_t> found = search(params, s, tokens, h);
    for (size_t j = 0; j < tokens.size(); ++j) {
      all[static_cast<size_t>(tokens[j] * s.H + h)] = found[j];
    }
  }
  return all;
}

// Whether each key is one of the top keys of a cluster with the given logits: the recorded top
// keys, else the valid keys of largest logit, the earlier of equal ones first.
template <typename Number>
std::vector<bool> best_keys(const ClusteredParams& params, const ReferenceSequence<Number>& s,
                            const std::vector<Number>& logits, int64_t h, int32_t cluster) {
  std::vector<bool> best(static_cast<size_t>(s.T), false);
  if (!params.improved()) return best;
  if (const auto found = s.choices.find("top_keys"); found != s.choices.end()) {
    const Shape& shape = found->second.shape();
    const std::vector<int32_t> all = found->second.template to_vector<int32_t>();
    const int64_t first = ((s.row * s.H + h) * shape[2] + cluster) * shape[3];
    for (int64_t n = 0; n < shape[3]; ++n) {
      const int32_t key = all[static_cast<size_t>(first + n)];
      if (key >= 0) best[static_cast<size_t>(key)] = true;
    }
    return best;
  }
  std::vector<int64_t> tokens;
  for (int64_t t = 0; t < s.T; ++t) {
    if (s.key_valid[static_cast<size_t>(t)] != 0) tokens.push_back(t);
  }
  std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const size_t count = std::min(tokens.size(), static_cast<size_t>(params.top_keys));
  for (size_t n = 0; n < count; ++n) best[static_cast<size_t>(tokens[n])] = true;
  return best;
}

template <typename Number>
std::vector<Number> definition(const ClusteredParams& params, const ReferenceSequence<Number>& s) {
  const std::vector<int32_t> clusters = clusters_of(params, s);
  const Number scale = 1 / std::sqrt(static_cast<Number>(s.K)),
               none = -std::numeric_limits<Number>::infinity();
  const auto size = static_cast<size_t>(s.T);
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  const auto logits_of = [&](const Number* q, int64_t h) {
    std::vector<Number> logits(size, none);
    for (int64_t j = 0; j < s.T; ++j) {
      if (s.key_valid[static_cast<size_t>(j)] == 0) continue;
      logits[static_cast<size_t>(j)] = scale * dot_product(q, s.key(j, h), s.K);
    }
    return logits;
  };
  for (int64_t h = 0; h < s.H; ++h) {
    for (int32_t cluster = 0; cluster < params.clusters; ++cluster) {
      std::vector<int64_t> members;
      for (int64_t t = 0; t < s.T; ++t) {
        if (clusters[static_cast<size_t>(t * s.H + h)] == cluster) members.push_back(t);
      }
      if (members.empty()) continue;
      std::vector<Number> mean(static_cast<size_t>(s.K), 0);
      for (const int64_t t : members) {
        for (int64_t c = 0; c < s.K; ++c) mean[static_cast<size_t>(c)] += s.query(t, h)[c];
      }
      for (Number& x : mean) x = s.stored(x / static_cast<Number>(members.size()));
      const std::vector<Number> logits = logits_of(mean.data(), h);
      const std::vector<bool> best = best_keys(params, s, logits, h, cluster);
      const std::vector<Number> weights = softmax_of(logits);
      // The cluster's read of the other keys, and their share.
      std::vector<Number> bottom(static_cast<size_t>(s.V), 0);
      Number share = 0;
      for (size_t j = 0; j < size; ++j) {
        if (best[j] || weights[j] == 0) continue;
        share += weights[j];
        for (int64_t c = 0; c < s.V; ++c) {
          bottom[static_cast<size_t>(c)] += weights[j] * s.value(static_cast<int64_t>(j), h)[c];
        }
      }
      for (const int64_t i : members) {
        std::vector<Number> own = logits_of(s.query(i, h), h);
        for (size_t j = 0; j < size; ++j) own[j] = best[j] ? own[j] : none;
        own = softmax_of(std::move(own));
        Number* out = &y[static_cast<size_t>((i * s.H + h) * s.V)];
        for (int64_t c = 0; c < s.V; ++c) out[c] = bottom[static_cast<size_t>(c)];
        for (size_t j = 0; j < size; ++j) {
          if (own[j] == 0) continue;
          for (int64_t c = 0; c < s.V; ++c) {
            out[c] += (1 - share) * own[j] * s.value(static_cast<int64_t>(j), h)[c];
          }
        }
      }
    }
  }
  return y;
}

}  // namespace linnet::clustered_definition
