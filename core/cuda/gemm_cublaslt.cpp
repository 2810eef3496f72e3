// cuBLASLt, one plan for each shape.
#include <cublasLt.h>

#include <map>
#include <mutex>
#include <string_view>
#include <tuple>

#include "core/cuda/gemm.h"
#include "core/cuda/runtime.h"

namespace linnet::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(concat("cuBLASLt: ", what, " failed: ", cublasLtGetStatusString(status)));
}

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

// Device, batch, m, n, k, transposes, dtypes.
using Key = std::tuple<int, int64_t, int64_t, int64_t, int64_t, bool, bool, DType, DType>;

struct Library {
  std::mutex mutex;
  cublasLtHandle_t handle = nullptr;
  std::map<Key, Plan> plans;
  std::map<int, Tensor> workspaces;
};

// Never destroyed: the driver may be gone before static objects are.
Library& library() {
  static auto& only = *new Library;
  if (only.handle == nullptr) check(cublasLtCreate(&only.handle), "cublasLtCreate");
  return only;
}

cudaDataType_t type_of(DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16,
          "CUDA: matrix products are for f32 and bf16, not for ", name_of(dtype),
          "; use --device cpu");
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

// A column-major layout of what is a row-major matrix of `columns` columns: its transpose.
cublasLtMatrixLayout_t layout(DType dtype, int64_t rows, int64_t columns, int64_t batch) {
  cublasLtMatrixLayout_t result = nullptr;
  check(cublasLtMatrixLayoutCreate(&result, type_of(dtype), static_cast<uint64_t>(columns),
                                   static_cast<uint64_t>(rows), columns),
        "cublasLtMatrixLayoutCreate");
  const auto count = static_cast<int32_t>(batch);
  const int64_t stride = rows * columns;
  check(cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                         sizeof count),
        "setting the batch count");
  check(cublasLtMatrixLayoutSetAttribute(result, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &stride, sizeof stride),
        "setting the batch stride");
  return result;
}

void set_transpose(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t side, bool yes) {
  const cublasOperation_t value = yes ? CUBLAS_OP_T : CUBLAS_OP_N;
  check(cublasLtMatmulDescSetAttribute(operation, side, &value, sizeof value),
        "setting a transpose");
}

// cuBLAS is column-major: it computes c^T = op(b)^T op(a)^T, so that operands change places.
Plan make_plan(cublasLtHandle_t handle, DType in, DType out, const GemmShape& s, bool ta, bool tb) {
  Plan plan;
  check(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  set_transpose(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, tb);
  set_transpose(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, ta);
  plan.a = ta ? layout(in, s.k, s.m, s.batch) : layout(in, s.m, s.k, s.batch);
  plan.b = tb ? layout(in, s.n, s.k, s.batch) : layout(in, s.k, s.n, s.batch);
  plan.c = layout(out, s.m, s.n, s.batch);
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspace, sizeof kWorkspace),
        "setting the workspace");
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.b, plan.a, plan.c, plan.c,
                                       preference, 1, &found, &count),
        "choosing an algorithm");
  cublasLtMatmulPreferenceDestroy(preference);
  require(count > 0, "cuBLASLt: no algorithm for a product of ", s.m, " x ", s.n, " x ", s.k);
  plan.algorithm = found.algo;
  return plan;
}

}  // namespace

void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, const GemmShape& shape, double alpha, double beta) {
  const bool ta = transpose_a == Transpose::yes, tb = transpose_b == Transpose::yes;
  Library& lt = library();
  const std::lock_guard lock(lt.mutex);
  const int device = c.device().index;
  const Key key{device, shape.batch, shape.m, shape.n, shape.k, ta, tb, a.dtype(), c.dtype()};
  auto found = lt.plans.find(key);
  if (found == lt.plans.end()) {
    found = lt.plans.emplace(key, make_plan(lt.handle, a.dtype(), c.dtype(), shape, ta, tb)).first;
  }
  Tensor& workspace = lt.workspaces[device];
  if (!workspace.defined()) {
    const MemoryUser user("matrix products");
    workspace = Tensor::empty({static_cast<int64_t>(kWorkspace)}, DType::u8, c.device());
  }
  const auto scale = static_cast<float>(alpha), keep = static_cast<float>(beta);
  const Plan& plan = found->second;
  check(cublasLtMatmul(lt.handle, plan.operation, &scale, b.raw(), plan.b, a.raw(), plan.a, &keep,
                       c.raw(), plan.c, c.raw(), plan.c, &plan.algorithm, workspace.raw(),
                       kWorkspace, static_cast<cudaStream_t>(stream())),
        "cublasLtMatmul");
}

std::string gemm_backend() {
  const size_t version = cublasLtGetVersion();
  return concat("cuBLASLt ", version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace linnet::cuda
