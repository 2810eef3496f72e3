// The orthogonal memory on Variables: conversion of dtypes, what backward saves.
#include "attention/primitives/orthogonal_memory.h"

#include "attention/primitives/cuda/orthogonal_memory.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet {
namespace {

// Tensors as kernels read them: in the computing type, but q and f on a device as they are stored.
using Arrays = cuda::OrthogonalMemoryArrays;

template <typename T>
SequenceView<T> view_of(const Tensor& x) {
  require(x.shape().rank() == 4, "orthogonal memory: expected [B,T,H,d], got ", x.shape());
  return {x.data<T>(), x.size(0), x.size(1), x.size(2), x.size(3)};
}

void require_shape(const Tensor& x, const Shape& shape, const char* name) {
  require(!x.defined() || x.shape() == shape, "orthogonal memory: expected ", name, " ", shape,
          ", got ", x.shape());
}

void check_inputs(const Arrays& arrays, const OrthogonalMemoryContext& context) {
  for (const Tensor* x : {&arrays.q, &arrays.f}) {
    require(x->shape().rank() == 4, "orthogonal memory: expected [B,T,H,d], got ", x->shape());
  }
  const int64_t B = arrays.q.size(0), length = arrays.q.size(1);
  const int64_t H = arrays.q.size(2), d = arrays.q.size(3);
  const bool shared = context.options.shared;
  const int64_t rank = arrays.basis.size(shared ? 0 : 1);
  require_shape(arrays.basis, shared ? Shape{rank, H * d} : Shape{H, rank, d}, "basis");
  require_shape(context.query_mask, {B, length}, "query_mask");
  require_shape(context.code_mask, {B, arrays.f.size(1)}, "code_mask");
  if (arrays.completed.defined()) {
    const Shape sums({B, shared ? 1 : H, rank});
    require(arrays.partial.defined() && arrays.counts.defined(),
            "orthogonal memory: a carried state needs completed, partial and counts");
    require_shape(arrays.completed, sums, "completed");
    require_shape(arrays.partial, sums, "partial");
    require_shape(arrays.counts, {B, 2}, "counts");
  }
  if (context.cross) return;
  require_shape(context.segments, {B, length}, "segments");
  require_shape(context.positions, {B, length}, "positions");
}

template <typename T>
OrthogonalMemoryInputs<T> bind(const Arrays& arrays, const OrthogonalMemoryContext& context) {
  OrthogonalMemoryInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.f = view_of<T>(arrays.f);
  const int64_t B = in.q.B, length = in.q.T, H = in.q.H, d = in.q.K;
  const bool shared = context.options.shared;
  in.basis = arrays.basis.data<T>();
  in.rank = arrays.basis.size(shared ? 0 : 1);
  in.basis_head_stride = shared ? d : in.rank * d;
  in.basis_row_stride = shared ? H * d : d;
  if (context.query_mask.defined()) in.query_mask = context.query_mask.data<uint8_t>();
  if (context.code_mask.defined()) in.code_mask = context.code_mask.data<uint8_t>();
  if (arrays.completed.defined()) {
    in.state = {arrays.completed.data<T>(), arrays.partial.data<T>(),
                arrays.counts.data<int64_t>()};
  }
  const int32_t* segments = nullptr;
  std::vector<int64_t> starts(static_cast<size_t>(B), context.time_offset);
  if (!context.cross) {
    if (context.segments.defined()) segments = context.segments.data<int32_t>();
    for (int64_t b = 0; context.positions.defined() && length > 0 && b < B; ++b) {
      starts[b] = context.positions.data<int32_t>()[b * length];
    }
  }
  in.spans = make_spans(segments, B, length, arrays.completed.defined(), starts.data());
  return in;
}

void run_forward(const Arrays& arrays, const OrthogonalMemoryContext& context, const Tensor& y,
                 const Arrays& state_out, const Tensor& memory_tokens) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::orthogonal_memory_forward(context, arrays, y, state_out, memory_tokens);
    }
  }
  const auto compute = [&](auto zero) {
    using T = decltype(zero);
    const OrthogonalMemoryInputs<T> in = bind<T>(arrays, context);
    orthogonal_memory_forward<T>(in, context.options, view_of<T>(y),
                                 {state_out.completed.data<T>(), state_out.partial.data<T>(),
                                  state_out.counts.data<int64_t>()});
    orthogonal_memory_counts<T>(in, context.options, memory_tokens.data<int64_t>());
  };
  y.dtype() == DType::f64 ? compute(double{}) : compute(float{});
}

void run_backward(const Arrays& arrays, const OrthogonalMemoryContext& context, const Tensor& dy,
                  const Tensor& dcompleted_out, const Tensor& dpartial_out, const Arrays& d) {
  if constexpr (kCuda) {
    if (on_cuda(dy)) {
      return cuda::orthogonal_memory_backward(context, arrays, dy, dcompleted_out, dpartial_out, d);
    }
  }
  const auto compute = [&](auto zero) {
    using T = decltype(zero);
    const auto data = [](const Tensor& x) { return x.defined() ? x.data<T>() : nullptr; };
    OrthogonalMemoryGradients<T> out;
    out.dq = view_of<T>(d.q);
    out.df = view_of<T>(d.f);
    out.dbasis = data(d.basis);
    out.dcompleted = data(d.completed);
    out.dpartial = data(d.partial);
    orthogonal_memory_backward<T>(bind<T>(arrays, context), context.options, view_of<T>(dy),
                                  data(dcompleted_out), data(dpartial_out), out);
  };
  dy.dtype() == DType::f64 ? compute(double{}) : compute(float{});
}

}  // namespace

OrthogonalMemoryResult orthogonal_memory(const Variable& q, const Variable& f,
                                         const Variable& basis, const OrthogonalMemoryCarry& carry,
                                         const OrthogonalMemoryContext& given) {
  const DType dtype = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Device device = q.value().device();
  const bool stored = on_cuda(q.value());
  const auto converted = [dtype, device](const Variable& x) {
    if (!x.defined()) return Tensor();
    require(is_floating(x.dtype()) && x.value().device() == device,
            "orthogonal memory: expected floating tensors on ", name_of(device));
    return x.value().to(dtype);
  };
  const Arrays arrays{
      stored ? q.value() : converted(q), stored ? f.value() : converted(f), converted(basis),
      converted(carry.completed),        converted(carry.partial),          carry.counts};
  OrthogonalMemoryContext context = given;
  const size_t basis_rank = arrays.basis.shape().rank();
  require(basis_rank == 2 || basis_rank == 3,
          "orthogonal memory: expected a basis [H,r,d] or [r,H*d], got ", arrays.basis.shape());
  context.options.shared = basis_rank == 2;
  check_inputs(arrays, context);
  const int64_t B = arrays.q.size(0), length = arrays.q.size(1);
  const Tensor y = Tensor::empty(arrays.q.shape(), arrays.q.dtype(), device);
  const Shape sums({B, context.options.shared ? 1 : arrays.q.size(2),
                    arrays.basis.size(context.options.shared ? 0 : 1)});
  Arrays state;
  state.completed = Tensor::empty(sums, dtype, device);
  state.partial = Tensor::empty(sums, dtype, device);
  state.counts = Tensor::empty({B, 2}, DType::i64, device);
  const Tensor memory_tokens = Tensor::empty({B, length}, DType::i64, device);
  run_forward(arrays, context, y, state, memory_tokens);
  const auto back = [arrays, context, dtype](Gradients& gradients) {
    const auto like = [](const Tensor& x) {
      return x.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
    };
    const Tensor& seed = gradients.output(0);
    const Tensor dy = on_cuda(seed) ? seed : seed.to(dtype);
    const Tensor dcompleted = gradients.has_output(1) ? gradients.output(1) : Tensor();
    const Tensor dpartial = gradients.has_output(2) ? gradients.output(2) : Tensor();
    const Arrays d{like(arrays.q),         like(arrays.f),       like(arrays.basis),
                   like(arrays.completed), like(arrays.partial), {}};
    run_backward(arrays, context, dy, dcompleted, dpartial, d);
    size_t input = 0;
    for (const Tensor& gradient : {d.q, d.f, d.basis, d.completed, d.partial}) {
      if (gradient.defined()) gradients.add(input, gradient);
      ++input;
    }
  };
  const std::vector<Variable> outputs =
      record_many("orthogonal_memory", {y.to(q.dtype()), state.completed, state.partial},
                  {q, f, basis, carry.completed, carry.partial}, back);
  OrthogonalMemoryResult result;
  result.y = outputs[0];
  result.carry = {outputs[1], outputs[2], state.counts};
  result.memory_tokens = memory_tokens;
  return result;
}

}  // namespace linnet
