// The orthogonal memory on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/orthogonal_memory/cuda/orthogonal_memory.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "orthogonal memory";

// Tensors as kernels read them: in the computing type, but q and f on a device as they are stored.
using Arrays = cuda::OrthogonalMemoryArrays;

void require_shape(const Tensor& x, const Shape& shape, const char* name) {
  require(!x.defined() || x.shape() == shape, "orthogonal memory: expected ", name, " ", shape,
          ", got ", x.shape());
}

void check_inputs(const Arrays& arrays, const OrthogonalMemoryContext& context) {
  check_sequence(arrays.q, kName);
  check_sequence(arrays.f, kName);
  const int64_t B = arrays.q.size(0), length = arrays.q.size(1);
  const int64_t H = arrays.q.size(2), d = arrays.q.size(3);
  const bool shared = context.options.shared;
  const int64_t rank = arrays.basis.size(shared ? 0 : 1);
  require_shape(arrays.basis, shared ? Shape{rank, H * d} : Shape{H, rank, d}, "basis");
  require_shape(context.query_mask, {B, length}, "query_mask");
  require_shape(context.code_mask, {B, arrays.f.size(1)}, "code_mask");
  require_shape(context.place.examples, {B}, "examples");
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
  in.query_mask = pointer<uint8_t>(context.query_mask);
  in.code_mask = pointer<uint8_t>(context.code_mask);
  if (arrays.completed.defined()) {
    in.state = {arrays.completed.data<T>(), arrays.partial.data<T>(),
                arrays.counts.data<int64_t>()};
  }
  in.examples = pointer<int64_t>(context.place.examples);
  in.time_offset = context.place.time_offset;
  const int32_t* segments = nullptr;
  std::vector<int64_t> starts(static_cast<size_t>(B), context.place.time_offset);
  if (!context.cross) {
    segments = pointer<int32_t>(context.segments);
    for (int64_t b = 0; context.positions.defined() && length > 0 && b < B; ++b) {
      starts[b] = context.positions.data<int32_t>()[b * length];
    }
  }
  in.spans = make_spans(segments, B, length, arrays.completed.defined(), starts.data());
  return in;
}

cuda::OrthogonalMemorySaved run_forward(const Arrays& arrays,
                                        const OrthogonalMemoryContext& context, const Tensor& y,
                                        const Arrays& state_out, const Tensor& memory_tokens) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::orthogonal_memory_forward(context, arrays, y, state_out, memory_tokens);
    }
  }
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const OrthogonalMemoryInputs<T> in = bind<T>(arrays, context);
    orthogonal_memory_forward<T>(in, context.options, view_of<T>(y),
                                 {state_out.completed.data<T>(), state_out.partial.data<T>(),
                                  state_out.counts.data<int64_t>()});
    orthogonal_memory_counts<T>(in, context.options, memory_tokens.data<int64_t>());
  });
  return {};
}

void run_backward(const Arrays& arrays, const OrthogonalMemoryContext& context,
                  const cuda::OrthogonalMemorySaved& saved, const Tensor& dy,
                  const Tensor& dcompleted_out, const Tensor& dpartial_out, const Arrays& d) {
  if constexpr (kCuda) {
    if (on_cuda(dy)) {
      return cuda::orthogonal_memory_backward(context, arrays, saved, dy, dcompleted_out,
                                              dpartial_out, d);
    }
  }
  dispatch(dy.dtype(), [&](auto zero) {
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
}

}  // namespace

OrthogonalMemoryResult orthogonal_memory(const Variable& q, const Variable& f,
                                         const Variable& basis, const OrthogonalMemoryCarry& carry,
                                         const OrthogonalMemoryContext& given) {
  const DType dtype = computing_type(q);
  const Device device = q.value().device();
  const bool stored = on_cuda(q.value());
  const auto array = [dtype, device](const Variable& x) {
    return converted(x, dtype, kName, device);
  };
  const Arrays arrays{stored ? q.value() : array(q), stored ? f.value() : array(f), array(basis),
                      array(carry.completed),        array(carry.partial),          carry.counts};
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
  const cuda::OrthogonalMemorySaved saved = run_forward(arrays, context, y, state, memory_tokens);
  const auto back = [arrays, context, saved, dtype](Gradients& gradients) {
    const Tensor& seed = gradients.output(0);
    const Tensor dy = on_cuda(seed) ? seed : seed.to(dtype);
    const Arrays d{empty_like(arrays.q),       empty_like(arrays.f),
                   empty_like(arrays.basis),   empty_like(arrays.completed),
                   empty_like(arrays.partial), {}};
    run_backward(arrays, context, saved, dy, output_or_none(gradients, 1),
                 output_or_none(gradients, 2), d);
    add_all(gradients, {d.q, d.f, d.basis, d.completed, d.partial});
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
