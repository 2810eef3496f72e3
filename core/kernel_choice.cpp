#include "core/kernel_choice.h"

#include <array>
#include <utility>

#include "core/cuda/backend.h"
#include "core/cuda/cudnn.h"
#include "core/error.h"

namespace linnet {
namespace {

// Ambient because they belong to a run, not to a call: as parameters they would pass unread through
// every layer and mechanism, plugins included, down to the functions that choose a path. They are
// scoped, and threads differ in them: bench times two backends, tests compare them side by side.
thread_local KernelChoice chosen = KernelChoice::automatic;
thread_local DType activations = DType::f32;

}  // namespace

KernelChoice kernel_choice_from_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, KernelChoice>, 3> kNames{
      {{"auto", KernelChoice::automatic},
       {"plain", KernelChoice::plain},
       {"tensor_cores", KernelChoice::tensor_cores}}};
  for (const auto& [known, value] : kNames) {
    if (known == name) return value;
  }
  throw UsageError({ErrorCode::unknown_name, "backend"},
                   concat("unknown backend '", name, "'; expected auto, plain or tensor_cores"));
}

KernelChoice kernel_choice() {
  return chosen;
}

UseKernels::UseKernels(KernelChoice choice, Device device) : before_(chosen) {
  const bool cudnn = choice == KernelChoice::cudnn;
  const Cause cause{ErrorCode::conflict, "backend"};
  require_usage((!cudnn && choice != KernelChoice::tensor_cores) || device.kind == DeviceKind::cuda,
                cause, "backend ", cudnn ? "cudnn" : "tensor_cores",
                " needs a CUDA device, and this runs on ", name_of(device),
                "; use --device cuda, or backend auto");
  if constexpr (kCuda) {
    if (cudnn) {
      const std::string problem = cuda::cudnn_problem();
      require_usage(problem.empty(), cause, "backend cudnn: ", problem);
    }
  }
  chosen = choice;
}

UseKernels::~UseKernels() {
  chosen = before_;
}

DType activation_dtype() {
  return activations;
}

ActivationsIn::ActivationsIn(DType dtype) : before_(activations) {
  activations = dtype;
}

ActivationsIn::~ActivationsIn() {
  activations = before_;
}

void require_plain_allowed(std::string_view operation, const Tensor& x) {
  require_usage(
      chosen != KernelChoice::tensor_cores || !on_cuda(x) || x.size(1) < kMinTensorCoreTokens,
      operation, " has no kernels on tensor cores, which backend tensor_cores requires; ",
      "use backend auto");
}

}  // namespace linnet
