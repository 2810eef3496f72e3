#include "attention/skyformer/preconditioner.h"

#include "attention/primitives/common/binding.h"
#include "attention/primitives/common/fill_elements.h"
#include "attention/skyformer/cuda/preconditioner.h"
#include "attention/skyformer/preconditioner_rule.h"
#include "core/cuda/backend.h"

namespace linnet {
namespace {

using binding::dispatch;
using binding::empty_like;
using preconditioner_rule::Matrix;

constexpr int64_t kGrain = 4096;

template <typename T>
Matrix<T> rule_of(const Tensor& kernel, double gamma) {
  return {kernel.size(2), static_cast<T>(gamma), kernel.data<T>()};
}

void forward(const Tensor& kernel, double gamma, const Tensor& roots, const Tensor& values) {
  if constexpr (kCuda) {
    if (on_cuda(kernel)) return cuda::precondition(kernel, gamma, roots, values);
  }
  dispatch(kernel.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Matrix<T> rule = rule_of<T>(kernel, gamma);
    fill_elements<T>(roots, kGrain, [&](int64_t row) { return rule.root(row); });
    fill_elements<T>(values, kGrain,
                     [&, d = roots.data<T>()](int64_t i) { return rule.value(d, i); });
  });
}

void backward_of(const Tensor& kernel, double gamma, const Tensor& roots, const Tensor& dvalues,
                 const Tensor& droots, const Tensor& dkernel) {
  const Tensor dsums = empty_like(roots);
  if constexpr (kCuda) {
    if (on_cuda(kernel)) {
      return cuda::precondition_backward(kernel, gamma, roots, dvalues, droots, dsums, dkernel);
    }
  }
  dispatch(kernel.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Matrix<T> rule = rule_of<T>(kernel, gamma);
    const T *d = roots.data<T>(), *of_values = dvalues.data<T>(), *of_roots = droots.data<T>();
    const T* of_sums = dsums.data<T>();
    fill_elements<T>(dsums, kGrain, [&](int64_t row) {
      return rule.sum_gradient(d, of_values, of_roots[row], row);
    });
    fill_elements<T>(dkernel, kGrain,
                     [&](int64_t i) { return rule.gradient(d, of_values, of_sums, i); });
  });
}

}  // namespace

Preconditioned precondition(const Variable& kernel, double gamma) {
  const Tensor& matrix = kernel.value();
  require(matrix.shape().rank() == 3 && matrix.size(1) == matrix.size(2),
          "precondition: expected square matrices [G,r,r], got ", matrix.shape());
  const Tensor roots =
      Tensor::empty({matrix.size(0), matrix.size(1)}, matrix.dtype(), matrix.device());
  const Tensor values = empty_like(matrix);
  forward(matrix, gamma, roots, values);
  const std::vector<Variable> made = record_many(
      "precondition", {values, roots}, {kernel}, [matrix, gamma, roots](Gradients& gradients) {
        const Tensor dkernel = empty_like(matrix);
        backward_of(matrix, gamma, roots, gradients.output(0), gradients.output(1), dkernel);
        gradients.add(0, dkernel);
      });
  return {made[0], made[1]};
}

}  // namespace linnet
