#include "attention/common/joint/block_bias.h"

#include <algorithm>
#include <cmath>

#include "attention/common/joint/cuda/block_bias.h"
#include "attention/primitives/common/fill_elements.h"
#include "autograd/arithmetic.h"
#include "autograd/indexing.h"
#include "autograd/layout.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;

// i32 [rows * T * length]: the numbers of the distances of queries and the places of their lists.
Tensor distances_of(const KeyLists& rule, int64_t rows, int64_t T, const Tensor& documents,
                    Device device) {
  const Tensor index = Tensor::empty({rows * T * rule.length}, DType::i32, device);
  const PlaceDistances distances{
      rule, T, documents.defined() ? static_cast<const int32_t*>(documents.raw()) : nullptr};
  if constexpr (kCuda) {
    if (on_cuda(index)) {
      cuda::number_distances(distances, index);
      return index;
    }
  }
  fill_elements<int32_t>(index, kGrain, [&](int64_t i) { return distances.number(i); });
  return index;
}

}  // namespace

int64_t t5_bucket(int64_t distance, bool causal, int64_t buckets, int64_t farthest) {
  const int64_t side = causal ? buckets : buckets / 2, exact = side / 2;
  const int64_t far = causal ? std::max<int64_t>(-distance, 0) : std::abs(distance);
  const int64_t first = !causal && distance > 0 ? side : 0;
  if (far < exact) return first + far;
  const double ratio = std::log(static_cast<double>(far) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(farthest) / static_cast<double>(exact));
  const auto steps = static_cast<int64_t>(ratio * static_cast<double>(side - exact));
  return first + std::min(exact + steps, side - 1);
}

BlockDistances block_distances(const KeyLists& rule) {
  return {1 - rule.size - rule.before, rule.size - 1 + rule.length};
}

Variable block_bias(const Variable& values, const KeyLists& rule, int64_t T,
                    const Tensor& documents) {
  const int64_t count = block_distances(rule).count, H = values.size(1);
  require(rule.kind == KeyLists::Kind::block && values.size(0) == count,
          "block_bias: expected values of ", count, " distances, got ", values.shape());
  const int64_t rows = documents.defined() ? documents.size(0) : 1;
  const Tensor index = distances_of(rule, rows, T, documents, values.value().device());
  const Variable bias = reshape(gather(values, index), {rows, T, rule.length, H});
  return H == 1 ? reshape(bias, {rows, 1, T, rule.length}) : permute(bias, {0, 3, 1, 2});
}

}  // namespace linnet
