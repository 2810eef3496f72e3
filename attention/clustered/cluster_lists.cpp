#include "attention/clustered/cluster_lists.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "attention/clustered/cuda/clusters.h"
#include "attention/clustered/list_rule.h"
#include "attention/primitives/common/fill_elements.h"
#include "attention/primitives/common/tile_gemm.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

// A heap of the best keys of one cluster so far, the worst of them first.
class BestKeys {
 public:
  explicit BestKeys(int64_t most) : most_(static_cast<size_t>(most)) {}

  void offer(double score, int32_t key) {
    const Scored offered{score, key};
    if (heap_.size() == most_) {
      if (!better(offered, heap_.front())) return;
      std::pop_heap(heap_.begin(), heap_.end(), better);
      heap_.pop_back();
    }
    heap_.push_back(offered);
    std::push_heap(heap_.begin(), heap_.end(), better);
  }
  // By descending score, -1 where there are fewer; forgets them.
  void take(int32_t* best) {
    std::sort_heap(heap_.begin(), heap_.end(), better);
    std::fill_n(best, most_, -1);
    std::transform(heap_.begin(), heap_.end(), best, [](const Scored& each) { return each.key; });
    heap_.clear();
  }

 private:
  struct Scored {
    double score;
    int32_t key;
  };
  static bool better(const Scored& a, const Scored& b) {
    return a.score > b.score || (a.score == b.score && a.key < b.key);
  }

  size_t most_;
  std::vector<Scored> heap_;
};

}  // namespace

Tensor cluster_places(const Tensor& clusters, int64_t C) {
  const int64_t B = clusters.size(0), H = clusters.size(2);
  const Tensor places = Tensor::empty({B, clusters.size(1) * H}, DType::i32, clusters.device());
  if constexpr (kCuda) {
    if (on_cuda(clusters)) {
      cuda::cluster_places(clusters, C, places);
      return places;
    }
  }
  fill_elements<int32_t>(places, kGrain, [&](int64_t i) {
    return cluster_rule::place_of(clusters.data<int32_t>()[i], i % H, C, H);
  });
  return places;
}

Tensor top_keys(const Tensor& means, const Tensor& keys, const Tensor& mask, int64_t top) {
  const int64_t B = keys.size(0), T = keys.size(1), H = keys.size(2), K = keys.size(3);
  const int64_t C = means.size(1);
  const Tensor best = Tensor::empty({B, H, C, top}, DType::i32, keys.device());
  if constexpr (kCuda) {
    if (on_cuda(keys)) {
      cuda::top_keys(means, keys, mask, best);
      return best;
    }
  }
  const Tensor rows = means.to(DType::f64), others = keys.to(DType::f64);
  // Several clusters share a pass over the keys, which exceed the cache.
  constexpr int64_t kShared = 32;
  const int64_t groups = (C + kShared - 1) / kShared;
  parallel_for(B * H * groups, 1, [&](int64_t first, int64_t last) {
    std::vector<BestKeys> found(kShared, BestKeys(top));
    for (int64_t i = first; i < last; ++i) {
      const int64_t b = i / groups / H, h = i / groups % H, begin = i % groups * kShared;
      const int64_t count = std::min(kShared, C - begin);
      const uint8_t* valid = mask.defined() ? mask.data<uint8_t>() + b * T : nullptr;
      count_multiply_adds(count * T * K);
      for (int64_t t = 0; t < T; ++t) {
        if (valid != nullptr && valid[t] == 0) continue;
        const double* key = others.data<double>() + ((b * T + t) * H + h) * K;
        for (int64_t c = 0; c < count; ++c) {
          const double* mean = rows.data<double>() + ((b * C + begin + c) * H + h) * K;
          const double score = dot_row(mean, key, K);
          found[static_cast<size_t>(c)].offer(
              std::isnan(score) ? -std::numeric_limits<double>::infinity() : score,
              static_cast<int32_t>(t));
        }
      }
      for (int64_t c = 0; c < count; ++c) {
        found[static_cast<size_t>(c)].take(best.data<int32_t>() +
                                           ((b * H + h) * C + begin + c) * top);
      }
    }
  });
  return best;
}

Tensor top_keys_hidden(const Tensor& top, int64_t T) {
  const int64_t count = top.size(3);
  const Shape shape{top.size(0), top.size(1), top.size(2), T};
  if constexpr (kCuda) {
    if (on_cuda(top)) {
      const Tensor bias = Tensor::empty(shape, DType::f32, top.device());
      cuda::top_keys_hidden(top, bias);
      return bias;
    }
  }
  const Tensor bias = Tensor::zeros(shape);
  for (int64_t i = 0; i < top.elements(); ++i) {
    const int32_t key = top.data<int32_t>()[i];
    if (key < 0 || key >= T) continue;
    bias.data<float>()[i / count * T + key] = -std::numeric_limits<float>::infinity();
  }
  return bias;
}

Tensor top_keys_of_queries(const Tensor& top, const Tensor& clusters) {
  const int64_t T = clusters.size(1);
  const Tensor index =
      Tensor::empty({top.size(0), top.size(1), T, top.size(3)}, DType::i32, top.device());
  if constexpr (kCuda) {
    if (on_cuda(top)) {
      cuda::top_keys_of_queries(top, clusters, index);
      return index;
    }
  }
  const cluster_rule::QueryLists lists{T,           top.size(1),         top.size(2),
                                       top.size(3), top.data<int32_t>(), clusters.data<int32_t>()};
  fill_elements<int32_t>(index, kGrain, [&](int64_t i) { return lists.key(i); });
  return index;
}

}  // namespace linnet
