// The runtime on CUDA.
#include <cuda_runtime_api.h>

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>

#include "core/cuda/once_per_kernel.h"
#include "core/cuda/refusals.h"
#include "core/cuda/relaxed_capture.h"
#include "core/cuda/runtime.h"
#include "core/cuda/stream_owner.h"
#include "core/error.h"

namespace linnet::cuda {
namespace {

// Of the thread, as CUDA's own current device is.
thread_local int this_device = 0;

// The remedy of a failure, where it is known.
const char* fix_of(cudaError_t status) {
  switch (status) {
    case cudaErrorNoKernelImageForDevice:
      return "; this build has no kernels for that GPU: build the preset cuda";
    case cudaErrorUnsupportedPtxVersion:
      return "; the driver is older than the toolkit of this build: update the driver";
    case cudaErrorInvalidConfiguration:
      return "; the launch is larger than the GPU allows: make the micro-batch or the context "
             "smaller";
    default:
      return "";
  }
}

// Clears the error of a failed call, which the next launch would report as its own.
void forget_failure() {
  cudaGetLastError();
}

void check(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  forget_failure();
  throw Error(concat("CUDA: ", what, " failed: ", cudaGetErrorString(status), " (",
                     cudaGetErrorName(status), ")", fix_of(status)));
}

void check_graph(cudaError_t status, std::string_view what) {
  if (status == cudaSuccess) return;
  forget_failure();
  throw Error(concat("CUDA: ", what, " failed: ", cudaGetErrorString(status), " (",
                     cudaGetErrorName(status), "); train.cuda_graph=false trains without graphs"));
}

// Of the thread: captures are in the mode that concerns one thread.
thread_local bool this_thread_captures = false;

struct ExecutableGraph {
  cudaGraphExec_t graph = nullptr;
  size_t nodes = 0;
};

constexpr int kMaxDevices = 64;

// One stream per device; its memory pool keeps freed memory, so that a training step allocates
// nothing from the system after the first.
cudaStream_t stream_of(int device) {
  static std::mutex mutex;
  static std::array<cudaStream_t, kMaxDevices> streams{};
  const std::lock_guard lock(mutex);
  cudaStream_t& found = streams.at(static_cast<size_t>(device));
  if (found == nullptr) {
    check(cudaStreamCreateWithFlags(&found, cudaStreamNonBlocking), "cudaStreamCreate");
    cudaMemPool_t pool = nullptr;
    check(cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
    uint64_t keep = UINT64_MAX;
    check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep),
          "cudaMemPoolSetAttribute");
  }
  return found;
}

cudaStream_t here() {
  require_stream_owner(this_device);
  return stream_of(this_device);
}

// Double-buffered pinned memory: a half is refilled when the last copies from it are done, which is
// long ago by then.
class StagingRing {
 public:
  static constexpr size_t kHalf = size_t{4} << 20;

  StagingRing() {
    check(cudaMallocHost(reinterpret_cast<void**>(&memory_), 2 * kHalf), "cudaMallocHost");
    for (cudaEvent_t& event : done_) {
      check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    }
  }
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  void copy(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    if (used_ + bytes > kHalf) {
      check(cudaEventRecord(done_[half_], stream), "cudaEventRecord");
      half_ = 1 - half_;
      used_ = 0;
      check(cudaEventSynchronize(done_[half_]), "cudaEventSynchronize");
    }
    char* staged = memory_ + half_ * kHalf + used_;
    std::memcpy(staged, from, bytes);
    check(cudaMemcpyAsync(to, staged, bytes, cudaMemcpyHostToDevice, stream),
          "a copy to the device");
    used_ += (bytes + 63) / 64 * 64;
  }

 private:
  char* memory_ = nullptr;
  std::array<cudaEvent_t, 2> done_{};
  size_t half_ = 0, used_ = 0;
};

}  // namespace

std::vector<DeviceFacts> devices(std::string* why) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (why != nullptr) {
    int driver = 0;
    cudaDriverGetVersion(&driver);
    *why = driver_problem(driver, CUDART_VERSION, static_cast<size_t>(count));
    if (status != cudaSuccess && why->empty()) *why = cudaGetErrorString(status);
  }
  std::vector<DeviceFacts> found;
  for (int i = 0; status == cudaSuccess && i < count; ++i) {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    found.push_back({properties.name, properties.major, properties.minor, properties.totalGlobalMem,
                     properties.multiProcessorCount});
  }
  forget_failure();
  return found;
}

Versions versions() {
  int driver = 0;
  cudaDriverGetVersion(&driver);
  forget_failure();
  return {driver == 0 ? "none" : version_text(driver), version_text(CUDART_VERSION)};
}

int current_device() {
  return this_device;
}

void set_device(int index) {
  check(cudaSetDevice(index), concat("selecting device cuda:", index));
  this_device = index;
}

void* stream() {
  return here();
}

void hand_over_stream() {
  synchronize();
  disown_stream(this_device);
}

void* allocate(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, bytes, here());
  if (status == cudaErrorMemoryAllocation) {
    forget_failure();
    return nullptr;
  }
  check(status, "cudaMallocAsync");
  return memory;
}

void release(void* memory) noexcept {
  // At the end of a program the driver may be gone already; there is no one to tell.
  if (cudaFreeAsync(memory, stream_of(this_device)) != cudaSuccess) forget_failure();
}

size_t free_bytes() {
  const RelaxedCapture relaxed;
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, this_device), "cudaDeviceGetDefaultMemPool");
  uint64_t reserved = 0, used = 0;
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &reserved),
        "cudaMemPoolGetAttribute");
  check(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used),
        "cudaMemPoolGetAttribute");
  return free + (reserved - used);
}

void copy(void* to, const void* from, size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, here()), "a copy on the device");
}

void copy_from_host(void* to, const void* from, size_t bytes) {
  refuse_capture("a copy of host memory to the device");
  if (bytes > StagingRing::kHalf) {
    // Where the device reads pageable memory itself (GH200), nothing is staged when the call
    // returns.
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, here()), "a copy to the device");
    return synchronize();
  }
  // One ring for each device and thread; never released: the driver may be gone before statics are.
  thread_local std::array<StagingRing*, kMaxDevices> rings{};
  StagingRing*& ring = rings.at(static_cast<size_t>(this_device));
  if (ring == nullptr) ring = new StagingRing;
  ring->copy(to, from, bytes, here());
}

void copy_to_host(void* to, const void* from, size_t bytes) {
  refuse_capture("a copy of device memory to the host");
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, here()), "a copy from the device");
  synchronize();
}

void fill_bytes(void* memory, int value, size_t bytes) {
  check(cudaMemsetAsync(memory, value, bytes, here()), "cudaMemsetAsync");
}

void synchronize() {
  refuse_capture("waiting for the device");
  check(cudaStreamSynchronize(here()), "work on the device");
}

void begin_capture() {
  // The pool holds memory of eager work, which the graph's own memory needs.
  synchronize();
  cudaMemPool_t pool = nullptr;
  check(cudaDeviceGetDefaultMemPool(&pool, this_device), "cudaDeviceGetDefaultMemPool");
  check(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
  check_graph(cudaStreamBeginCapture(here(), cudaStreamCaptureModeThreadLocal),
              "cudaStreamBeginCapture");
  this_thread_captures = true;
}

void* end_capture() {
  this_thread_captures = false;
  cudaGraph_t graph = nullptr;
  check_graph(cudaStreamEndCapture(here(), &graph), "cudaStreamEndCapture");
  auto executable = std::make_unique<ExecutableGraph>();
  const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &executable->nodes);
  const cudaError_t made = cudaGraphInstantiate(&executable->graph, graph, 0);
  cudaGraphDestroy(graph);
  check_graph(counted, "cudaGraphGetNodes");
  check_graph(made, "cudaGraphInstantiate");
  return executable.release();
}

void abandon_capture() noexcept {
  this_thread_captures = false;
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(here(), &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  forget_failure();
}

bool capturing() {
  return this_thread_captures;
}

size_t recorded(void* graph) {
  return static_cast<ExecutableGraph*>(graph)->nodes;
}

void launch_graph(void* graph) {
  refuse_capture("the launch of another graph");
  check_graph(cudaGraphLaunch(static_cast<ExecutableGraph*>(graph)->graph, here()),
              "cudaGraphLaunch");
}

void destroy_graph(void* graph) noexcept {
  auto* executable = static_cast<ExecutableGraph*>(graph);
  if (cudaGraphExecDestroy(executable->graph) != cudaSuccess) forget_failure();
  delete executable;
}

void* allocate_lasting(size_t bytes) {
  const RelaxedCapture relaxed;
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, bytes);
  if (status == cudaErrorMemoryAllocation) {
    forget_failure();
    return nullptr;
  }
  check(status, "cudaMalloc");
  return memory;
}

void release_lasting(void* memory) noexcept {
  const RelaxedCapture relaxed;
  if (cudaFree(memory) != cudaSuccess) forget_failure();
}

void check_launch(const char* kernel) {
  const cudaError_t status = cudaGetLastError();
  if (status != cudaSuccess) check(status, concat("the launch of kernel ", kernel));
}

size_t shared_memory_limit() {
  int available = 0;
  check(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin, this_device),
        "cudaDeviceGetAttribute");
  return static_cast<size_t>(available);
}

void allow_shared_memory(const char* name, const void* kernel, size_t bytes) {
  const size_t limit = shared_memory_limit();
  require_shared_memory(name, bytes, limit);
  // The device's limit: later launches may want more.
  static OncePerKernel once;
  once.run(this_device, kernel, [&] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(limit)),
          concat("asking for ", bytes, " bytes of shared memory for kernel ", name));
  });
}

}  // namespace linnet::cuda
