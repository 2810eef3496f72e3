// Small dense products inside one thread, on operands that already lie in cache (tiles of about
// 64 x 64), and operations on rows of values that go with them. No packing, no allocation.
#pragma once

#include <cstdint>

namespace linnet {

// Whether a product overwrites its output or adds to it.
enum class Write : uint8_t { overwrite, accumulate };

// A row-major matrix in memory: element (i, j) of the operand is data[i * stride + j], or, where
// transposed, data[j * stride + i].
template <typename T>
struct TileOperand {
  const T* data;
  int64_t stride;
  bool transposed = false;
};

// c[m,n] (+)= alpha * a[m,k] b[k,n], float or double. c is row-major with stride c_stride and does
// not overlap a or b. Fastest where b is not transposed (a may be) and n is a multiple of a vector
// (16 floats); a transposed b is transposed in a small buffer first, about a third slower at 64^3.
// Every element is summed over k in ascending order with fused multiply-adds (bitwise repeatable,
// and independent of m and n). With m, n or k = 0 it writes zeros, or nothing, as the equation
// says.
template <typename T>
void tile_gemm(int64_t m, int64_t n, int64_t k, T alpha, TileOperand<T> a, TileOperand<T> b,
               Write write, T* c, int64_t c_stride);

// c = from + a b, where `from` [m,n] has the stride of c and is c or does not overlap it: a sum
// that is kept both before and after. b [k,n].
template <typename T>
void add_product(int64_t m, int64_t n, int64_t k, TileOperand<T> a, const T* b, int64_t b_stride,
                 const T* from, T* c, int64_t c_stride);

// c[m,n] += L b, or L^T b where `lower` is transposed: L [m,m] (its transpose is not stored) is
// lower triangular, with zeros above the diagonal, most of which are left out of the sums. b [m,n].
template <typename T>
void add_triangle_times(int64_t m, int64_t n, TileOperand<T> lower, const T* b, int64_t b_stride,
                        T* c, int64_t c_stride);

// Multiply-adds of all tile products since the program began, on all threads, as the kernels
// execute them, padding included, but only the elements inside a triangle.
double tile_multiply_adds();
// Adds those of a kernel whose products are not made of tiles.
void count_multiply_adds(int64_t n);

// Elements of T in one native vector: pad widths to a multiple of it to stay on the fast path.
template <typename T>
int64_t vector_elements();

// out[i] = exp(x[i] - shift); returns the sum. Error <= 2 ulp each, results below the smallest
// normal number (so exp(-inf)) are 0; out may be x.
template <typename T>
T exp_row(const T* x, int64_t n, T shift, T* out);
// Largest element; -infinity where n = 0. No element may be NaN.
template <typename T>
T max_row(const T* x, int64_t n);
// Sum in vector order: bitwise repeatable.
template <typename T>
T sum_row(const T* x, int64_t n);
// sum_i x[i] y[i].
template <typename T>
T dot_row(const T* x, const T* y, int64_t n);
// y[i] += alpha * x[i].
template <typename T>
void axpy_row(int64_t n, T alpha, const T* x, T* y);

}  // namespace linnet
