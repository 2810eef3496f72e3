// Builds without NCCL.
#include "core/comm/cuda/nccl.h"
#include "core/cuda/backend.h"
#include "core/error.h"

namespace linnet::cuda {

std::string nccl_problem() {
  if constexpr (kCudaBackend == CudaBackend::emulated) {
    return "an emulated GPU has no NCCL; build the preset cuda";
  } else {
    return "this build has no NCCL; install it with its header (NVIDIA's package libnccl-dev), "
           "then configure and build again";
  }
}

std::string nccl_version() {
  return "";
}

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> /*host*/,
                                                     Device /*device*/) {
  throw UsageError(nccl_problem());
}

}  // namespace linnet::cuda
