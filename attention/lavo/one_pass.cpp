// LAVO's one pass on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/lavo/one_pass.h"

#include "attention/lavo/cuda/lavo_pass.h"
#include "attention/primitives/common/binding.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "lavo in one pass";

// Inputs in the computing type; sums as forward leaves them.
struct Arrays {
  Tensor q, k, v, basis, bias, before, codes, weights, projections;
};

template <typename T>
LavoPassInputs<T> bind(const Arrays& arrays, const LavoPassContext& context) {
  LavoPassInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.k = view_of<T>(arrays.k);
  in.v = view_of<T>(arrays.v);
  in.basis = arrays.basis.data<T>();
  in.rank = arrays.basis.size(1);
  in.bias = pointer<T>(arrays.bias);
  in.bias_heads = arrays.bias.defined() ? arrays.bias.size(0) : 0;
  const int64_t B = in.q.B, length = in.q.T;
  std::vector<int64_t> starts(static_cast<size_t>(B), context.place.time_offset);
  for (int64_t b = 0; context.positions.defined() && length > 0 && b < B; ++b) {
    starts[b] = context.positions.data<int32_t>()[b * length];
  }
  in.spans = make_spans(pointer<int32_t>(context.segments), B, length, false, starts.data());
  return in;
}

void check_shapes(const LavoPassVariables& inputs, const LavoPassContext& context) {
  const Tensor& q = inputs.q.value();
  check_sequence(q, kName);
  const int64_t H = q.size(2), d = q.size(3), distances = 2 * context.options.window - 1;
  const Shape& basis = inputs.basis.shape();
  require(basis.rank() == 3 && basis == Shape({H, basis[1], d}), kName, ": expected a basis [", H,
          ",r,", d, "], got ", basis);
  if (inputs.bias.defined()) {
    const Shape& shape = inputs.bias.shape();
    require(shape.rank() == 2 && (shape[0] == 1 || shape[0] == H) && shape[1] == distances, kName,
            ": expected a bias [", H, " or 1,", distances, "], got ", shape);
  }
  check_leading(context.segments, q, 2, kName, "segments");
  check_leading(context.positions, q, 2, kName, "positions");
  check_leading(context.mask, q, 2, kName, "mask");
}

void run_backward(const Arrays& arrays, const LavoPassContext& context, Gradients& gradients) {
  const DType dtype = arrays.q.dtype();
  const Tensor dy = gradients.output(0).to(dtype);
  const Tensor dcompleted = output_or_none(gradients, 1), dpartial = output_or_none(gradients, 2);
  InputGradients to(gradients);
  const Arrays d{to.tensor(0, arrays.q),
                 to.tensor(1, arrays.k),
                 to.tensor(2, arrays.v),
                 gradients.wanted(3) ? to.tensor(3, arrays.basis) : Tensor(),
                 to.tensor(4, arrays.bias),
                 {},
                 {},
                 {},
                 {}};
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    lavo_pass_backward<T>(bind<T>(arrays, context), context.options,
                          {arrays.before.data<T>(), arrays.codes.data<T>(),
                           arrays.weights.data<T>(), arrays.projections.data<T>()},
                          view_of<T>(dy), pointer<T>(dcompleted), pointer<T>(dpartial),
                          {view_of<T>(d.q), view_of<T>(d.k), view_of<T>(d.v), pointer<T>(d.basis),
                           pointer<T>(d.bias)});
  });
  to.finish();
}

}  // namespace

bool lavo_pass_fits(const LavoPassVariables& inputs, const LavoPassContext& context) {
  if constexpr (kCuda) {
    if (on_cuda(inputs.q.value())) return cuda::lavo_pass_fits(inputs, context);
  }
  const Shape& shape = inputs.q.shape();
  return !on_cuda(inputs.q.value()) && !context.mask.defined() && context.options.dropout == 0 &&
         inputs.k.shape() == shape && inputs.v.shape() == shape &&
         inputs.basis.shape().rank() == 3 && context.options.window <= kLavoPassWindow &&
         shape[0] * shape[2] >= thread_count();
}

LavoPassResult lavo_pass(const LavoPassVariables& inputs, const LavoPassContext& context) {
  check_shapes(inputs, context);
  if constexpr (kCuda) {
    if (on_cuda(inputs.q.value())) return cuda::lavo_pass(inputs, context);
  }
  require(!context.mask.defined() && context.options.dropout == 0, kName,
          ": a mask and dropout are for CUDA devices only");
  const DType dtype = computing_type(inputs.q);
  const auto array = [dtype](const Variable& x) { return converted(x, dtype, kName); };
  Arrays arrays{array(inputs.q),
                array(inputs.k),
                array(inputs.v),
                array(inputs.basis),
                array(inputs.bias),
                {},
                {},
                {},
                {}};
  const int64_t B = arrays.q.size(0), H = arrays.q.size(2), rank = arrays.basis.size(1);
  const Tensor y = Tensor::empty(arrays.q.shape(), dtype);
  const Tensor completed = Tensor::empty({B, H, rank}, dtype);
  const Tensor partial = Tensor::empty({B, H, rank}, dtype);
  const Tensor counts = Tensor::empty({B, 2}, DType::i64);
  const std::vector<Variable> differentiable = {inputs.q, inputs.k, inputs.v, inputs.basis,
                                                inputs.bias};
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const LavoPassInputs<T> in = bind<T>(arrays, context);
    const LavoPassSizes sizes = lavo_pass_sizes(in, context.options);
    arrays.before = Tensor::empty({sizes.windows, H, rank}, dtype);
    arrays.codes = Tensor::empty({sizes.windows, H, arrays.q.size(3)}, dtype);
    if (needs_grad(differentiable)) {
      arrays.weights = Tensor::empty({sizes.weights}, dtype);
      arrays.projections = Tensor::empty({sizes.projections}, dtype);
    }
    lavo_pass_forward<T>(in, context.options, view_of<T>(y),
                         {arrays.before.data<T>(), arrays.codes.data<T>(),
                          pointer<T>(arrays.weights), pointer<T>(arrays.projections)},
                         {completed.data<T>(), partial.data<T>(), counts.data<int64_t>()});
  });
  // Fused: each block of the memory is compressed, written and read in one pass over the tokens.
  const std::vector<Variable> outputs = record_many(
      "lavo_pass", {y.to(inputs.q.dtype()), completed, partial}, differentiable,
      [arrays, context](Gradients& gradients) { run_backward(arrays, context, gradients); });
  return {outputs[0], {outputs[1], outputs[2], counts}};
}

}  // namespace linnet
