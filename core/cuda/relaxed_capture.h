// Memory outside stream order while a graph is captured. For sources of builds with CUDA on alone.
#pragma once

#include <cuda_runtime_api.h>

namespace linnet::cuda {

// While alive, this thread may allocate memory outside stream order although it captures. CUDA
// refuses that by default, because a graph would not repeat it.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace linnet::cuda
