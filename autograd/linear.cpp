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

// y = act(x w^T + bias), and `before`, where defined, what the activation is taken of. A GPU's
// product adds the bias itself, and takes GELU where it can; the CPU adds the bias in the pass of
// the activation.
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

}  // namespace

Variable linear(const Variable& x, const Variable& weight, const Variable& bias,
                Activation activation) {
  require(weight.shape().rank() == 2 && x.size(-1) == weight.size(1), "linear: x ", x.shape(),
          " does not fit weight ", weight.shape(), " (out, in)");
  std::vector<int64_t> sizes = x.shape().sizes();
  sizes.back() = weight.size(0);
  const Tensor y = Tensor::empty(Shape(sizes), x.dtype(), x.value().device());
  struct Saved {
    Tensor x, weight, before_activation;
  } saved;
  if (needs_grad({x, weight, bias})) {
    saved = {x.value(), weight.value(), {}};
    if (activation != Activation::none) {
      saved.before_activation = Tensor::empty(y.shape(), y.dtype(), y.device());
    }
  }
  affine(x.value(), weight.value(), bias.defined() ? bias.value() : Tensor(), activation,
         saved.before_activation, y);
  return record("linear", y, {x, weight, bias}, [saved, activation](Gradients& gradients) {
    Tensor dy = gradients.output();
    if (activation != Activation::none) {
      const Tensor before = Tensor::empty(dy.shape(), dy.dtype(), dy.device());
      activation_backward(saved.before_activation, dy, activation, before);
      dy = before;
    }
    gemm_gradient(gradients, 0, dy, false, saved.weight, false);
    const GradientTarget db = gradients.target(2);
    const bool accumulate = db.mode == GradientWrite::accumulate;
    if (db.mode == GradientWrite::ignore) {
      gemm_gradient(gradients, 1, dy, true, saved.x, false);
    } else if (const GradientTarget dw = gradients.target(1); dw.mode == GradientWrite::ignore) {
      sum_rows(dy, db.buffer, accumulate);
    } else {
      gemm_row_sums(dy, saved.x, dw.buffer, dw.mode == GradientWrite::accumulate ? 1 : 0, db.buffer,
                    accumulate);
    }
  });
}

}  // namespace linnet
