// The orthogonal memory on Variables: conversion of dtypes, tensors saved for backward.
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/orthogonal_memory/cuda/orthogonal_memory.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using namespace binding;

constexpr const char* kName = "orthogonal memory";

using Tensors = OrthogonalMemoryTensors;

void require_shape(const Tensor& x, const Shape& shape, const char* name) {
  require(!x.defined() || x.shape() == shape, "orthogonal memory: expected ", name, " ", shape,
          ", got ", x.shape());
}

void check_inputs(const Tensors& in, const OrthogonalMemoryContext& context) {
  check_sequence(in.q, kName);
  check_sequence(in.f, kName);
  const int64_t B = in.q.size(0), length = in.q.size(1);
  const int64_t H = in.q.size(2), d = in.q.size(3);
  const bool shared = context.options.shared;
  const int64_t rank = in.basis.size(shared ? 0 : 1);
  require_shape(in.basis, shared ? Shape{rank, H * d} : Shape{H, rank, d}, "basis");
  require_shape(context.query_mask, {B, length}, "query_mask");
  require_shape(context.code_mask, {B, in.f.size(1)}, "code_mask");
  require_shape(context.place.examples, {B}, "examples");
  if (in.completed.defined()) {
    const Shape sums({B, shared ? 1 : H, rank});
    require(in.partial.defined() && in.counts.defined(),
            "orthogonal memory: a carried state needs completed, partial and counts");
    require_shape(in.completed, sums, "completed");
    require_shape(in.partial, sums, "partial");
    require_shape(in.counts, {B, 2}, "counts");
  }
  if (context.cross) return;
  require_shape(context.segments, {B, length}, "segments");
  require_shape(context.positions, {B, length}, "positions");
}

template <typename T>
OrthogonalMemoryInputs<T> bind(const Tensors& tensors, const OrthogonalMemoryContext& context) {
  OrthogonalMemoryInputs<T> in;
  in.q = view_of<T>(tensors.q);
  in.f = view_of<T>(tensors.f);
  const int64_t B = in.q.B, length = in.q.T, H = in.q.H, d = in.q.K;
  const bool shared = context.options.shared;
  in.basis = tensors.basis.data<T>();
  in.rank = tensors.basis.size(shared ? 0 : 1);
  in.basis_head_stride = shared ? d : in.rank * d;
  in.basis_row_stride = shared ? H * d : d;
  in.query_mask = pointer<uint8_t>(context.query_mask);
  in.code_mask = pointer<uint8_t>(context.code_mask);
  if (tensors.completed.defined()) {
    in.state = {tensors.completed.data<T>(), tensors.partial.data<T>(),
                tensors.counts.data<int64_t>()};
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
  in.spans = make_spans(segments, B, length, tensors.completed.defined(), starts.data());
  return in;
}

OrthogonalMemorySaved run_forward(const Tensors& in, const OrthogonalMemoryContext& context,
                                  const Tensor& y, const Tensors& state_out,
                                  const Tensor& memory_tokens) {
  if constexpr (kCuda) {
    if (on_cuda(y)) {
      return cuda::orthogonal_memory_forward(context, in, y, state_out, memory_tokens);
    }
  }
  dispatch(y.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const OrthogonalMemoryInputs<T> inputs = bind<T>(in, context);
    orthogonal_memory_forward<T>(inputs, context.options, view_of<T>(y),
                                 {state_out.completed.data<T>(), state_out.partial.data<T>(),
                                  state_out.counts.data<int64_t>()});
    orthogonal_memory_counts<T>(inputs, context.options, memory_tokens.data<int64_t>());
  });
  return {};
}

void run_backward(const Tensors& in, const OrthogonalMemoryContext& context,
                  const OrthogonalMemorySaved& saved, const Tensor& dy,
                  const Tensor& dcompleted_out, const Tensor& dpartial_out, const Tensors& d) {
  if constexpr (kCuda) {
    if (on_cuda(dy)) {
      return cuda::orthogonal_memory_backward(context, in, saved, dy, dcompleted_out, dpartial_out,
                                              d);
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
    orthogonal_memory_backward<T>(bind<T>(in, context), context.options, view_of<T>(dy),
                                  pointer<T>(dcompleted_out), pointer<T>(dpartial_out), out);
  });
}

}  // namespace

OrthogonalMemoryResult orthogonal_memory(const Variable& q, const Variable& f,
                                         const Variable& basis, const OrthogonalMemoryCarry& carry,
                                         const OrthogonalMemoryContext& given) {
  const DType kept = storage_type({&q, &f}, kName), dtype = computing_type(q);
  const Device device = q.value().device();
  const auto tensor = [device](const Variable& x, DType type) {
    return converted(x, type, kName, device);
  };
  const Tensors in{tensor(q, kept),
                   tensor(f, kept),
                   tensor(basis, dtype),
                   tensor(carry.completed, dtype),
                   tensor(carry.partial, dtype),
                   carry.counts};
  OrthogonalMemoryContext context = given;
  const size_t basis_rank = in.basis.shape().rank();
  require(basis_rank == 2 || basis_rank == 3,
          "orthogonal memory: expected a basis [H,r,d] or [r,H*d], got ", in.basis.shape());
  context.options.shared = basis_rank == 2;
  check_inputs(in, context);
  const int64_t B = in.q.size(0), length = in.q.size(1);
  const Tensor y = Tensor::empty(in.q.shape(), in.q.dtype(), device);
  const Shape sums({B, context.options.shared ? 1 : in.q.size(2),
                    in.basis.size(context.options.shared ? 0 : 1)});
  Tensors state;
  state.completed = Tensor::empty(sums, dtype, device);
  state.partial = Tensor::empty(sums, dtype, device);
  state.counts = Tensor::empty({B, 2}, DType::i64, device);
  const Tensor memory_tokens = Tensor::empty({B, length}, DType::i64, device);
  const OrthogonalMemorySaved saved = run_forward(in, context, y, state, memory_tokens);
  const auto back = [in, context, saved, kept](Gradients& gradients) {
    const Tensor dy = gradients.output(0).to(kept);
    const Tensors d{empty_like(in.q),         empty_like(in.f),       empty_like(in.basis),
                    empty_like(in.completed), empty_like(in.partial), {}};
    run_backward(in, context, saved, dy, output_or_none(gradients, 1), output_or_none(gradients, 2),
                 d);
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
