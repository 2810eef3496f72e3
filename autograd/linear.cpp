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

Variable linear(const Variable& x, const Variable& weight, const Variable& bias,
                Activation activation) {
  require(weight.shape().rank() == 2 && x.size(-1) == weight.size(1), "linear: x ", x.shape(),
          " does not fit weight ", weight.shape(), " (out, in)");
  std::vector<int64_t> sizes = x.shape().sizes();
  sizes.back() = weight.size(0);
  Tensor y = Tensor::empty(Shape(sizes), x.dtype(), x.value().device());
  // A GPU's product adds the bias itself; the CPU adds it in the pass of the activation.
  const bool added = bias.defined() && on_cuda(y);
  if (added) {
    gemm_bias(x.value(), Transpose::no, weight.value(), Transpose::yes, y, bias.value());
  } else {
    gemm(x.value(), Transpose::no, weight.value(), Transpose::yes, y);
  }
  const Tensor left = bias.defined() && !added ? bias.value() : Tensor();
  struct Saved {
    Tensor x, weight, before_activation;
  } saved;
  const bool recorded = needs_grad({x, weight, bias});
  if (recorded) saved = {x.value(), weight.value(), {}};
  if (activation == Activation::none) {
    if (left.defined()) add_row_into(y, left);
  } else {
    const Tensor before = y;
    if (recorded) {
      saved.before_activation = before;
      y = Tensor::empty(y.shape(), y.dtype(), y.device());
    }
    if (left.defined()) {
      bias_activation_forward(before, left, activation, y);
    } else {
      activation_forward(before, activation, y);
    }
  }
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
