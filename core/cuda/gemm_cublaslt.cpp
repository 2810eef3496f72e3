// cuBLASLt, one plan for each shape and alignment.
#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <tuple>

#include "core/cuda/gemm.h"
#include "core/cuda/relaxed_capture.h"
#include "core/cuda/runtime.h"
#include "core/log.h"

namespace linnet::cuda {
namespace {

constexpr size_t kWorkspace = size_t{32} << 20;
// Products per call: some versions have no algorithm for more, the limit of a grid in y and z.
constexpr int64_t kMaxProducts = 65535;

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(concat("cuBLASLt: ", what, " failed: ", cublasLtGetStatusString(status)));
}

// The largest power of two, up to 256, that divides an address: an algorithm may need so much.
uint32_t alignment_of(const void* memory) {
  const uintptr_t bits = reinterpret_cast<uintptr_t>(memory) | 256;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

// The key of a plan: an algorithm is chosen once for each.
struct Problem {
  GemmShape shape;
  bool transpose_a, transpose_b;
  DType in, out;
  cublasLtEpilogue_t epilogue;
  uint32_t a_alignment, b_alignment, c_alignment, vector_alignment, before_alignment;

  auto key() const {
    return std::make_tuple(shape.batch, shape.m, shape.n, shape.k, transpose_a, transpose_b, in,
                           out, epilogue, a_alignment, b_alignment, c_alignment, vector_alignment,
                           before_alignment);
  }
};

struct Plan {
  Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    for (const cublasLtMatrixLayout_t layout : {a, b, c}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (operation != nullptr) cublasLtMatmulDescDestroy(operation);
  }

  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool exists = false;  // whether there is an algorithm
};

// Limit of cached plans: sequences of ever new lengths must not collect them without end.
constexpr size_t kMaxPlans = 2048;

// The library of one device: a handle belongs to the device that was current when it was created.
struct Library {
  cublasLtHandle_t handle = nullptr;
  std::map<decltype(Problem().key()), Plan> plans;
  Tensor workspace;
};

// The one of this thread's device, used under `mutex`. Never destroyed: the driver may be gone
// before static objects are.
std::mutex mutex;
Library& library() {
  static auto& all = *new std::map<int, Library>;
  Library& here = all[current_device()];
  if (here.handle == nullptr) {
    const RelaxedCapture relaxed;  // the first product may be one that a graph records
    check(cublasLtCreate(&here.handle), "cublasLtCreate");
  }
  return here;
}

cudaDataType_t type_of(DType dtype) {
  require(dtype == DType::f32 || dtype == DType::bf16,
          "CUDA: matrix products are for f32 and bf16, not for ", name_of(dtype),
          "; use --device cpu");
  return dtype == DType::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

// The column-major layout of a row-major matrix of `columns` columns: its transpose.
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

template <typename T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value,
         std::string_view what) {
  check(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value), what);
}

void set_transpose(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t side, bool yes) {
  set(operation, side, yes ? CUBLAS_OP_T : CUBLAS_OP_N, "setting a transpose");
}

// In cuBLAS' terms (its product is the transpose of ours): a bias per row of its result, and sums
// of its second operand.
cublasLtEpilogue_t epilogue_of(Epilogue epilogue, bool adds_vector, bool keeps_before) {
  switch (epilogue) {
    case Epilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::add_bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::left_row_sums:
      return CUBLASLT_EPILOGUE_BGRADB;
    case Epilogue::gelu_tanh_backward:
      return CUBLASLT_EPILOGUE_DGELU;
    case Epilogue::gelu_tanh:
      break;
  }
  if (keeps_before) {
    return adds_vector ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  }
  return adds_vector ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

const char* name_of(cublasLtEpilogue_t epilogue) {
  if (epilogue == CUBLASLT_EPILOGUE_BIAS) return "the bias";
  if (epilogue == CUBLASLT_EPILOGUE_DGELU) return "the derivative of GELU";
  return epilogue == CUBLASLT_EPILOGUE_BGRADB ? "the gradient of the bias" : "GELU";
}

// The tensors of an epilogue; null: none.
struct EpilogueTensors {
  const void* vector;
  void* before;
  int64_t columns;
};

void set_epilogue(cublasLtMatmulDesc_t operation, cublasLtEpilogue_t epilogue,
                  const EpilogueTensors& tensors) {
  if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return;
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue, "setting the epilogue");
  if (tensors.vector != nullptr) {
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, tensors.vector,
        "setting the epilogue's vector");
  }
  if (tensors.before != nullptr) {
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, tensors.before,
        "setting the epilogue's matrix");
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, tensors.columns,
        "setting the columns of the epilogue's matrix");
  }
}

bool rows_are_aligned(const Tensor& matrix) {
  return matrix.size(-1) * size_of(matrix.dtype()) % 16 == 0;
}

// Whether an epilogue has the precision of the product and a kernel. Seen on an H200
// (cuBLASLt 13.1): where rows do not begin on 16 bytes sums are rounded to bf16 before it, and its
// GELU takes a tanh of 2^-11, which is too coarse for f32.
bool is_precise(Epilogue epilogue, const Tensor& a, const Tensor& b, const Tensor& c) {
  if (epilogue == Epilogue::none || epilogue == Epilogue::left_row_sums) return true;
  const bool has_gelu = epilogue != Epilogue::add_bias;
  if (a.dtype() == DType::f32) return !has_gelu;
  return rows_are_aligned(a) && rows_are_aligned(b) && rows_are_aligned(c);
}

// What an algorithm may need, and how it may add up.
class Preference {
 public:
  Preference() {
    check(cublasLtMatmulPreferenceCreate(&preference_), "cublasLtMatmulPreferenceCreate");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    // Partial sums stay in float: by default a product cut along k may add them up rounded to bf16.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  }
  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;
  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }

  template <typename T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value),
          "setting what an algorithm may need");
  }
  uint32_t reductions() const {
    uint32_t mask = CUBLASLT_REDUCTION_SCHEME_MASK;
    size_t written = 0;
    check(
        cublasLtMatmulPreferenceGetAttribute(
            preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &mask, sizeof mask, &written),
        "reading how an algorithm may add up");
    return mask;
  }
  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

// Chooses an algorithm; false where there is none.
bool choose(cublasLtHandle_t handle, const Problem& problem, Plan& plan) {
  Preference preference;
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, problem.b_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, problem.a_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, problem.c_alignment);
  preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, problem.c_alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, plan.operation, plan.b, plan.a, plan.c, plan.c, preference.get(), 1, &found, &count);
  // An epilogue that it refuses is replaced by the product without one and a kernel.
  const bool replaceable = problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
  if (!replaceable && status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "choosing an algorithm");
  plan.algorithm = found.algo;
  return status == CUBLAS_STATUS_SUCCESS && count > 0 && found.state == CUBLAS_STATUS_SUCCESS;
}

// cuBLAS is column-major: it computes c^T = op(b)^T op(a)^T, so operands are swapped.
void make_plan(cublasLtHandle_t handle, const Problem& problem, const EpilogueTensors& tensors,
               Plan& plan) {
  const GemmShape& s = problem.shape;
  check(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  set_transpose(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, problem.transpose_b);
  set_transpose(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, problem.transpose_a);
  set_epilogue(plan.operation, problem.epilogue, tensors);
  plan.a = problem.transpose_a ? layout(problem.in, s.k, s.m, s.batch)
                               : layout(problem.in, s.m, s.k, s.batch);
  plan.b = problem.transpose_b ? layout(problem.in, s.n, s.k, s.batch)
                               : layout(problem.in, s.k, s.n, s.batch);
  plan.c = layout(problem.out, s.m, s.n, s.batch);
  plan.exists = choose(handle, problem, plan);
  if (plan.exists) return;
  require(problem.epilogue != CUBLASLT_EPILOGUE_DEFAULT, "cuBLASLt: no algorithm for ", s.batch,
          " products of ", s.m, " x ", s.n, " x ", s.k, " in ", name_of(problem.in),
          "; use --device cpu");
  static std::set<cublasLtEpilogue_t> said;  // under the library's mutex
  if (!said.insert(problem.epilogue).second) return;
  log_info("cuBLASLt has no algorithm that fuses ", name_of(problem.epilogue),
           " into a product of ", s.m, " x ", s.n, " x ", s.k, " in ", name_of(problem.in),
           "; such ones are computed by a kernel of their own");
}

}  // namespace

bool gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
          const Tensor& c, const GemmShape& shape, double alpha, double beta, Epilogue epilogue,
          const Tensor& vector, const Tensor& before) {
  if (shape.batch > kMaxProducts) {
    require(epilogue == Epilogue::none, "cuBLASLt: an epilogue for ", shape.batch,
            " products; at most ", kMaxProducts, " of one call can have one");
    for (int64_t begin = 0; begin < shape.batch; begin += kMaxProducts) {
      const int64_t end = std::min(begin + kMaxProducts, shape.batch);
      gemm(a.rows(begin, end), transpose_a, b.rows(begin, end), transpose_b, c.rows(begin, end),
           {end - begin, shape.m, shape.n, shape.k}, alpha, beta);
    }
    return true;
  }
  if (!is_precise(epilogue, a, b, c)) return false;
  const EpilogueTensors tensors{vector.defined() ? vector.raw() : nullptr,
                                before.defined() ? before.raw() : nullptr, shape.n};
  const Problem problem{shape,
                        transpose_a == Transpose::yes,
                        transpose_b == Transpose::yes,
                        a.dtype(),
                        c.dtype(),
                        epilogue_of(epilogue, vector.defined(), before.defined()),
                        alignment_of(a.raw()),
                        alignment_of(b.raw()),
                        alignment_of(c.raw()),
                        alignment_of(tensors.vector),
                        alignment_of(tensors.before)};
  const std::lock_guard lock(mutex);
  Library& lt = library();
  if (lt.plans.size() >= kMaxPlans) lt.plans.clear();
  const auto [found, is_new] = lt.plans.try_emplace(problem.key());
  Plan& plan = found->second;
  if (is_new) {
    try {
      make_plan(lt.handle, problem, tensors, plan);
    } catch (...) {
      lt.plans.erase(found);
      throw;
    }
  }
  if (!plan.exists) return false;
  set_epilogue(plan.operation, problem.epilogue, tensors);
  if (!lt.workspace.defined()) {
    const MemoryUser user("matrix products");
    lt.workspace = Tensor::empty({static_cast<int64_t>(kWorkspace)}, DType::u8, c.device());
  }
  const auto scale = static_cast<float>(alpha), keep = static_cast<float>(beta);
  check(cublasLtMatmul(lt.handle, plan.operation, &scale, b.raw(), plan.b, a.raw(), plan.a, &keep,
                       c.raw(), plan.c, c.raw(), plan.c, &plan.algorithm, lt.workspace.raw(),
                       kWorkspace, static_cast<cudaStream_t>(stream())),
        "cublasLtMatmul");
  return true;
}

bool sums_stay_in_float() {
  constexpr uint32_t kRounded =
      CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  return (Preference().reductions() & kRounded) == 0;
}

std::string gemm_backend() {
  const size_t version = cublasLtGetVersion();
  return concat("cuBLASLt ", version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace linnet::cuda
