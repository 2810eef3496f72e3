#include "attention/abc_cluster/clusters.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "attention/abc_cluster/cuda/clusters.h"
#include "attention/abc_cluster/hash_clustering.h"
#include "attention/primitives/common/binding.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kMaxBits = 63;

template <typename Body>
void for_all(int64_t count, const Body& body) {
  parallel_for(count, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

// Signs of products with the planes; 0 where masked.
void hash_keys(const Tensor& keys, const Tensor& planes, const uint8_t* valid,
               const Tensor& codes) {
  const int64_t H = keys.size(2), K = keys.size(3), bits = planes.size(0);
  const Tensor from = keys.to(DType::f64), normals = planes.to(DType::f64);
  for_all(codes.elements(), [&](int64_t i) {
    int64_t code = 0;
    for (int64_t bit = 0; (valid == nullptr || valid[i / H] != 0) && bit < bits; ++bit) {
      double product = 0;
      for (int64_t c = 0; c < K; ++c) {
        product += from.data<double>()[i * K + c] * normals.data<double>()[bit * K + c];
      }
      code |= int64_t{product > 0} << bit;
    }
    codes.data<int64_t>()[i] = code;
  });
}

// Means of one head's slots as its keys arrive.
struct RunningMeans {
  RunningMeans(int64_t slots_in, int64_t width_in)
      : slots(slots_in),
        width(width_in),
        sums(static_cast<size_t>(slots * width)),
        counts(static_cast<size_t>(slots)) {}

  int32_t add(const double* key) {
    int64_t chosen = 0;
    double nearest = std::numeric_limits<double>::infinity();
    for (int64_t l = 0; l < slots && nearest >= 0; ++l) {
      double distance = counts[static_cast<size_t>(l)] == 0 ? -1 : 0;
      for (int64_t c = 0; distance >= 0 && c < width; ++c) {
        const double difference =
            key[c] - sums[static_cast<size_t>(l * width + c)] / counts[static_cast<size_t>(l)];
        distance += difference * difference;
      }
      if (!(distance < nearest)) continue;
      nearest = distance;
      chosen = l;
    }
    for (int64_t c = 0; c < width; ++c) sums[static_cast<size_t>(chosen * width + c)] += key[c];
    counts[static_cast<size_t>(chosen)] += 1;
    return static_cast<int32_t>(chosen);
  }

  int64_t slots, width;
  std::vector<double> sums, counts;
};

}  // namespace

Tensor hash_clusters(const Tensor& keys, const Tensor& planes, const Tensor& mask,
                     const Tensor& segments, int64_t slots, int64_t iterations) {
  const int64_t B = keys.size(0), S = keys.size(1), H = keys.size(2), bits = planes.size(0);
  const Device device = keys.device();
  require(bits > 0 && bits <= kMaxBits, "hash_clusters: expected 1 to ", kMaxBits, " planes, got ",
          bits);
  const Tensor clusters = Tensor::empty({B, S, H}, DType::i32, device);
  const Tensor codes = Tensor::empty({B, S, H}, DType::i64, device);
  Tensor span_bounds, sequence;
  int64_t sequences = B;
  if (segments.defined()) {
    const std::vector<Span> spans = binding::spans_of(segments, keys, false);
    sequences = static_cast<int64_t>(spans.size());
    std::vector<int32_t> bounds, of_token(static_cast<size_t>(B * S));
    for (int64_t m = 0; m < sequences; ++m) {
      const Span& span = spans[static_cast<size_t>(m)];
      for (const int64_t number : {span.row, span.begin, span.end}) {
        bounds.push_back(static_cast<int32_t>(number));
      }
      std::fill(of_token.begin() + span.row * S + span.begin,
                of_token.begin() + span.row * S + span.end, static_cast<int32_t>(m));
    }
    span_bounds = Tensor::from(bounds, {sequences, 3}, device);
    sequence = Tensor::from(of_token, {B, S}, device);
  }
  const Tensor centroids = Tensor::empty({sequences, H, slots}, DType::i64, device);
  const Tensor votes = Tensor::empty({sequences, H, slots, bits}, DType::u8, device);
  const HashClusterTensors all{span_bounds, sequence, mask, codes, centroids, votes, clusters};
  if constexpr (kCuda) {
    if (on_cuda(keys)) {
      cuda::hash_clusters(keys, planes, all, iterations);
      return clusters;
    }
  }
  const HashClustering steps{S,
                             H,
                             slots,
                             bits,
                             binding::pointer<int32_t>(span_bounds),
                             binding::pointer<int32_t>(sequence),
                             binding::pointer<uint8_t>(mask),
                             codes.data<int64_t>(),
                             centroids.data<int64_t>(),
                             votes.data<uint8_t>(),
                             clusters.data<int32_t>()};
  hash_keys(keys, planes, steps.valid, codes);
  for_all(centroids.elements(), [&](int64_t i) { steps.seed(i); });
  for (int64_t i = 0;; ++i) {
    for_all(clusters.elements(), [&](int64_t item) { steps.assign(item); });
    if (i == iterations) return clusters;
    for_all(votes.elements(), [&](int64_t item) { steps.vote(item); });
    for_all(centroids.elements(), [&](int64_t item) { steps.move(item); });
  }
}

Tensor nearest_clusters(const Tensor& keys, const Tensor& mask, const Tensor& segments,
                        const Tensor& sums, const Tensor& counts, int64_t slots) {
  const int64_t B = keys.size(0), S = keys.size(1), H = keys.size(2), K = keys.size(3);
  const Tensor clusters = Tensor::empty({B, S, H}, DType::i32, keys.device());
  if constexpr (kCuda) {
    if (on_cuda(keys)) {
      cuda::nearest_clusters(keys, mask, segments, sums, counts, slots, clusters);
      return clusters;
    }
  }
  const Tensor from = keys.to(DType::f64);
  const Tensor carried = sums.defined() ? sums.to(DType::f64) : sums;
  parallel_for(B * H, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      RunningMeans means(slots, K);
      if (carried.defined()) {
        std::copy_n(carried.data<double>() + i * slots * K, slots * K, means.sums.data());
        std::copy_n(counts.data<double>() + i * slots, slots, means.counts.data());
      }
      const int64_t b = i / H, h = i % H;
      for (int64_t token = b * S; token < (b + 1) * S; ++token) {
        const int32_t* id = segments.defined() ? segments.data<int32_t>() + token : nullptr;
        if (id != nullptr && token > b * S && id[0] != id[-1]) means = RunningMeans(slots, K);
        const bool valid = !mask.defined() || mask.data<uint8_t>()[token] != 0;
        clusters.data<int32_t>()[token * H + h] =
            valid ? means.add(from.data<double>() + (token * H + h) * K) : -1;
      }
    }
  });
  return clusters;
}

}  // namespace linnet
