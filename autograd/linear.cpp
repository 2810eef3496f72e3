#include "autograd/linear.h"

#include "core/cuda/backend.h"
#include "core/elementwise.h"
#include "core/gemm.h"

namespace linnet {

void gemm_gradient(Gradients& gradients, size_t input, const Tensor& a, bool transpose_a,
                   const Tensor& b, bool transpose_b) {
  const GradientTarget target = gradients.target(input);
  if (target.mode == GradientWrite::ignore) return;
  gemm(a, Transpose{transpose_a}, b, Transpose{transpose_b}, target.buffer, 1,
       target.mode == GradientWrite::accumulate ? 1 : 0);
}

namespace {

// y = act(x w^T + bias); `before`, where defined, receives x w^T + bias. A GPU's product adds the
// bias in its epilogue, and applies GELU where it can; the CPU adds the bias in the pass of the
// activation.
void affine(const Tensor& x, const Tensor& weight, const Tensor& bias, Activation activation,
            const Tensor& before, const Tensor& y) {
  if (activation == Activation::gelu_tanh &&
      gemm_gelu_tanh(x, Transpose::no, weight, Transpose::yes, y, bias, before)) {
    return;
  }
  const Tensor& sums = before.defined() ? before : y;
  const bool added = bias.defined() && on_cuda(y);
  if (added) {
    gemm_bias(x, Transpose::no, weight, Transpose::yes, sums, bias);
  } else {
    gemm(x, Transpose::no, weight, Transpose::yes, sums);
  }
  const bool left = bias.defined() && !added;
  if (activation == Activation::none) {
    if (left) add_row_into(y, bias);
  } else if (left) {
    bias_activation_forward(sums, bias, activation, y);
  } else {
    activation_forward(sums, activation, y);
  }
}

// The gradients of weight (input `weight` of the operation) and bias (input `weight` + 1) of
// x w^T + bias, from the gradient of the result.
void parameter_gradients(Gradients& gradients, size_t weight, const Tensor& dy, const Tensor& x) {
  const GradientTarget db = gradients.target(weight + 1);
  const bool accumulate = db.mode == GradientWrite::accumulate;
  if (db.mode == GradientWrite::ignore) return gemm_gradient(gradients, weight, dy, true, x, false);
  const GradientTarget dw = gradients.target(weight);
  if (dw.mode == GradientWrite::ignore) return sum_rows(dy, db.buffer, accumulate);
  gemm_row_sums(dy, x, dw.buffer, dw.mode == GradientWrite::accumulate ? 1 : 0, db.buffer,
                accumulate);
}

// An empty result of x w^T.
Tensor result_of(const Variable& x, const Variable& weight) {
  require(weight.shape().rank() == 2 && x.size(-1) == weight.size(1), "linear: x ", x.shape(),
          " does not fit weight ", weight.shape(), " (out, in)");
  return Tensor::empty(x.shape().with(-1, weight.size(0)), x.dtype(), x.value().device());
}

Tensor value_or_none(const Variable& x) {
  return x.defined() ? x.value() : Tensor();
}

}  // namespace

Variable linear(const Variable& x, const Variable& weight, const Variable& bias,
                Activation activation) {
  const Tensor y = result_of(x, weight);
  struct Saved {
    Tensor x, weight, before_activation;
  } saved;
  if (needs_grad({x, weight, bias})) {
    saved = {x.value(), weight.value(), {}};
    if (activation != Activation::none) {
      saved.before_activation = Tensor::empty(y.shape(), y.dtype(), y.device());
    }
  }
  affine(x.value(), weight.value(), value_or_none(bias), activation, saved.before_activation, y);
  return record("linear", y, {x, weight, bias}, [saved, activation](Gradients& gradients) {
    Tensor dy = gradients.output();
    if (activation != Activation::none) {
      const Tensor before = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
      activation_backward(saved.before_activation, dy, activation, before);
      dy = before;
    }
    gemm_gradient(gradients, 0, dy, false, saved.weight, false);
    parameter_gradients(gradients, 1, dy, saved.x);
  });
}

Variable gelu_tanh_feed_forward(const Variable& x, const Variable& in_weight,
                                const Variable& in_bias, const Variable& out_weight,
                                const Variable& out_bias) {
  constexpr Activation kGelu = Activation::gelu_tanh;
  const std::vector<Variable> inputs{x, in_weight, in_bias, out_weight, out_bias};
  if (!needs_grad(inputs)) {
    return linear(linear(x, in_weight, in_bias, kGelu), out_weight, out_bias);
  }
  const Tensor before = result_of(x, in_weight);
  const Variable hidden(Tensor::empty(before.shape(), before.dtype(), before.device()));
  affine(x.value(), in_weight.value(), value_or_none(in_bias), kGelu, before, hidden.value());
  const Tensor y = result_of(hidden, out_weight);
  affine(hidden.value(), out_weight.value(), value_or_none(out_bias), Activation::none, {}, y);
  return record(
      "gelu_tanh_feed_forward", y, inputs,
      [x = x.value(), w_in = in_weight.value(), w_out = out_weight.value(), before,
       hidden = hidden.value()](Gradients& gradients) {
        const Tensor& dy = gradients.output();
        parameter_gradients(gradients, 3, dy, hidden);
        const Tensor d = Tensor::empty(before.shape(), before.dtype(), before.device());
        if (!gemm_gelu_tanh_backward(dy, Transpose::no, w_out, Transpose::no, d, before)) {
          gemm(dy, Transpose::no, w_out, Transpose::no, d);
          activation_backward(before, d, kGelu, d);
        }
        parameter_gradients(gradients, 1, d, x);
        gemm_gradient(gradients, 0, d, false, w_in, false);
      });
}

}  // namespace linnet
