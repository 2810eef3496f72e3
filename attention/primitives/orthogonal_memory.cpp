// The orthogonal memory on Variables: conversion of dtypes, what backward saves.
#include "attention/primitives/orthogonal_memory.h"

#include "core/error.h"

namespace linnet {
namespace {

// Tensors in the computing type.
struct Arrays {
  Tensor q, f, basis, completed, partial, counts;
};

template <typename T>
SequenceView<T> view_of(const Tensor& x) {
  require(x.shape().rank() == 4, "orthogonal memory: expected [B,T,H,d], got ", x.shape());
  return {x.data<T>(), x.size(0), x.size(1), x.size(2), x.size(3)};
}

void require_shape(const Tensor& x, const Shape& shape, const char* name) {
  require(!x.defined() || x.shape() == shape, "orthogonal memory: expected ", name, " ", shape,
          ", got ", x.shape());
}

template <typename T>
OrthogonalMemoryInputs<T> bind(const Arrays& arrays, const OrthogonalMemoryContext& context) {
  OrthogonalMemoryInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.f = view_of<T>(arrays.f);
  const int64_t B = in.q.B, length = in.q.T, H = in.q.H, d = in.q.K;
  in.basis = arrays.basis.data<T>();
  if (context.options.shared) {
    in.rank = arrays.basis.size(0);
    in.basis_head_stride = d;
    in.basis_row_stride = H * d;
    require_shape(arrays.basis, {in.rank, H * d}, "basis");
  } else {
    in.rank = arrays.basis.size(1);
    in.basis_head_stride = in.rank * d;
    in.basis_row_stride = d;
    require_shape(arrays.basis, {H, in.rank, d}, "basis");
  }
  require_shape(context.query_mask, {B, length}, "query_mask");
  require_shape(context.code_mask, {B, in.f.T}, "code_mask");
  if (context.query_mask.defined()) in.query_mask = context.query_mask.data<uint8_t>();
  if (context.code_mask.defined()) in.code_mask = context.code_mask.data<uint8_t>();
  if (arrays.completed.defined()) {
    const Shape sums({B, context.options.shared ? 1 : H, in.rank});
    require(arrays.partial.defined() && arrays.counts.defined(),
            "orthogonal memory: a carried state needs completed, partial and counts");
    require_shape(arrays.completed, sums, "completed");
    require_shape(arrays.partial, sums, "partial");
    require_shape(arrays.counts, {B, 2}, "counts");
    in.state = {arrays.completed.data<T>(), arrays.partial.data<T>(),
                arrays.counts.data<int64_t>()};
  }
  const int32_t* segments = nullptr;
  std::vector<int64_t> starts(static_cast<size_t>(B), context.time_offset);
  if (!context.cross) {
    require_shape(context.segments, {B, length}, "segments");
    require_shape(context.positions, {B, length}, "positions");
    if (context.segments.defined()) segments = context.segments.data<int32_t>();
    for (int64_t b = 0; context.positions.defined() && length > 0 && b < B; ++b) {
      starts[b] = context.positions.data<int32_t>()[b * length];
    }
  }
  in.spans = make_spans(segments, B, length, arrays.completed.defined(), starts.data());
  return in;
}

void run_backward(const Arrays& arrays, const OrthogonalMemoryContext& context,
                  Gradients& gradients) {
  const DType dtype = arrays.q.dtype();
  const auto like = [&](const Tensor& x) {
    return x.defined() ? Tensor::empty(x.shape(), dtype) : Tensor();
  };
  const Tensor dy = gradients.output(0).to(dtype);
  const Tensor dcompleted_out = gradients.has_output(1) ? gradients.output(1) : Tensor();
  const Tensor dpartial_out = gradients.has_output(2) ? gradients.output(2) : Tensor();
  const Tensor d[] = {like(arrays.q), like(arrays.f), like(arrays.basis), like(arrays.completed),
                      like(arrays.partial)};
  const auto compute = [&](auto zero) {
    using T = decltype(zero);
    const auto data = [](const Tensor& x) { return x.defined() ? x.data<T>() : nullptr; };
    OrthogonalMemoryGradients<T> out;
    out.dq = view_of<T>(d[0]);
    out.df = view_of<T>(d[1]);
    out.dbasis = data(d[2]);
    out.dcompleted = data(d[3]);
    out.dpartial = data(d[4]);
    orthogonal_memory_backward<T>(bind<T>(arrays, context), context.options, view_of<T>(dy),
                                  data(dcompleted_out), data(dpartial_out), out);
  };
  dtype == DType::f64 ? compute(double{}) : compute(float{});
  for (size_t i = 0; i < 5; ++i) {
    if (d[i].defined()) gradients.add(i, d[i]);
  }
}

}  // namespace

OrthogonalMemoryResult orthogonal_memory(const Variable& q, const Variable& f,
                                         const Variable& basis, const OrthogonalMemoryCarry& carry,
                                         const OrthogonalMemoryContext& given) {
  const DType dtype = q.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const auto converted = [dtype](const Variable& x) {
    if (!x.defined()) return Tensor();
    require(is_floating(x.dtype()) && x.value().device() == Device{},
            "orthogonal memory: expected floating tensors on the CPU");
    return x.value().to(dtype);
  };
  const Arrays arrays{converted(q),
                      converted(f),
                      converted(basis),
                      converted(carry.completed),
                      converted(carry.partial),
                      carry.counts};
  OrthogonalMemoryContext context = given;
  const size_t basis_rank = arrays.basis.shape().rank();
  require(basis_rank == 2 || basis_rank == 3,
          "orthogonal memory: expected a basis [H,r,d] or [r,H*d], got ", arrays.basis.shape());
  context.options.shared = basis_rank == 2;
  const int64_t B = arrays.q.size(0), length = arrays.q.size(1);
  const Tensor y = Tensor::empty(arrays.q.shape(), dtype);
  const Shape sums({B, context.options.shared ? 1 : arrays.q.size(2),
                    arrays.basis.size(context.options.shared ? 0 : 1)});
  const Tensor completed = Tensor::empty(sums, dtype), partial = Tensor::empty(sums, dtype);
  OrthogonalMemoryResult result;
  result.carry.counts = Tensor::empty({B, 2}, DType::i64);
  result.memory_tokens = Tensor::empty({B, length}, DType::i64);
  const auto compute = [&](auto zero) {
    using T = decltype(zero);
    const OrthogonalMemoryInputs<T> in = bind<T>(arrays, context);
    orthogonal_memory_forward<T>(
        in, context.options, view_of<T>(y),
        {completed.data<T>(), partial.data<T>(), result.carry.counts.data<int64_t>()});
    orthogonal_memory_counts<T>(in, context.options, result.memory_tokens.data<int64_t>());
  };
  dtype == DType::f64 ? compute(double{}) : compute(float{});
  const std::vector<Variable> outputs = record_many(
      "orthogonal_memory", {y.to(q.dtype()), completed, partial},
      {q, f, basis, carry.completed, carry.partial},
      [arrays, context](Gradients& gradients) { run_backward(arrays, context, gradients); });
  result.y = outputs[0];
  result.carry.completed = outputs[1];
  result.carry.partial = outputs[2];
  return result;
}

}  // namespace linnet
