// The checks and bookkeeping that all optimizers share, and the state that checkpoints store.
#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/cuda/backend.h"
#include "optim/cuda/update.h"

namespace linnet {
namespace {

// Elements of a block: 128 KiB per f32 buffer, small enough to share a model's norms among threads.
constexpr int64_t kBlockElements = 32768;

void check_flat(const char* what, const Tensor& tensor, int64_t elements, DType dtype,
                Device device) {
  require(tensor.defined() && tensor.elements() == elements && tensor.dtype() == dtype,
          "Optimizer::step: ", what, " must hold ", elements, " elements of ", name_of(dtype),
          ", got ", tensor.defined() ? tensor.shape().to_string() : "an undefined tensor", " of ",
          name_of(tensor.dtype()));
  require(tensor.device() == device, "Optimizer::step: ", what, " are on ",
          name_of(tensor.device()), ", the optimizer was made for ", name_of(device));
}

}  // namespace

void restore_state(const std::string& owner, const StateTensors& target,
                   const StateTensors& source) {
  for (const auto& [name, tensor] : source) {
    require(target.contains(name), "the saved state of the ", owner, " has a tensor '", name,
            "' that this ", owner, " does not keep; resume with the same kind and options");
  }
  for (const auto& [name, tensor] : target) {
    const auto found = source.find(name);
    require(found != source.end(), "the saved state of the ", owner, " lacks the tensor '", name,
            "'; resume with the same kind and options");
    require(found->second.shape() == tensor.shape() && found->second.dtype() == tensor.dtype(),
            "the saved state of the ", owner, " has '", name, "' of shape ", found->second.shape(),
            " and dtype ", name_of(found->second.dtype()), "; expected ", tensor.shape(), " and ",
            name_of(tensor.dtype()));
  }
  for (const auto& [name, tensor] : target) tensor.copy_from(source.at(name));
}

Optimizer::Optimizer(const std::vector<ParameterGroup>& groups, int64_t elements, DType dtype,
                     Device device)
    : elements_(elements), dtype_(dtype), device_(device) {
  require(dtype == DType::f32 || (dtype == DType::f64 && device.kind == DeviceKind::cpu),
          "Optimizer: master weights must be f32, or f64 on the CPU, got ", name_of(dtype), " on ",
          name_of(device));
  int64_t end = 0;
  for (const ParameterGroup& group : groups) {
    require(group.begin >= end && group.end >= group.begin && group.end <= elements,
            "Optimizer: the group [", group.begin, ", ", group.end,
            ") overlaps the one before it or leaves the buffer of ", elements, " elements");
    require(std::isfinite(group.weight_decay) && std::isfinite(group.lr_scale),
            "Optimizer: the group [", group.begin, ", ", group.end,
            ") has a weight decay or lr_scale that is not finite");
    end = group.end;
    for (int64_t begin = group.begin; begin < group.end; begin += kBlockElements) {
      blocks_.push_back(
          {begin, std::min(begin + kBlockElements, group.end), group.weight_decay, group.lr_scale});
    }
  }
  updates_ = add_counter("updates", DType::i64);
  if constexpr (kCuda) {
    if (device.kind == DeviceKind::cuda) {
      std::vector<cuda::UpdateBlock> upload;
      for (const Block& b : blocks_) {
        upload.push_back({b.begin, b.end, b.weight_decay, b.lr_scale});
      }
      device_blocks_ = cuda::upload_blocks(upload, device);
    }
  }
}

Tensor Optimizer::add_moment(const std::string& name) {
  const MemoryUser user("optimizer state");
  return state_[name] = Tensor::zeros({elements_}, dtype_, device_);
}

Tensor Optimizer::add_counter(const std::string& name, DType dtype) {
  return state_[name] = Tensor::zeros({1}, dtype, device_);
}

int64_t Optimizer::updates() const {
  return updates_.to_vector<int64_t>()[0];
}

void Optimizer::step(const Tensor& weights, const Tensor& gradients, const StepRates& rates) {
  require(device_.kind == DeviceKind::cpu, "Optimizer::step: this optimizer is on ",
          name_of(device_), "; use step_on_device");
  check_flat("weights", weights, elements_, dtype_, device_);
  check_flat("gradients", gradients, elements_, dtype_, device_);
  require(std::isfinite(rates.lr) && std::isfinite(rates.gradient_scale), "Optimizer::step: lr ",
          rates.lr, " and gradient scale ", rates.gradient_scale, " must be finite");
  apply(weights, gradients, rates, updates() + 1);
  ++*updates_.data<int64_t>();
}

void Optimizer::step_on_device(const Tensor& weights, const Tensor& gradients,
                               const Tensor& scalars) {
  check_flat("weights", weights, elements_, dtype_, device_);
  check_flat("gradients", gradients, elements_, dtype_, device_);
  require(device_blocks_.defined() && scalars.device() == device_,
          "Optimizer::step_on_device: this optimizer is on ", name_of(device_));
  if constexpr (kCuda) {
    apply_on_device({weights, gradients, device_blocks_, scalars, updates_});
    const auto previous_lr = state_.find("previous_lr");
    cuda::finish_update(scalars, updates_,
                        previous_lr == state_.end() ? Tensor() : previous_lr->second);
  }
}

}  // namespace linnet
