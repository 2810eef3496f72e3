// Shared by the functions on Variables: tensors in the computing type and views of them. For the
// .cpp files of primitives and of mechanisms that have operations of their own.
#pragma once

#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#include "autograd/variable.h"
#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/error.h"
#include "core/sequence_view.h"

namespace linnet::binding {

// f64 is computed in f64, f32 and bf16 in f32.
inline DType computing_type(const Variable& x) {
  return x.dtype() == DType::f64 ? DType::f64 : DType::f32;
}

// The type in which a call's sequences are kept: the computing type of the first; on a CUDA device
// bf16 where all that are defined are, else f32. Throws Error, naming the primitive, for f64 there,
// and for tensors of different devices.
inline DType storage_type(std::initializer_list<const Variable*> inputs, const char* primitive) {
  const Variable& first = **inputs.begin();
  if (!on_cuda(first.value())) return computing_type(first);
  DType dtype = DType::bf16;
  for (const Variable* x : inputs) {
    if (!x->defined()) continue;
    require(x->value().device() == first.value().device() &&
                (x->dtype() == DType::f32 || x->dtype() == DType::bf16),
            primitive,
            ": a CUDA device has kernels for f32 and bf16 tensors that are all on it, got ",
            name_of(x->dtype()), " on ", name_of(x->value().device()), "; use --device cpu");
    if (x->dtype() != DType::bf16) dtype = DType::f32;
  }
  return dtype;
}

// Calls compute(T{}) with the computing type.
template <typename Compute>
void dispatch(DType dtype, const Compute& compute) {
  dtype == DType::f64 ? compute(double{}) : compute(float{});
}

// Undefined stays undefined. Throws Error, naming the primitive, for dtypes that it cannot compute
// with.
inline Tensor converted(const Variable& x, DType dtype, const char* primitive, Device device = {}) {
  if (!x.defined()) return Tensor();
  require(is_floating(x.dtype()) && x.value().device() == device, primitive,
          ": expected floating tensors on ", name_of(device), ", got ", name_of(x.dtype()), " on ",
          name_of(x.value().device()));
  return x.value().to(dtype);
}

inline Tensor empty_like(const Tensor& x) {
  return x.defined() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
}

template <typename T>
T* pointer(const Tensor& x) {
  return x.defined() ? x.data<std::remove_const_t<T>>() : nullptr;
}

// A dense [B,T,H,K], or an empty view; ranks are checked by check_sequence.
template <typename T>
SequenceView<T> view_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {x.data<T>(), x.size(0), x.size(1), x.size(2), x.size(3)};
}

inline void check_sequence(const Tensor& x, const char* primitive) {
  require(!x.defined() || x.shape().rank() == 4, primitive, ": expected [B,T,H,width], got ",
          x.defined() ? x.shape() : Shape());
}

// The sizes of x [B,T,H,K] for checks; nothing is read through it. Empty where undefined.
template <typename T = float>
SequenceView<const T> sizes_of(const Tensor& x) {
  if (!x.defined()) return {};
  return {static_cast<const T*>(x.raw()), x.size(0), x.size(1), x.size(2), x.size(3)};
}

// A view for kernels of the CPU; of a tensor on a device for checks, as sizes_of.
template <typename T>
SequenceView<const T> operand(const Tensor& x) {
  return on_cuda(x) ? sizes_of<T>(x) : SequenceView<const T>(view_of<T>(x));
}
// The elements of an optional tensor beside q for kernels of the CPU; null where q is on a device.
// Throws Error where x alone is on one, or is not of T.
template <typename T>
T* host_pointer(const Tensor& x, const Tensor& q) {
  return on_cuda(q) ? nullptr : pointer<T>(x);
}

inline void check_shape(const Tensor& x, const Shape& expected, const char* primitive,
                        const char* name) {
  require(!x.defined() || x.shape() == expected, primitive, ": expected ", name, " ", expected,
          ", got ", x.defined() ? x.shape() : Shape());
}

// x, where defined, has the first `count` dimensions of a sequence: 2 for masks, 3 for one value
// per head.
inline void check_leading(const Tensor& x, const Tensor& sequence, int count, const char* primitive,
                          const char* name) {
  if (!x.defined() || !sequence.defined()) return;
  check_shape(x, Shape(sequence.shape().sizes().first(static_cast<size_t>(count))), primitive,
              name);
}

// The spans of a sequence [B,T,...] whose segments [B,T] may be undefined, or on a device: then
// they are copied, and the host waits for them.
inline std::vector<Span> spans_of(const Tensor& segments, const Tensor& sequence, bool has_state) {
  const Tensor on_host = segments.defined() ? segments.to(Device{}) : segments;
  return make_spans(pointer<int32_t>(on_host), sequence.size(0), sequence.size(1), has_state);
}

inline Tensor output_or_none(Gradients& gradients, size_t output) {
  return gradients.has_output(output) ? gradients.output(output) : Tensor();
}

// Adds the gradient of every input in order; undefined ones are left out.
inline void add_all(Gradients& gradients, std::initializer_list<Tensor> tensors) {
  size_t input = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.defined()) gradients.add(input, tensor);
    ++input;
  }
}

// Where an operation writes the gradients of its inputs: into the inputs' own buffers where these
// take them as they are (later terms of a leaf are copied), otherwise into tensors that finish()
// passes on. All of them must be overwritten before that.
class InputGradients {
 public:
  explicit InputGradients(Gradients& gradients) : gradients_(gradients) {}

  // For that input, of the shape and dtype of `like`; undefined where `like` is.
  Tensor tensor(size_t input, const Tensor& like) {
    if (!like.defined()) return Tensor();
    GradientTarget target = gradients_.target(input);
    const bool direct = target.mode == GradientWrite::overwrite &&
                        target.buffer.dtype() == like.dtype() &&
                        target.buffer.shape() == like.shape();
    if (direct) return target.buffer;
    const Tensor own = empty_like(like);
    if (target.mode != GradientWrite::ignore) waiting_.push_back({std::move(target), own});
    return own;
  }

  void finish() const {
    for (const auto& [target, own] : waiting_) {
      if (target.mode == GradientWrite::overwrite) {
        target.buffer.copy_from(own);
      } else {
        add_into(target.buffer, own);
      }
    }
  }

 private:
  struct Waiting {
    GradientTarget target;
    Tensor own;
  };
  Gradients& gradients_;
  std::vector<Waiting> waiting_;
};

}  // namespace linnet::binding
