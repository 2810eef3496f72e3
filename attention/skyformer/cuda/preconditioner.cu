#include "attention/skyformer/cuda/preconditioner.h"

#include "attention/skyformer/preconditioner_rule.h"
#include "core/cuda/for_each.h"

namespace linnet::cuda {
namespace {

using preconditioner_rule::Matrix;

Matrix<float> rule_of(const Tensor& kernel, double gamma) {
  return {kernel.size(2), static_cast<float>(gamma), pointer<float>(kernel)};
}

}  // namespace

void precondition(const Tensor& kernel, double gamma, const Tensor& roots, const Tensor& values) {
  const Matrix<float> rule = rule_of(kernel, gamma);
  float *root = pointer<float>(roots), *value = pointer<float>(values);
  for_each("precondition_roots", roots.elements(),
           [=] __device__(int64_t row) { root[row] = rule.root(row); });
  for_each("precondition", values.elements(),
           [=] __device__(int64_t i) { value[i] = rule.value(root, i); });
}

void precondition_backward(const Tensor& kernel, double gamma, const Tensor& roots,
                           const Tensor& dvalues, const Tensor& droots, const Tensor& dsums,
                           const Tensor& dkernel) {
  const Matrix<float> rule = rule_of(kernel, gamma);
  const float *root = pointer<float>(roots), *dvalue = pointer<float>(dvalues);
  const float* droot = pointer<float>(droots);
  float *dsum = pointer<float>(dsums), *to = pointer<float>(dkernel);
  for_each("precondition_sums", dsums.elements(), [=] __device__(int64_t row) {
    dsum[row] = rule.sum_gradient(root, dvalue, droot[row], row);
  });
  for_each("precondition_backward", dkernel.elements(),
           [=] __device__(int64_t i) { to[i] = rule.gradient(root, dvalue, dsum, i); });
}

}  // namespace linnet::cuda
