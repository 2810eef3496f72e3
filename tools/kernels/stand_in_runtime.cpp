// Stands for CUDA's runtime where there is no GPU: every call succeeds and computes nothing, and
// every launch is written to the file that LINNET_LAUNCHES names: symbol, blocks, threads, dynamic
// shared memory, apart by tabs. tools/kernel_model preloads it into linnet to learn how kernels are
// launched at the worked shapes. Device memory is address space that nobody touches.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

constexpr size_t kDeviceBytes = size_t{64} << 30;
char* next_address = nullptr;

// Never reused: what it holds is not looked at.
void* address_of(size_t bytes) {
  if (next_address == nullptr) {
    void* space = mmap(nullptr, kDeviceBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) abort();
    next_address = static_cast<char*>(space);
  }
  void* found = next_address;
  next_address += (bytes + 255) / 256 * 256;
  return found;
}

std::map<const void*, std::string>& symbols() {
  static std::map<const void*, std::string> found;
  return found;
}

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  void* stream = nullptr;
};
Configuration configuration;

void note(const void* kernel, const dim3& grid, const dim3& block, size_t shared) {
  static FILE* out = fopen(getenv("LINNET_LAUNCHES"), "w");
  if (out == nullptr) abort();
  fprintf(out, "%s\t%zu\t%u\t%zu\n", symbols()[kernel].c_str(), size_t{grid.x} * grid.y * grid.z,
          block.x * block.y * block.z, shared);
  fflush(out);
}

char something;

}  // namespace

extern "C" {

// --- kernels. The names are the toolkit's.
// NOLINTBEGIN(bugprone-reserved-identifier)

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*,
                            dim3*, dim3*, int*) {
  symbols()[host] = name;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void**, size_t shared,
                               cudaStream_t) {
  note(kernel, grid, block, shared);
  return cudaSuccess;
}

// NOLINTEND(bugprone-reserved-identifier)

// --- devices and memory

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, "stand-in for an H200");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 232448
           : attribute == cudaDevAttrComputeCapabilityMajor     ? 9
           : attribute == cudaDevAttrMultiProcessorCount        ? 132
                                                                : 0;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = kDeviceBytes;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, size_t bytes) {
  *memory = address_of(bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t) {
  return cudaMalloc(memory, bytes);
}
cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = calloc(bytes, 1);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void*, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
  if (kind == cudaMemcpyDeviceToHost) memset(to, 0, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  memset(value, 0, sizeof(uint64_t));
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) {
  return "an error of the stand-in";
}
const char* cudaGetErrorName(cudaError_t) {
  return "an error of the stand-in";
}

// --- what is made and never looked at

#define SUCCEEDS(name, ...)       \
  cudaError_t name(__VA_ARGS__) { \
    return cudaSuccess;           \
  }
#define MAKES(name, type, ...)                  \
  cudaError_t name(type* made, ##__VA_ARGS__) { \
    *made = reinterpret_cast<type>(&something); \
    return cudaSuccess;                         \
  }
SUCCEEDS(cudaFree, void*)
SUCCEEDS(cudaFreeAsync, void*, cudaStream_t)
SUCCEEDS(cudaMemsetAsync, void*, int, size_t, cudaStream_t)
SUCCEEDS(cudaSetDevice, int)
SUCCEEDS(cudaGetLastError)
SUCCEEDS(cudaPeekAtLastError)
SUCCEEDS(cudaFuncSetAttribute, const void*, cudaFuncAttribute, int)
SUCCEEDS(cudaEventRecord, cudaEvent_t, cudaStream_t)
SUCCEEDS(cudaEventSynchronize, cudaEvent_t)
SUCCEEDS(cudaStreamSynchronize, cudaStream_t)
SUCCEEDS(cudaStreamBeginCapture, cudaStream_t, cudaStreamCaptureMode)
SUCCEEDS(cudaThreadExchangeStreamCaptureMode, cudaStreamCaptureMode*)
SUCCEEDS(cudaMemPoolSetAttribute, cudaMemPool_t, cudaMemPoolAttr, void*)
SUCCEEDS(cudaMemPoolTrimTo, cudaMemPool_t, size_t)
SUCCEEDS(cudaGraphDestroy, cudaGraph_t)
SUCCEEDS(cudaGraphExecDestroy, cudaGraphExec_t)
SUCCEEDS(cudaGraphLaunch, cudaGraphExec_t, cudaStream_t)
MAKES(cudaStreamCreateWithFlags, cudaStream_t, unsigned)
MAKES(cudaEventCreateWithFlags, cudaEvent_t, unsigned)
MAKES(cudaDeviceGetDefaultMemPool, cudaMemPool_t, int)
MAKES(cudaGraphInstantiate, cudaGraphExec_t, cudaGraph_t, unsigned long long)
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(&something);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  *count = 1;
  return cudaSuccess;
}

// --- matrix products

#define PRODUCT(name, ...)           \
  cublasStatus_t name(__VA_ARGS__) { \
    return CUBLAS_STATUS_SUCCESS;    \
  }
#define PRODUCT_MAKES(name, type, ...)             \
  cublasStatus_t name(type* made, ##__VA_ARGS__) { \
    *made = reinterpret_cast<type>(&something);    \
    return CUBLAS_STATUS_SUCCESS;                  \
  }
PRODUCT_MAKES(cublasLtCreate, cublasLtHandle_t)
PRODUCT_MAKES(cublasLtMatmulDescCreate, cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType_t)
PRODUCT_MAKES(cublasLtMatrixLayoutCreate, cublasLtMatrixLayout_t, cudaDataType, uint64_t, uint64_t,
              int64_t)
PRODUCT_MAKES(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t)
PRODUCT(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t)
PRODUCT(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t)
PRODUCT(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)
PRODUCT(cublasLtMatmulDescSetAttribute, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
        const void*, size_t)
PRODUCT(cublasLtMatrixLayoutSetAttribute, cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t,
        const void*, size_t)
PRODUCT(cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreference_t,
        cublasLtMatmulPreferenceAttributes_t, const void*, size_t)
PRODUCT(cublasLtMatmul, cublasLtHandle_t, cublasLtMatmulDesc_t, const void*, const void*,
        cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*, const void*,
        cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*,
        size_t, cudaStream_t)
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  memset(results, 0, sizeof *results);
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() {
  return 130000;
}
const char* cublasLtGetStatusString(cublasStatus_t) {
  return "an error of the stand-in";
}
}
