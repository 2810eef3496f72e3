// Listed attention on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/listed_attention/listed_attention.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/listed_attention/cuda/listed_attention.h"
#include "attention/primitives/listed_attention/cuda/path.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "listed attention";

// On a device for checks: nothing is read through it.
template <typename T>
ListedAttentionInputs<T> bind(const ListedAttentionTensors& tensors,
                              const ListedAttentionContext& context) {
  ListedAttentionInputs<T> in;
  in.q = operand<T>(tensors.q);
  in.k = operand<T>(tensors.k);
  in.v = operand<T>(tensors.v);
  const Tensor& index = context.index;
  require(index.defined() && index.dtype() == DType::i32 && index.shape().rank() == 4, kName,
          ": expected an i32 index [rows, heads, lists, length], got ",
          index.defined() ? index.shape() : Shape());
  require(index.device() == tensors.q.device(), kName,
          ": expected an i32 index [rows, heads, lists, length] on ", name_of(tensors.q.device()));
  in.index = host_pointer<int32_t>(index, tensors.q);
  in.index_rows = index.size(0);
  in.index_heads = index.size(1);
  in.lists = index.size(2);
  in.length = index.size(3);
  if (tensors.bias.defined()) {
    const Shape& shape = tensors.bias.shape();
    require(shape.rank() == 4 && shape[2] == in.q.T && shape[3] == in.length, kName,
            ": expected bias [rows, heads, ", in.q.T, ", ", in.length, "], got ", shape);
    in.bias = host_pointer<T>(tensors.bias, tensors.q);
    in.bias_rows = shape[0];
    in.bias_heads = shape[1];
  }
  check_shape(context.query_mask, {in.q.B, in.q.T}, kName, "query_mask");
  in.query_mask = host_pointer<uint8_t>(context.query_mask, tensors.q);
  check_shape(context.key_mask, {in.q.B, in.k.T}, kName, "key_mask");
  in.key_mask = host_pointer<uint8_t>(context.key_mask, tensors.q);
  if (const Tensor& examples = context.place.examples; examples.defined()) {
    require(examples.elements() == in.q.B, kName, ": expected an example number for each of ",
            in.q.B, " rows, got ", examples.elements());
    in.example_ids = host_pointer<int64_t>(examples, tensors.q);
  }
  in.time_offset = context.place.time_offset;
  return in;
}

ListedAttentionTensors tensors_of(const ListedAttentionVariables& inputs,
                                  const ListedAttentionContext& context) {
  const DType dtype = storage_type({&inputs.q, &inputs.k, &inputs.v}, kName);
  const Device device = inputs.q.value().device();
  const auto kept = [&](const Variable& x) { return converted(x, dtype, kName, device); };
  ListedAttentionTensors in{kept(inputs.q), kept(inputs.k), kept(inputs.v),
                            converted(inputs.bias, computing_type(inputs.q), kName, device)};
  for (const Tensor* x : {&in.q, &in.k, &in.v}) {
    require(x->defined(), kName, ": expected q, k and v");
    check_sequence(*x, kName);
  }
  if constexpr (kCuda) {
    if (on_cuda(in.q)) {
      check_listed_attention(bind<float>(in, context), context.options);
      in.path = call_path(cuda::listed_attention_is_fast(context, in));
    }
  }
  return in;
}

void forward(const ListedAttentionTensors& in, const ListedAttentionContext& context,
             const Tensor& y, const Tensor& log_sum_exp) {
  if constexpr (kCuda) {
    if (on_cuda(y)) return cuda::listed_attention_forward(in, context, y, log_sum_exp);
  }
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    listed_attention_forward<T>(bind<T>(in, context), context.options, view_of<T>(y),
                                log_sum_exp.data<T>());
  });
}

void backward(const ListedAttentionTensors& in, const ListedAttentionContext& context,
              const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
              const Tensor& dlog_sum_exp, const ListedAttentionTensors& d) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::listed_attention_backward(in, context, y, log_sum_exp, dy, dlog_sum_exp, d);
    }
  }
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    listed_attention_backward<T>(
        bind<T>(in, context), context.options, view_of<T>(y), log_sum_exp.data<T>(), view_of<T>(dy),
        pointer<T>(dlog_sum_exp),
        {view_of<T>(d.q), view_of<T>(d.k), view_of<T>(d.v), pointer<T>(d.bias)});
  });
}

}  // namespace

ListedAttentionResult listed_attention(const ListedAttentionVariables& inputs,
                                       const ListedAttentionContext& context) {
  const ListedAttentionTensors in = tensors_of(inputs, context);
  const Device device = in.q.device();
  const int64_t B = in.q.size(0), length = in.q.size(1), H = in.q.size(2);
  const Tensor y = Tensor::empty({B, length, H, in.v.size(3)}, in.q.dtype(), device);
  const Tensor log_sum_exp = Tensor::empty({B, length, H}, computing_type(inputs.q), device);
  forward(in, context, y, log_sum_exp);
  const std::vector<Variable> results = record_many(
      "listed_attention", {y.to(inputs.q.dtype()), log_sum_exp},
      {inputs.q, inputs.k, inputs.v, inputs.bias},
      [in, context, y, log_sum_exp](Gradients& gradients) {
        const ListedAttentionTensors d{empty_like(in.q), empty_like(in.k), empty_like(in.v),
                                       gradients.wanted(3) ? empty_like(in.bias) : Tensor()};
        backward(in, context, y, log_sum_exp, gradients.output(0).to(y.dtype()),
                 output_or_none(gradients, 1), d);
        add_all(gradients, {d.q, d.k, d.v, d.bias});
      });
  return {results[0], results[1]};
}

}  // namespace linnet
