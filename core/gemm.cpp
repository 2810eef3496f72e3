#include "core/gemm.h"

#include <algorithm>
#include <atomic>
#include <Eigen/Core>

#include "core/cuda/backend.h"
#include "core/cuda/emulation/submit.h"
#include "core/cuda/gemm.h"
#include "core/cuda/runtime.h"
#include "core/elementwise.h"
#include "core/row_products.h"
#include "core/threads.h"
#include "core/vector_math.h"
#ifdef LINNET_HAVE_ONEDNN
#include "core/gemm_onednn.h"
#endif

namespace linnet {
namespace {

std::atomic<uint64_t> flop_count{0}, batched_flop_count{0};

struct Sizes {
  int64_t m = 0, n = 0, k = 0;
};

// [.., rows, columns] with everything before the last dimension flattened.
std::pair<int64_t, int64_t> matrix_of(const Tensor& t) {
  const std::span<const int64_t> sizes = t.shape().sizes();
  if (sizes.empty()) return {1, 1};
  int64_t rows = 1;  // counted, not divided: there may be no columns
  for (size_t i = 0; i + 1 < sizes.size(); ++i) rows *= sizes[i];
  return {rows, sizes.back()};
}

Sizes check(std::pair<int64_t, int64_t> a, Transpose ta, std::pair<int64_t, int64_t> b,
            Transpose tb, std::pair<int64_t, int64_t> c, const Tensor& ta_, const Tensor& tb_,
            const Tensor& tc_) {
  if (ta == Transpose::yes) std::swap(a.first, a.second);
  if (tb == Transpose::yes) std::swap(b.first, b.second);
  require(a.second == b.first && a.first == c.first && b.second == c.second,
          "gemm: shapes do not fit: a ", ta_.shape(), ta == Transpose::yes ? " transposed" : "",
          ", b ", tb_.shape(), tb == Transpose::yes ? " transposed" : "", ", c ", tc_.shape());
  require(
      is_floating(ta_.dtype()) && ta_.dtype() == tb_.dtype() &&
          (tc_.dtype() == ta_.dtype() || (ta_.dtype() == DType::bf16 && tc_.dtype() == DType::f32)),
      "gemm: dtypes do not fit: a ", name_of(ta_.dtype()), ", b ", name_of(tb_.dtype()), ", c ",
      name_of(tc_.dtype()));
  return {a.first, b.second, a.second};
}

template <typename T>
void gemm_eigen(const T* a, Transpose ta, const T* b, Transpose tb, T* c, Sizes s, T alpha,
                T beta) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using View = Eigen::Map<const Matrix>;
  Eigen::Map<Matrix> out(c, s.m, s.n);
  if (beta == T(0)) {
    out.setZero();
  } else if (beta != T(1)) {
    out *= beta;
  }
  if (s.k == 0) return;
  const View left = ta == Transpose::yes ? View(a, s.k, s.m) : View(a, s.m, s.k);
  const View right = tb == Transpose::yes ? View(b, s.n, s.k) : View(b, s.k, s.n);
  if (ta == Transpose::no && tb == Transpose::no) {
    out.noalias() += alpha * left * right;
  } else if (ta == Transpose::no) {
    out.noalias() += alpha * left * right.transpose();
  } else if (tb == Transpose::no) {
    out.noalias() += alpha * left.transpose() * right;
  } else {
    out.noalias() += alpha * left.transpose() * right.transpose();
  }
}

// A product of bf16 operands where nothing multiplies them: of the same values in f32, rounded
// once.
template <typename Product>
void through_f32(const Tensor& a, const Tensor& b, const Tensor& c, const Product& product) {
  const Tensor sums = c.to(DType::f32);
  product(a.to(DType::f32), b.to(DType::f32), sums);
  if (c.dtype() != DType::f32) c.copy_from(sums);
}

void gemm_one(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
              Sizes s, double alpha, double beta) {
  if (s.m == 0 || s.n == 0) return;
  if (a.dtype() == DType::f64) {
    gemm_eigen(a.data<double>(), ta, b.data<double>(), tb, c.data<double>(), s, alpha, beta);
    return;
  }
  const bool few_rows = ta == Transpose::no && tb == Transpose::yes && s.m <= kMaxProductRows;
  if (in_small_step() && few_rows && alpha == 1 && (beta == 0 || beta == 1)) {
    const PackedWeights* weights = packed_weights();
    const PackedMatrix* packed =
        weights == nullptr || a.dtype() != DType::f32 ? nullptr : weights->find(b.raw(), s.n, s.k);
    if (packed != nullptr) return packed_row_products(a, *packed, c, s.m, s.n, s.k, beta == 1);
    return row_products(a, b, c, s.m, s.n, s.k, beta == 1);
  }
#ifdef LINNET_HAVE_ONEDNN
  if (a.dtype() == DType::f32 && s.k > 0) {
    onednn_sgemm(a.data<float>(), ta, b.data<float>(), tb, c.data<float>(), s.m, s.n, s.k,
                 static_cast<float>(alpha), static_cast<float>(beta));
    return;
  }
  if (a.dtype() == DType::bf16 && s.k > 0 && alpha == 1 && (beta == 0 || beta == 1) &&
      onednn_multiplies_bf16()) {
    onednn_matmul(a, ta, b, tb, c, 1, s.m, s.n, s.k, beta == 1);
    return;
  }
#endif
  if (a.dtype() == DType::bf16) {
    through_f32(a, b, c, [&](const Tensor& a32, const Tensor& b32, const Tensor& c32) {
      gemm_one(a32, ta, b32, tb, c32, s, alpha, beta);
    });
    return;
  }
  gemm_eigen(a.data<float>(), ta, b.data<float>(), tb, c.data<float>(), s,
             static_cast<float>(alpha), static_cast<float>(beta));
}

// As many products as a, b and c have matrices.
void gemm_each(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
               Sizes s, double alpha, double beta) {
#ifdef LINNET_HAVE_ONEDNN
  if (a.dtype() == DType::bf16 && !onednn_multiplies_bf16()) {
    through_f32(a, b, c, [&](const Tensor& a32, const Tensor& b32, const Tensor& c32) {
      gemm_each(a32, ta, b32, tb, c32, s, alpha, beta);
    });
    return;
  }
  if (a.dtype() != DType::f64 && alpha == 1 && (beta == 0 || beta == 1) && c.elements() > 0 &&
      s.k > 0) {
    onednn_matmul(a, ta, b, tb, c, a.size(0), s.m, s.n, s.k, beta == 1);
    return;
  }
#endif
  for (int64_t g = 0; g < a.size(0); ++g) {
    gemm_one(a.rows(g, g + 1), ta, b.rows(g, g + 1), tb, c.rows(g, g + 1), s, alpha, beta);
  }
}

// The emulated device's memory is the host's: its products are the CPU's.
[[maybe_unused]] Tensor host_view(const Tensor& t) {
  return Tensor::borrowed(t.raw(), t.shape(), t.dtype());
}

// Products without elements need no library.
[[maybe_unused]] void gemm_on_device(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
                                     const Tensor& c, const cuda::GemmShape& shape, double alpha,
                                     double beta) {
  if constexpr (kCudaBackend == CudaBackend::on) {
    if (c.elements() == 0) return;
    if (shape.k == 0) return beta == 0 ? c.set_zero() : scale_into(c, beta);  // 0 * NaN is NaN
    cuda::gemm(a, ta, b, tb, c, shape, alpha, beta);
  }
}

// Whether the device's library computed the product with its epilogue; if not, nothing is done yet.
bool fused_on_device(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
                     double beta, cuda::Epilogue epilogue, const Tensor& vector,
                     const Tensor& before = {}) {
  if constexpr (kCudaBackend == CudaBackend::on) {
    if (!on_cuda(c) || (vector.defined() && vector.dtype() != c.dtype())) return false;
    const Sizes s = check(matrix_of(a), ta, matrix_of(b), tb, matrix_of(c), a, b, c);
    if (c.elements() == 0 || s.k == 0) return false;
    const cuda::GemmShape shape{1, s.m, s.n, s.k};
    if (!cuda::gemm(a, ta, b, tb, c, shape, 1, beta, epilogue, vector, before)) return false;
    flop_count += static_cast<uint64_t>(2 * s.m * s.n * s.k);
    return true;
  }
  return false;
}

// As a GPU's library: GELU of the f32 sums, before they are rounded.
[[maybe_unused]] void gelu_tanh_emulated(const Tensor& a, Transpose ta, const Tensor& b,
                                         Transpose tb, const Tensor& c, const Tensor& bias,
                                         const Tensor& before) {
  const auto host = [](const Tensor& x) { return x.defined() ? host_view(x) : Tensor(); };
  emulation::submit(
      [=, x = host(a), y = host(b), z = host(c), row = host(bias), kept = host(before)] {
        const Tensor sums = Tensor::empty(z.shape(), DType::f32);
        gemm(x, ta, y, tb, sums);
        if (row.defined()) add_row_into(sums, row.to(DType::f32));
        if (kept.defined()) kept.copy_from(sums);
        for (float* at = sums.data<float>(); at != sums.data<float>() + sums.elements(); ++at) {
          *at = vector_gelu_tanh(*at);
        }
        z.copy_from(sums);
      });
}

// The same for its derivative.
[[maybe_unused]] void gelu_tanh_backward_emulated(const Tensor& a, Transpose ta, const Tensor& b,
                                                  Transpose tb, const Tensor& c,
                                                  const Tensor& before) {
  emulation::submit(
      [=, x = host_view(a), y = host_view(b), z = host_view(c), kept = host_view(before)] {
        const Tensor sums = Tensor::empty(z.shape(), DType::f32);
        gemm(x, ta, y, tb, sums);
        const Tensor values = kept.to(DType::f32);
        for (int64_t i = 0; i < sums.elements(); ++i) {
          sums.data<float>()[i] *= vector_gelu_tanh_derivative(values.data<float>()[i]);
        }
        z.copy_from(sums);
      });
}

void check_before(const char* name, const Tensor& before, const Tensor& c) {
  require(
      before.shape() == c.shape() && before.dtype() == c.dtype() && before.device() == c.device(),
      name, ": expected `before` like c, ", c.shape(), " ", name_of(c.dtype()), ", got ",
      before.shape(), " ", name_of(before.dtype()), " on ", name_of(before.device()));
}

void check_bias(const char* name, const Tensor& bias, const Tensor& c) {
  require(bias.device() == c.device() && bias.dtype() == c.dtype() &&
              bias.shape() == Shape({c.size(-1)}),
          name, ": expected a bias [", c.size(-1), "] of ", name_of(c.dtype()), " beside c, got ",
          bias.shape(), " ", name_of(bias.dtype()), " on ", name_of(bias.device()));
}

void check_devices(const Tensor& a, const Tensor& b, const Tensor& c) {
  require(a.device() == c.device() && b.device() == c.device(), "gemm: a is on ",
          name_of(a.device()), ", b on ", name_of(b.device()), ", c on ", name_of(c.device()));
  if constexpr (kCuda) {
    if (on_cuda(c)) cuda::require_current(c.device().index);
  }
}

}  // namespace

void gemm(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
          double alpha, double beta) {
  check_devices(a, b, c);
  const Sizes sizes = check(matrix_of(a), ta, matrix_of(b), tb, matrix_of(c), a, b, c);
  if constexpr (kCudaBackend == CudaBackend::emulated) {
    if (on_cuda(c)) {
      return emulation::submit([=, x = host_view(a), y = host_view(b), z = host_view(c)] {
        gemm(x, ta, y, tb, z, alpha, beta);
      });
    }
  }
  flop_count += static_cast<uint64_t>(2 * sizes.m * sizes.n * sizes.k);
  if constexpr (kCudaBackend == CudaBackend::on) {
    if (on_cuda(c)) {
      return gemm_on_device(a, ta, b, tb, c, {1, sizes.m, sizes.n, sizes.k}, alpha, beta);
    }
  }
  const KnownWork threads(gemm_work(sizes.m, sizes.n, sizes.k, a.dtype()));
  gemm_one(a, ta, b, tb, c, sizes, alpha, beta);
}

void gemm_bias(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
               const Tensor& bias) {
  check_devices(a, b, c);
  check_bias("gemm_bias", bias, c);
  if (fused_on_device(a, ta, b, tb, c, 0, cuda::Epilogue::add_bias, bias)) return;
  const bool rounds = c.dtype() == DType::bf16;
  const Tensor sums = rounds ? Tensor::empty(c.shape(), DType::f32, c.device()) : c;
  gemm(a, ta, b, tb, sums);
  add_row_into(sums, bias.to(sums.dtype()));
  if (rounds) c.copy_from(sums);
}

bool gemm_gelu_tanh(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
                    const Tensor& bias, const Tensor& before) {
  check_devices(a, b, c);
  if (bias.defined()) check_bias("gemm_gelu_tanh", bias, c);
  if (before.defined()) check_before("gemm_gelu_tanh", before, c);
  if (!on_cuda(c) || (before.defined() && c.size(-1) % 8 != 0)) return false;
  if constexpr (kCudaBackend == CudaBackend::emulated) {
    gelu_tanh_emulated(a, ta, b, tb, c, bias, before);
    return true;
  }
  return fused_on_device(a, ta, b, tb, c, 0, cuda::Epilogue::gelu_tanh, bias, before);
}

bool gemm_gelu_tanh_backward(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb,
                             const Tensor& c, const Tensor& before) {
  check_devices(a, b, c);
  check_before("gemm_gelu_tanh_backward", before, c);
  if (!on_cuda(c) || c.size(-1) % 8 != 0) return false;
  if constexpr (kCudaBackend == CudaBackend::emulated) {
    gelu_tanh_backward_emulated(a, ta, b, tb, c, before);
    return true;
  }
  return fused_on_device(a, ta, b, tb, c, 0, cuda::Epilogue::gelu_tanh_backward, {}, before);
}

void gemm_row_sums(const Tensor& a, const Tensor& b, const Tensor& c, double beta,
                   const Tensor& row, bool accumulate) {
  check_devices(a, b, c);
  require(row.device() == c.device() && row.elements() == a.size(-1),
          "gemm_row_sums: expected a row [", a.size(-1), "] beside c, got ", row.shape(), " on ",
          name_of(row.device()));
  const bool apart = accumulate && kCudaBackend == CudaBackend::on && on_cuda(c);
  const Tensor sums = apart ? Tensor::empty(row.shape(), row.dtype(), row.device()) : row;
  if (fused_on_device(a, Transpose::yes, b, Transpose::no, c, beta, cuda::Epilogue::left_row_sums,
                      sums)) {
    if (apart) add_into(row, sums);
    return;
  }
  gemm(a, Transpose::yes, b, Transpose::no, c, 1, beta);
  sum_rows(a, row, accumulate);
}

void batched_gemm(const Tensor& a, Transpose ta, const Tensor& b, Transpose tb, const Tensor& c,
                  double alpha, double beta) {
  require(a.shape().rank() == 3 && b.shape().rank() == 3 && c.shape().rank() == 3 &&
              a.size(0) == b.size(0) && a.size(0) == c.size(0),
          "batched_gemm: expected three tensors [G, rows, columns], got ", a.shape(), ", ",
          b.shape(), ", ", c.shape());
  check_devices(a, b, c);
  const Sizes s = check({a.size(1), a.size(2)}, ta, {b.size(1), b.size(2)}, tb,
                        {c.size(1), c.size(2)}, a, b, c);
  if constexpr (kCudaBackend == CudaBackend::emulated) {
    if (on_cuda(c)) {
      return emulation::submit([=, x = host_view(a), y = host_view(b), z = host_view(c)] {
        batched_gemm(x, ta, y, tb, z, alpha, beta);
      });
    }
  }
  const auto flops = static_cast<uint64_t>(2 * a.size(0) * s.m * s.n * s.k);
  flop_count += flops;
  batched_flop_count += flops;
  if constexpr (kCudaBackend == CudaBackend::on) {
    if (on_cuda(c)) {
      return gemm_on_device(a, ta, b, tb, c, {a.size(0), s.m, s.n, s.k}, alpha, beta);
    }
  }
  const KnownWork threads(a.size(0) * gemm_work(s.m, s.n, s.k, a.dtype()));
  gemm_each(a, ta, b, tb, c, s, alpha, beta);
}

int64_t gemm_work(int64_t m, int64_t n, int64_t k, DType dtype) {
#if defined(__AMX_BF16__)
  constexpr int64_t kOfBf16 = 32;
#else
  constexpr int64_t kOfBf16 = 8;
#endif
  constexpr int64_t kOfOthers = 4;
  const int64_t at_once = dtype == DType::bf16 ? kOfBf16 : kOfOthers;
  return std::max(n * k, m * n * k / at_once);
}

double gemm_flop_count() {
  return static_cast<double>(flop_count.load());
}

double batched_gemm_flop_count() {
  return static_cast<double>(batched_flop_count.load());
}

std::string gemm_backend() {
#ifdef LINNET_HAVE_ONEDNN
  return onednn_version();
#else
  return concat("Eigen ", EIGEN_WORLD_VERSION, ".", EIGEN_MAJOR_VERSION, ".", EIGEN_MINOR_VERSION);
#endif
}

}  // namespace linnet
