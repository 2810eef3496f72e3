// Listed attention on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/listed_attention/listed_attention.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/listed_attention/cuda/listed_attention.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "listed attention";

// Tensors in the computing type, in the order in which they are recorded.
struct ListedArrays {
  Tensor q, k, v, bias;
};

template <typename T>
ListedAttentionInputs<T> bind(const ListedArrays& arrays, const ListedAttentionContext& context) {
  ListedAttentionInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.k = view_of<T>(arrays.k);
  in.v = view_of<T>(arrays.v);
  const Tensor& index = context.index;
  require(index.defined() && index.dtype() == DType::i32 && index.shape().rank() == 4, kName,
          ": expected an i32 index [rows, heads, lists, length], got ",
          index.defined() ? index.shape() : Shape());
  in.index = index.data<int32_t>();
  in.index_rows = index.size(0);
  in.index_heads = index.size(1);
  in.lists = index.size(2);
  in.length = index.size(3);
  if (arrays.bias.defined()) {
    const Shape& shape = arrays.bias.shape();
    require(shape.rank() == 4 && shape[2] == in.q.T && shape[3] == in.length, kName,
            ": expected bias [rows, heads, ", in.q.T, ", ", in.length, "], got ", shape);
    in.bias = arrays.bias.data<T>();
    in.bias_rows = shape[0];
    in.bias_heads = shape[1];
  }
  check_shape(context.query_mask, {in.q.B, in.q.T}, kName, "query_mask");
  in.query_mask = pointer<uint8_t>(context.query_mask);
  check_shape(context.key_mask, {in.q.B, in.k.T}, kName, "key_mask");
  in.key_mask = pointer<uint8_t>(context.key_mask);
  if (const Tensor& examples = context.place.examples; examples.defined()) {
    require(examples.elements() == in.q.B, kName, ": expected an example number for each of ",
            in.q.B, " rows, got ", examples.elements());
    in.example_ids = examples.data<int64_t>();
  }
  in.time_offset = context.place.time_offset;
  return in;
}

void run_backward(const ListedArrays& arrays, const ListedAttentionContext& context,
                  const Tensor& y, const Tensor& log_sum_exp, Gradients& gradients) {
  const Tensor dy = gradients.output(0).to(y.dtype());
  const Tensor dlse = output_or_none(gradients, 1);
  const ListedArrays d{empty_like(arrays.q), empty_like(arrays.k), empty_like(arrays.v),
                       gradients.wanted(3) ? empty_like(arrays.bias) : Tensor()};
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    listed_attention_backward<T>(
        bind<T>(arrays, context), context.options, view_of<T>(y), log_sum_exp.data<T>(),
        view_of<T>(dy), pointer<T>(dlse),
        {view_of<T>(d.q), view_of<T>(d.k), view_of<T>(d.v), pointer<T>(d.bias)});
  });
  add_all(gradients, {d.q, d.k, d.v, d.bias});
}

}  // namespace

ListedAttentionResult listed_attention(const ListedAttentionVariables& inputs,
                                       const ListedAttentionContext& context) {
  if constexpr (kCuda) {
    if (on_cuda(inputs.q.value())) return cuda::listed_attention(inputs, context);
  }
  const DType dtype = computing_type(inputs.q);
  const auto array = [&](const Variable& x) { return converted(x, dtype, kName); };
  const ListedArrays arrays{array(inputs.q), array(inputs.k), array(inputs.v), array(inputs.bias)};
  for (const Tensor* x : {&arrays.q, &arrays.k, &arrays.v}) {
    require(x->defined(), kName, ": expected q, k and v");
    check_sequence(*x, kName);
  }
  const int64_t B = arrays.q.size(0), length = arrays.q.size(1), H = arrays.q.size(2);
  const Tensor y = Tensor::empty({B, length, H, arrays.v.size(3)}, dtype);
  const Tensor log_sum_exp = Tensor::empty({B, length, H}, dtype);
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    listed_attention_forward<T>(bind<T>(arrays, context), context.options, view_of<T>(y),
                                log_sum_exp.data<T>());
  });
  const std::vector<Variable> results =
      record_many("listed_attention", {y.to(inputs.q.dtype()), log_sum_exp},
                  {inputs.q, inputs.k, inputs.v, inputs.bias},
                  [arrays, context, y, log_sum_exp](Gradients& gradients) {
                    run_backward(arrays, context, y, log_sum_exp, gradients);
                  });
  return {results[0], results[1]};
}

}  // namespace linnet
