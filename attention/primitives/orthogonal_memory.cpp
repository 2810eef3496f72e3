// The orthogonal memory on Variables: conversion of dtypes, what backward saves.
#include "attention/primitives/orthogonal_memory.h"

#include "attention/primitives/binding.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "orthogonal memory";

// Tensors in the computing type.
struct Arrays {
  Tensor q, f, basis, completed, partial, counts;
};

void require_shape(const Tensor& x, const Shape& shape, const char* name) {
  require(!x.defined() || x.shape() == shape, "orthogonal memory: expected ", name, " ", shape,
          ", got ", x.shape());
}

template <typename T>
OrthogonalMemoryInputs<T> bind(const Arrays& arrays, const OrthogonalMemoryContext& context) {
  OrthogonalMemoryInputs<T> in;
  check_sequence(arrays.q, kName);
  check_sequence(arrays.f, kName);
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
  in.query_mask = pointer<uint8_t>(context.query_mask);
  in.code_mask = pointer<uint8_t>(context.code_mask);
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
    segments = pointer<int32_t>(context.segments);
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
  const Tensor dy = gradients.output(0).to(dtype);
  const Tensor dcompleted_out = output_or_none(gradients, 1);
  const Tensor dpartial_out = output_or_none(gradients, 2);
  const Arrays d{empty_like(arrays.q),         empty_like(arrays.f),       empty_like(arrays.basis),
                 empty_like(arrays.completed), empty_like(arrays.partial), {}};
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    OrthogonalMemoryGradients<T> out;
    out.dq = view_of<T>(d.q);
    out.df = view_of<T>(d.f);
    out.dbasis = pointer<T>(d.basis);
    out.dcompleted = pointer<T>(d.completed);
    out.dpartial = pointer<T>(d.partial);
    orthogonal_memory_backward<T>(bind<T>(arrays, context), context.options, view_of<T>(dy),
                                  pointer<T>(dcompleted_out), pointer<T>(dpartial_out), out);
  });
  add_all(gradients, {d.q, d.f, d.basis, d.completed, d.partial});
}

}  // namespace

OrthogonalMemoryResult orthogonal_memory(const Variable& q, const Variable& f,
                                         const Variable& basis, const OrthogonalMemoryCarry& carry,
                                         const OrthogonalMemoryContext& given) {
  const DType dtype = computing_type(q);
  const auto array = [dtype](const Variable& x) { return converted(x, dtype, kName); };
  const Arrays arrays{
      array(q), array(f), array(basis), array(carry.completed), array(carry.partial), carry.counts};
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
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const OrthogonalMemoryInputs<T> in = bind<T>(arrays, context);
    orthogonal_memory_forward<T>(
        in, context.options, view_of<T>(y),
        {completed.data<T>(), partial.data<T>(), result.carry.counts.data<int64_t>()});
    orthogonal_memory_counts<T>(in, context.options, result.memory_tokens.data<int64_t>());
  });
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
