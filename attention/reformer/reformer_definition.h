// Reformer's literal definition: the sorted list of all rounds, its chunks, and how often a query
// meets a key.
#pragma once

#include <algorithm>
#include <vector>

#include "attention/reformer/reformer.h"

namespace linnet::reformer_definition {

// Buckets [T,H,hashes]: the recorded ones, else the largest of the products with the directions of
// a round and their opposites.
template <typename Number>
std::vector<int32_t> buckets_of(const ReformerParams& params, const ReferenceSequence<Number>& s) {
  if (const auto found = s.choices.find("token_buckets"); found != s.choices.end()) {
    const std::vector<int32_t> all = found->second.template to_vector<int32_t>();
    const int64_t width = s.H * params.hashes;
    const int64_t first = s.row * found->second.size(1) + s.begin;
    return {all.begin() + first * width, all.begin() + (first + s.T) * width};
  }
  const BucketFactors factors = params.bucket_rule(s.options.max_length).factors(s.T);
  const std::vector<Number>& rotations = s.parameter("rotations");
  const int64_t stride = static_cast<int64_t>(rotations.size()) / s.H / params.hashes / s.K;
  std::vector<int32_t> buckets;
  for (int64_t i = 0; i < s.T * s.H * params.hashes; ++i) {
    const int64_t t = i / params.hashes / s.H, h = i / params.hashes % s.H;
    int64_t direction = (h * params.hashes + i % params.hashes) * stride, bucket = 0, weight = 1;
    for (const int64_t size : {factors.first, factors.second}) {
      if (size == 1) continue;
      std::vector<double> products;
      for (const int sign : {1, -1}) {
        for (int64_t r = direction; r < direction + size / 2; ++r) {
          const Number* direction = &rotations[static_cast<size_t>(r * s.K)];
          products.push_back(sign *
                             static_cast<double>(dot_product(s.query(t, h), direction, s.K)));
        }
      }
      bucket += weight * (std::max_element(products.begin(), products.end()) - products.begin());
      weight *= size;
      direction += size / 2;
    }
    const bool valid = s.key_valid[static_cast<size_t>(t)] != 0;
    buckets.push_back(static_cast<int32_t>(valid ? bucket : factors.count()));
  }
  return buckets;
}

// How often query i of head h meets key j, [T,T].
inline std::vector<int64_t> visits(const ReformerParams& params,
                                   const std::vector<int32_t>& buckets, int64_t T, int64_t H,
                                   int64_t h) {
  const int64_t c = params.chunk, padded = (T + c - 1) / c * c;
  // All rounds after each other: tokens by bucket and time, then the padding of the last chunk.
  std::vector<int64_t> list;
  for (int64_t round = 0; round < params.hashes; ++round) {
    std::vector<int64_t> tokens;
    for (int64_t t = 0; t < T; ++t) tokens.push_back(t);
    std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) {
      const auto bucket = [&](int64_t t) {
        return buckets[static_cast<size_t>((t * H + h) * params.hashes + round)];
      };
      return bucket(a) < bucket(b);
    });
    tokens.resize(static_cast<size_t>(padded), -1);
    list.insert(list.end(), tokens.begin(), tokens.end());
  }
  std::vector<int64_t> count(static_cast<size_t>(T * T), 0);
  const auto entries = static_cast<int64_t>(list.size());
  for (int64_t f = 0; f < entries; ++f) {
    const int64_t query = list[static_cast<size_t>(f)], own = f - f % c;
    for (int64_t at = own - c; query >= 0 && at < own + c; ++at) {
      const int64_t key = list[static_cast<size_t>((at + entries) % entries)];
      if (key >= 0) ++count[static_cast<size_t>(query * T + key)];
    }
  }
  return count;
}

template <typename Number>
std::vector<Number> definition(const ReformerParams& params, const ReferenceSequence<Number>& s) {
  const bool whole = s.T <= params.chunk;
  const std::vector<int32_t> buckets = whole ? std::vector<int32_t>() : buckets_of(params, s);
  const auto root = std::sqrt(static_cast<Number>(s.K));
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t h = 0; h < s.H; ++h) {
    const std::vector<int64_t> count = whole
                                           ? std::vector<int64_t>(static_cast<size_t>(s.T * s.T), 1)
                                           : visits(params, buckets, s.T, s.H, h);
    std::vector<std::vector<Number>> keys;
    for (int64_t j = 0; j < s.T; ++j) {
      const Number* x = s.query(j, h);
      const Number square = dot_product(x, x, s.K) / static_cast<Number>(s.K);
      std::vector<Number> key;
      for (int64_t c = 0; c < s.K; ++c) {
        key.push_back(s.stored(x[c] / std::sqrt(square + static_cast<Number>(1e-6))));
      }
      keys.push_back(std::move(key));
    }
    for (int64_t i = 0; i < s.T; ++i) {
      std::vector<Number> logits(static_cast<size_t>(s.T),
                                 -std::numeric_limits<Number>::infinity());
      for (int64_t j = 0; j < s.T; ++j) {
        const int64_t times = count[static_cast<size_t>(i * s.T + j)];
        if (times == 0 || !s.sees(i, j)) continue;
        const Number product =
            dot_product(s.query(i, h), keys[static_cast<size_t>(j)].data(), s.K) / root;
        const auto weight = static_cast<Number>(params.dedup ? 1 : times);
        logits[static_cast<size_t>(j)] = (i == j ? Number{-1e5} : product) + std::log(weight);
      }
      const std::vector<Number> weights = softmax_of(std::move(logits));
      for (int64_t j = 0; j < s.T; ++j) {
        const Number weight = weights[static_cast<size_t>(j)];
        if (weight == 0) continue;
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] += weight * s.value(j, h)[c];
        }
      }
    }
  }
  return y;
}

}  // namespace linnet::reformer_definition
