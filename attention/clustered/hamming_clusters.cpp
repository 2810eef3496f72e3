#include "attention/clustered/hamming_clusters.h"

#include <algorithm>

#include "attention/clustered/cuda/clusters.h"
#include "attention/clustered/hamming_rule.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

void hash_vectors(const Tensor& x, const Tensor& planes, const Tensor& mask, const Tensor& codes) {
  const int64_t H = x.size(2), K = x.size(3), bits = planes.size(0);
  const Tensor from = x.to(DType::f64), normals = planes.to(DType::f64);
  parallel_for(codes.elements(), 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t code = 0;
      const bool valid = !mask.defined() || mask.data<uint8_t>()[i / H] != 0;
      for (int64_t bit = 0; valid && bit < bits; ++bit) {
        const double* normal = normals.data<double>() + bit * (K + 1);
        const double product = dot_row(normal, from.data<double>() + i * K, K);
        code |= int64_t{product > normal[K]} << bit;
      }
      if (valid) count_multiply_adds(bits * K);
      codes.data<int64_t>()[i] = code;
    }
  });
}

}  // namespace

Tensor hamming_clusters(const Tensor& x, const Tensor& mask, const ClusterDraws& draws,
                        int64_t clusters, int64_t iterations) {
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2), bits = draws.planes.size(0);
  require(bits > 0 && bits <= kMaxClusterBits && draws.planes.size(1) == x.size(3) + 1 &&
              draws.starts.elements() >= clusters && draws.spares.size(0) >= clusters &&
              draws.spares.size(1) == bits && iterations > 0,
          "hamming_clusters: expected x [B,T,H,K], planes [1 to ", kMaxClusterBits,
          ", K + 1], starts and spares for ", clusters, " clusters, got ", x.shape(), ", ",
          draws.planes.shape(), ", ", draws.starts.shape(), " and ", draws.spares.shape());
  const auto empty = [&](const Shape& shape, DType dtype) {
    return Tensor::empty(shape, dtype, x.device());
  };
  const HammingTensors all{mask, empty({B, T, H}, DType::i64), empty({B, H, clusters}, DType::i64),
                           empty({B, H, clusters, bits + 1}, DType::i32),
                           empty({B, T, H}, DType::i32)};
  if constexpr (kCuda) {
    if (on_cuda(x)) {
      cuda::hamming_clusters(x, draws, all, iterations);
      return all.result;
    }
  }
  hash_vectors(x, draws.planes, mask, all.codes);
  const Tensor starts = draws.starts.to(DType::f64), spares = draws.spares.to(DType::f64);
  const HammingRule<double> rule{T,
                                 H,
                                 clusters,
                                 bits,
                                 starts.data<double>(),
                                 spares.data<double>(),
                                 binding::pointer<uint8_t>(mask),
                                 all.codes.data<int64_t>(),
                                 all.centroids.data<int64_t>(),
                                 all.votes.data<int32_t>(),
                                 all.result.data<int32_t>()};
  parallel_for(B * H, 1, [&](int64_t first, int64_t last) {
    for (int64_t list = first; list < last; ++list) {
      for (int64_t l = 0; l < clusters; ++l) rule.seed(list, l);
      for (int64_t i = 1;; ++i) {
        for (int64_t t = 0; t < T; ++t) rule.assign(list, t);
        if (i == iterations) break;
        std::fill_n(rule.votes + list * clusters * (bits + 1), clusters * (bits + 1), 0);
        for (int64_t t = 0; t < T; ++t) rule.vote(list, t, [](int32_t* count) { ++*count; });
        for (int64_t l = 0; l < clusters; ++l) rule.move(list, l);
      }
    }
  });
  return all.result;
}

}  // namespace linnet
