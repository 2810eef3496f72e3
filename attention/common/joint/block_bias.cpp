#include "attention/common/joint/block_bias.h"

#include <algorithm>
#include <cmath>

#include "attention/common/joint/block_bias_rule.h"
#include "attention/common/joint/cuda/block_bias.h"
#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 256;

using block_bias_rule::Places;

Places places_of(const KeyLists& rule, const Shape& bias, int64_t distances,
                 const Tensor& documents) {
  return {rule, bias[2], bias[0], bias[1], distances, binding::pointer<int32_t>(documents)};
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
  const Tensor& table = values.value();
  const int64_t count = block_distances(rule).count, H = table.size(1);
  require(rule.kind == KeyLists::Kind::block && table.size(0) == count,
          "block_bias: expected values of ", count, " distances, got ", table.shape());
  const int64_t rows = documents.defined() ? documents.size(0) : 1;
  const Tensor bias = Tensor::empty({rows, H, T, rule.length}, table.dtype(), table.device());
  if constexpr (kCuda) {
    if (on_cuda(bias)) cuda::block_bias(table, rule, documents, bias);
  }
  if (!kCuda || !on_cuda(bias)) {
    const Places places = places_of(rule, bias.shape(), count, documents);
    binding::dispatch(table.dtype(), [&](auto zero) {
      using Number = decltype(zero);
      fill_elements<Number>(bias, kGrain,
                            [&](int64_t i) { return places.bias(table.data<Number>(), i); });
    });
  }
  return record(
      "block_bias", bias, {values}, [rule, documents, shape = table.shape()](Gradients& gradients) {
        const Tensor& d = gradients.output();
        const Tensor dvalues = Tensor::empty(shape, d.dtype(), d.device());
        if constexpr (kCuda) {
          if (on_cuda(d)) cuda::block_bias_backward(d, rule, documents, dvalues);
        }
        if (!kCuda || !on_cuda(d)) {
          const Places places = places_of(rule, d.shape(), shape[0], documents);
          binding::dispatch(d.dtype(), [&](auto zero) {
            using Number = decltype(zero);
            fill_elements<Number>(dvalues, kGrain,
                                  [&](int64_t i) { return places.dvalue(d.data<Number>(), i); });
          });
        }
        gradients.add(0, dvalues);
      });
}

}  // namespace linnet
