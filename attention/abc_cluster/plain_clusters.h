// The clusters of the literal definition, by plain searches over one sequence.
#pragma once

#include <vector>

#include "attention/abc_cluster/abc_cluster.h"

namespace linnet {

// The first nearest candidate; a candidate that is not in use has a negative distance.
template <typename Distance>
int32_t first_nearest(int64_t slots, const Distance& distance) {
  int32_t chosen = -1;
  double nearest = std::numeric_limits<double>::infinity();
  for (int64_t l = 0; l < slots; ++l) {
    const double d = distance(l);
    if (d < 0 || d >= nearest) continue;
    nearest = d;
    chosen = static_cast<int32_t>(l);
  }
  return chosen;
}

// Causal: the clusters of one head's valid keys in order.
template <typename Number>
std::vector<int32_t> nearest_mean_search(const std::vector<const Number*>& keys, int64_t width,
                                         int64_t slots) {
  std::vector<std::vector<double>> means;
  std::vector<double> counts;
  std::vector<int32_t> clusters;
  for (const Number* key : keys) {
    int32_t l = static_cast<int32_t>(means.size());
    if (l < slots) {
      means.emplace_back(static_cast<size_t>(width), 0);
      counts.push_back(0);
    } else {
      l = first_nearest(slots, [&](int64_t other) {
        double distance = 0;
        for (int64_t c = 0; c < width; ++c) {
          const double d = key[c] - means[static_cast<size_t>(other)][static_cast<size_t>(c)];
          distance += d * d;
        }
        return distance;
      });
    }
    const auto n = static_cast<size_t>(l);
    counts[n] += 1;
    for (int64_t c = 0; c < width; ++c) {
      double& mean = means[n][static_cast<size_t>(c)];
      mean += (key[c] - mean) / counts[n];
    }
    clusters.push_back(l);
  }
  return clusters;
}

// Noncausal and cross: k-means over the signs of products with planes [bits,width].
template <typename Number>
std::vector<int32_t> hash_search(const std::vector<const Number*>& keys, int64_t width,
                                 const std::vector<Number>& planes, int64_t slots,
                                 int64_t iterations) {
  using Code = std::vector<int>;
  const size_t n = keys.size(), bits = planes.size() / static_cast<size_t>(width);
  const size_t used = std::min(n, static_cast<size_t>(slots));
  std::vector<Code> codes, centroids;
  for (const Number* key : keys) {
    Code code;
    for (size_t b = 0; b < bits; ++b) {
      double product = 0;
      for (int64_t c = 0; c < width; ++c) {
        product +=
            static_cast<double>(key[c]) *
            static_cast<double>(planes[b * static_cast<size_t>(width) + static_cast<size_t>(c)]);
      }
      code.push_back(product > 0 ? 1 : 0);
    }
    codes.push_back(code);
  }
  for (size_t l = 0; l < used; ++l) centroids.push_back(codes[l * n / used]);
  std::vector<int32_t> clusters(n);
  const auto assign = [&] {
    for (size_t j = 0; j < n; ++j) {
      clusters[j] = first_nearest(static_cast<int64_t>(used), [&](int64_t l) {
        double different = 0;
        for (size_t b = 0; b < bits; ++b) {
          different += codes[j][b] != centroids[static_cast<size_t>(l)][b] ? 1 : 0;
        }
        return different;
      });
    }
  };
  for (int64_t i = 0; i < iterations; ++i) {
    assign();
    for (size_t l = 0; l < used; ++l) {
      int members = 0;
      Code ones(bits, 0);
      for (size_t j = 0; j < n; ++j) {
        if (clusters[j] != static_cast<int32_t>(l)) continue;
        ++members;
        for (size_t b = 0; b < bits; ++b) ones[b] += codes[j][b];
      }
      for (size_t b = 0; members > 0 && b < bits; ++b) {
        centroids[l][b] = 2 * ones[b] > members ? 1 : 0;
      }
    }
  }
  assign();
  return clusters;
}

// [S,H]; -1: padded.
template <typename Number>
std::vector<int32_t> plain_clusters(const AbcClusterParams& params,
                                    const ReferenceSequence<Number>& s) {
  std::vector<int32_t> all(static_cast<size_t>(s.S * s.H), -1);
  for (int64_t h = 0; h < s.H; ++h) {
    std::vector<const Number*> keys;
    for (int64_t j = 0; j < s.S; ++j) {
      if (s.key_valid[static_cast<size_t>(j)] != 0) keys.push_back(s.key(j, h));
    }
    const std::vector<int32_t> found =
        s.form == Form::causal
            ? nearest_mean_search(keys, s.K, params.slots)
            : hash_search(keys, s.K, s.parameter("planes"), params.slots, params.iterations);
    size_t next = 0;
    for (int64_t j = 0; j < s.S; ++j) {
      if (s.key_valid[static_cast<size_t>(j)] == 0) continue;
      all[static_cast<size_t>(j * s.H + h)] = found[next++];
    }
  }
  return all;
}

}  // namespace linnet
