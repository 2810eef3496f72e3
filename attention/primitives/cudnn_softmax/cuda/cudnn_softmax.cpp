#include "attention/primitives/cudnn_softmax/cuda/cudnn_softmax.h"

namespace linnet::cuda {

CudnnSoftmax::CudnnSoftmax(const SoftmaxSizes& sizes)
    : sizes_(sizes),
      forward_(softmax_forward_graph(sizes)),
      backward_(softmax_backward_graph(sizes)),
      forward_plan_(forward_.graph),
      backward_plan_(backward_.graph) {}

CudnnSoftmax::Result CudnnSoftmax::forward(const Tensor& q, const Tensor& k,
                                           const Tensor& v) const {
  const Result result{Tensor::empty(q.shape(), q.dtype(), q.device()),
                      Tensor::empty({sizes_.B, sizes_.H, sizes_.T}, DType::f32, q.device())};
  forward_plan_.run({{forward_.q, q},
                     {forward_.k, k},
                     {forward_.v, v},
                     {forward_.y, result.y},
                     {forward_.log_sum_exp, result.log_sum_exp}});
  return result;
}

std::array<Tensor, 3> CudnnSoftmax::backward(const Tensor& q, const Tensor& k, const Tensor& v,
                                             const Result& result, const Tensor& dy) const {
  const auto like = [](const Tensor& x, DType dtype) {
    return Tensor::empty(x.shape(), dtype, x.device());
  };
  const std::array<Tensor, 3> d{like(q, q.dtype()), like(k, k.dtype()), like(v, v.dtype())};
  backward_plan_.run({{backward_.q, q},
                      {backward_.k, k},
                      {backward_.v, v},
                      {backward_.y, result.y},
                      {backward_.log_sum_exp, result.log_sum_exp},
                      {backward_.dy, dy},
                      {backward_.row_dots, like(result.log_sum_exp, DType::f32)},
                      {backward_.dq_sums, like(q, DType::f32)},
                      {backward_.dq, d[0]},
                      {backward_.dk, d[1]},
                      {backward_.dv, d[2]}});
  return d;
}

}  // namespace linnet::cuda
