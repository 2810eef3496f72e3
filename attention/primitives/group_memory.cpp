// Group memory on Variables: conversion of dtypes, what backward saves.
#include "attention/primitives/group_memory.h"

#include "attention/primitives/block_attention_binding.h"
#include "attention/primitives/cuda/group_memory.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "group memory";

}  // namespace

GroupMemoryResult group_memory(const BlockAttentionVariables& inputs, const Variable& memory,
                               const BlockAttentionContext& context,
                               const GroupMemoryOptions& options) {
  require(!context.cross && !inputs.bias.defined(), kName,
          ": expected self-attention without a bias");
  require(memory.defined() == inputs.past_k.defined(), kName,
          ": a memory comes with the carried keys of its open group (which may be none)");
  if constexpr (kCuda) {
    if (on_cuda(inputs.q.value())) return cuda::group_memory(inputs, memory, context, options);
  }
  const DType dtype = computing_type(inputs.q);
  const BlockAttentionArrays arrays = block_attention_arrays(inputs, dtype, kName);
  const Tensor before = converted(memory, dtype, kName);
  const int64_t B = arrays.q.size(0), length = arrays.q.size(1), H = arrays.q.size(2);
  const int64_t G = arrays.k.size(2), K = arrays.q.size(3), V = arrays.v.size(3);
  const Shape shape{B, G, K, V};
  require(!before.defined() || before.shape() == shape, kName, ": expected a memory ", shape,
          ", got ", before.defined() ? before.shape() : Shape());
  const Tensor y = Tensor::empty({B, length, H, V}, dtype), after = Tensor::empty(shape, dtype);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    group_memory_forward<T>(bind_block_attention<T>(arrays, context), options, pointer<T>(before),
                            view_of<T>(y), after.data<T>());
  });
  std::vector<Variable> results = record_many(
      "group_memory", {y.to(inputs.q.dtype()), after},
      {inputs.q, inputs.k, inputs.v, inputs.past_k, inputs.past_v, memory},
      [arrays, before, context, options, dtype](Gradients& gradients) {
        const Tensor dy = gradients.output(0).to(dtype);
        const Tensor dafter = output_or_none(gradients, 1);
        const BlockAttentionArrays d = empty_like(arrays);
        const Tensor dbefore = empty_like(before);
        dispatch(dtype, [&](auto zero) {
          using T = decltype(zero);
          group_memory_backward<T>(bind_block_attention<T>(arrays, context), options,
                                   pointer<T>(before), view_of<T>(dy), pointer<T>(dafter),
                                   block_attention_gradients<T>(d), pointer<T>(dbefore));
        });
        add_all(gradients, {d.q, d.k, d.v, d.past_k, d.past_v, dbefore});
      });
  return {results[0], results[1]};
}

}  // namespace linnet
