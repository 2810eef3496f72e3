// What slot attention on Variables is made of: its tensors in the types that kernels take, checks,
// views, gradients. Internal to slot_attention.cpp and slot_write_weights_variable.cpp.
#pragma once

#include <type_traits>
#include <vector>

#include "attention/primitives/cuda/slot_attention.h"
#include "attention/primitives/slot_attention.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet::slot_attention_detail {

// Tensors in the computing type (memories at least f32, mass f64).
using Arrays = cuda::SlotTensors;

// f64 where the first is; else f32, or, on a CUDA device, bf16 where all are.
inline DType computing_type(std::initializer_list<Variable> inputs) {
  const Variable& first = *inputs.begin();
  if (!on_cuda(first.value())) return first.dtype() == DType::f64 ? DType::f64 : DType::f32;
  for (const Variable& x : inputs) {
    require(x.dtype() == DType::f32 || x.dtype() == DType::bf16,
            "slot attention: a CUDA device has kernels for f32 and bf16, not for ",
            name_of(x.dtype()), "; use --device cpu");
    if (x.dtype() != DType::bf16) return DType::f32;
  }
  return DType::bf16;
}
inline DType memory_type(DType computing) {
  return computing == DType::bf16 ? DType::f32 : computing;
}

inline Tensor converted(const Variable& x, DType dtype, Device device) {
  if (!x.defined()) return Tensor();
  require(is_floating(x.dtype()) && x.value().device() == device,
          "slot attention: expected floating tensors on ", name_of(device), ", got ",
          name_of(x.dtype()), " on ", name_of(x.value().device()));
  return x.value().to(dtype);
}
// Control logits; a CUDA device reads them as they are.
inline Tensor converted_logits(const Variable& x, DType dtype, Device device) {
  const bool as_is = device.kind == DeviceKind::cuda && x.dtype() == DType::bf16;
  return converted(x, as_is ? DType::bf16 : memory_type(dtype), device);
}

inline Tensor empty_like(const Tensor& x) {
  return x.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
}

template <typename T>
T* pointer(const Tensor& x) {
  return x.defined() ? x.data<std::remove_const_t<T>>() : nullptr;
}

// Sizes alone: nothing is read through it.
inline SequenceView<const float> sizes_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {static_cast<const float*>(x.raw()), x.size(0), x.size(1), x.size(2), x.size(3)};
}

template <typename T>
SequenceView<T> view_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {x.data<T>(), x.size(0), x.size(1), x.size(2), x.size(3)};
}

template <typename E>
SlotAttentionState<E> state_of(const Tensor& keys, const Tensor& values, const Tensor& mass) {
  return {pointer<E>(keys), pointer<E>(values), pointer<double>(mass)};
}

inline const uint8_t* mask_of(const Tensor& mask) {
  return mask.defined() ? mask.data<uint8_t>() : nullptr;
}

template <typename T>
SlotAttentionInputs<T> bind(const Arrays& arrays, const SlotAttentionContext& context) {
  SlotAttentionInputs<T> in;
  in.q = view_of<T>(arrays.q);
  in.k = view_of<T>(arrays.k);
  in.v = view_of<T>(arrays.v);
  in.logits = view_of<T>(arrays.logits);
  in.query_mask = mask_of(context.query_mask);
  in.key_mask = mask_of(context.key_mask);
  return in;
}

inline void check_tokens(const Tensor& x, const Tensor& sequence, const char* name) {
  if (!x.defined() || !sequence.defined()) return;
  const Shape expected({sequence.size(0), sequence.size(1)});
  require(x.shape() == expected, "slot attention: expected ", name, " ", expected, ", got ",
          x.shape());
}

inline void check_inputs(const Arrays& arrays, const SlotAttentionContext& context) {
  for (const Tensor* x : {&arrays.q, &arrays.k, &arrays.v, &arrays.logits}) {
    require(!x->defined() || x->shape().rank() == 4, "slot attention: expected [B,T,H,width], got ",
            x->defined() ? x->shape() : Shape());
  }
  check_tokens(context.query_mask, arrays.q, "query_mask");
  check_tokens(context.key_mask, arrays.k, "key_mask");
  check_tokens(context.segments, arrays.q, "segments");
  check_tokens(context.segments, arrays.k, "segments");
}

inline void check_memory(const Arrays& arrays, int64_t count, int64_t H, int64_t N, int64_t K,
                         int64_t V) {
  const Shape keys({count, H, N, K});
  require(arrays.keys.shape() == keys && arrays.values.defined() && arrays.mass.defined() &&
              arrays.values.shape() == Shape({count, H, N, V}) &&
              arrays.mass.shape() == Shape({count, H, N}),
          "slot attention: expected a memory with keys ", keys,
          ", values and mass to match, got keys ", arrays.keys.shape());
}

// The same checks that the CPU's kernels make.
inline void check_sizes(const Arrays& arrays, const SlotAttentionOptions& options, int64_t H,
                        int64_t N, int64_t K, int64_t V) {
  SlotAttentionInputs<float> sizes;
  sizes.q = sizes_of(arrays.q);
  sizes.k = sizes_of(arrays.k);
  sizes.v = sizes_of(arrays.v);
  sizes.logits = sizes_of(arrays.logits);
  check_slot_attention(options, sizes, H, N, K, V);
}

inline std::vector<Span> spans_of(const SlotAttentionContext& context, const Tensor& sequence,
                                  bool has_state) {
  const Tensor segments =
      context.segments.defined() ? context.segments.to(Device{}) : context.segments;
  return make_spans(segments.defined() ? segments.data<int32_t>() : nullptr, sequence.size(0),
                    sequence.size(1), has_state);
}

inline Arrays all_like(const Arrays& x) {
  return {empty_like(x.q),    empty_like(x.k),      empty_like(x.v),   empty_like(x.logits),
          empty_like(x.keys), empty_like(x.values), empty_like(x.mass)};
}

// Memories to be written: their keys, values and mass.
inline Arrays memory_of(int64_t count, int64_t H, int64_t N, int64_t K, int64_t V, DType dtype,
                        Device device) {
  const DType wide = memory_type(dtype);
  Arrays out;
  out.keys = Tensor::empty({count, H, N, K}, wide, device);
  out.values = Tensor::empty({count, H, N, V}, wide, device);
  out.mass = Tensor::empty({count, H, N}, DType::f64, device);
  return out;
}

// Calls compute(T{}) with the computing type.
template <typename Compute>
inline void dispatch(DType dtype, const Compute& compute) {
  dtype == DType::f64 ? compute(double{}) : compute(float{});
}

template <typename T>
SlotAttentionGradients<T> gradients_of(const Arrays& d) {
  return {view_of<T>(d.q), view_of<T>(d.k), view_of<T>(d.v), view_of<T>(d.logits)};
}

inline void add_all(Gradients& gradients, std::initializer_list<Tensor> tensors) {
  size_t input = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) gradients.add(input, tensor);
    ++input;
  }
}

inline Tensor output_or_none(Gradients& gradients, size_t output) {
  return gradients.has_output(output) ? gradients.output(output) : Tensor();
}

// The gradients of a memory whose keys are output number `first`; undefined where not used.
inline Arrays memory_gradients(Gradients& gradients, size_t first) {
  Arrays out;
  out.keys = output_or_none(gradients, first);
  out.values = output_or_none(gradients, first + 1);
  out.mass = output_or_none(gradients, first + 2);
  return out;
}

// Weights normalised at writing, f32 or wider, and the mass after the last token.
std::vector<Variable> write_weights(const Variable& logits, const Variable& mass,
                                    const SlotAttentionContext& context);
// 1 for every slot that was written, 0 for empty ones.
Variable used_slots(const Variable& mass, const SlotAttentionOptions& options);

}  // namespace linnet::slot_attention_detail
