#include "attention/primitives/cudnn_softmax/cuda/cudnn_softmax.h"

#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/cuda/runtime.h"

namespace linnet::cuda {
namespace {

// That the graph without sums in f32 repeats its bits is known of these.
void require_deterministic_device() {
  const DeviceFacts device = devices().at(static_cast<size_t>(current_device()));
  require(
      device.major == 8 || device.major == 9,
      "cuDNN repeats the bits of its gradients on GPUs of compute capability 8 and 9 alone, and ",
      "this one has ", device.major, ".", device.minor);
}

}  // namespace

CudnnSoftmax::CudnnSoftmax(const SoftmaxSizes& sizes)
    : forward_(softmax_forward_graph(sizes)),
      backward_(softmax_backward_graph(sizes)),
      forward_plan_(forward_.graph),
      backward_plan_(backward_.graph) {}

void CudnnSoftmax::forward(const Tensor& q, const Tensor& k, const Tensor& v,
                           const Result& result) const {
  forward_plan_.run({{forward_.q, q},
                     {forward_.k, k},
                     {forward_.v, v},
                     {forward_.y, result.y},
                     {forward_.log_sum_exp, result.log_sum_exp}});
}

void CudnnSoftmax::backward(const Tensor& q, const Tensor& k, const Tensor& v, const Result& result,
                            const Tensor& dy, const std::array<Tensor, 3>& gradients) const {
  const auto scratch = [](const Tensor& x) {
    return Tensor::empty(x.shape(), DType::f32, x.device());
  };
  std::vector<std::pair<int, Tensor>> tensors{{backward_.q, q},
                                              {backward_.k, k},
                                              {backward_.v, v},
                                              {backward_.y, result.y},
                                              {backward_.log_sum_exp, result.log_sum_exp},
                                              {backward_.dy, dy},
                                              {backward_.row_dots, scratch(result.log_sum_exp)},
                                              {backward_.dq, gradients[0]},
                                              {backward_.dk, gradients[1]},
                                              {backward_.dv, gradients[2]}};
  if (backward_.dq_sums) tensors.emplace_back(*backward_.dq_sums, scratch(q));
  backward_plan_.run(tensors);
}

const CudnnSoftmax& cudnn_softmax(const SoftmaxSizes& sizes) {
  static std::mutex mutex;
  const std::tuple key{current_device(),    sizes.B,    sizes.T, sizes.H, sizes.K, sizes.causal,
                       sizes.deterministic, sizes.scale};
  // Never destroyed: the driver may be gone before static objects are.
  static auto& planned =
      *new std::map<std::remove_const_t<decltype(key)>, std::unique_ptr<CudnnSoftmax>>;
  const std::scoped_lock lock(mutex);
  std::unique_ptr<CudnnSoftmax>& here = planned[key];
  if (!here) {
    try {
      if (sizes.deterministic) require_deterministic_device();
      here = std::make_unique<CudnnSoftmax>(sizes);
    } catch (const Error& error) {
      throw UsageError(concat("block attention: backend cudnn was requested, but ", error.what(),
                              "; use backend auto"));
    }
  }
  return *here;
}

}  // namespace linnet::cuda
