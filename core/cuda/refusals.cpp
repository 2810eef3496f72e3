#include "core/cuda/refusals.h"

#include "core/error.h"

namespace linnet::cuda {

std::string version_text(int version) {
  return concat(version / 1000, ".", version % 1000 / 10);
}

std::string driver_problem(int driver, int runtime, size_t count) {
  if (driver == 0) return "there is no NVIDIA driver; install one";
  if (driver / 1000 < runtime / 1000) {
    return concat("the NVIDIA driver supports CUDA ", version_text(driver),
                  " but linnet was built with CUDA ", version_text(runtime), "; update the driver");
  }
  if (count == 0)
    return "the NVIDIA driver lists no GPU; look at nvidia-smi and CUDA_VISIBLE_DEVICES";
  return "";
}

std::string device_problem(const DeviceFacts& device) {
  if (device.major >= 8) return "";
  return concat(device.name, " has compute capability ", device.major, ".", device.minor,
                ", linnet needs 8.0 for bf16");
}

void require_current(int index) {
  require(index == current_device(), "CUDA: a tensor is on cuda:", index,
          " but this thread's work goes to cuda:", current_device(), "; call cuda::set_device(",
          index, ") first");
}

void require_shared_memory(const char* kernel, size_t requested, size_t available) {
  require(
      requested <= available, "kernel ", kernel, " needs ", requested,
      " bytes of shared memory per block, this device has ", available,
      ": no kernel covers heads this wide; use narrower heads (or fewer slots), or --device cpu");
}

}  // namespace linnet::cuda
