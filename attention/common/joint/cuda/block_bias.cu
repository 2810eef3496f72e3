#include "attention/common/joint/cuda/block_bias.h"

#include "attention/common/joint/block_bias_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

block_bias_rule::Places places_of(const KeyLists& rule, const Tensor& bias, int64_t distances,
                                  const Tensor& documents) {
  return {rule,         bias.size(2), bias.size(0),
          bias.size(1), distances,    pointer_or_null<int32_t>(documents)};
}

}  // namespace

void block_bias(const Tensor& values, const KeyLists& rule, const Tensor& documents,
                const Tensor& bias) {
  const block_bias_rule::Places places = places_of(rule, bias, values.size(0), documents);
  const float* from = pointer<float>(values);
  float* to = pointer<float>(bias);
  for_each("block_bias", bias.elements(),
           [=] __device__(int64_t i) { to[i] = places.bias(from, i); });
}

void block_bias_backward(const Tensor& dbias, const KeyLists& rule, const Tensor& documents,
                         const Tensor& dvalues) {
  const block_bias_rule::Places places = places_of(rule, dbias, dvalues.size(0), documents);
  const float* from = pointer<float>(dbias);
  float* to = pointer<float>(dvalues);
  for_each("block_bias_dvalues", dvalues.elements(),
           [=] __device__(int64_t i) { to[i] = places.dvalue(from, i); });
}

}  // namespace linnet::cuda
