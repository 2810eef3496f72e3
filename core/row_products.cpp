#include "core/row_products.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cmath>
#include <cstring>

#include "core/threads.h"

namespace linnet {
namespace {

// Terms k, k + 16, k + 32 ... of a sum are added in lane k of 16, which are one register with
// AVX-512 and two without: compilers keep a vector in memory that is wider than a register.
constexpr int64_t kLanes = 16;
#if defined(__AVX512F__)
constexpr int64_t kParts = 1;
#else
constexpr int64_t kParts = 2;
#endif
constexpr int64_t kPartLanes = kLanes / kParts;
using Part = float __attribute__((vector_size(kPartLanes * sizeof(float))));
struct Vector {
  Part parts[kParts];
};
// Columns and rows that are computed together: as many sums are in flight as hide the latency of
// one, and as the processor has registers. A row alone takes more columns.
constexpr int kColumns = 2;
constexpr int kColumnsOfOneRow = 4;
constexpr int kRows = kParts == 1 ? 8 : 3;

float as_float(float value) {
  return value;
}
float as_float(bf16 value) {
  return static_cast<float>(value);
}
float as_float(int8_t value) {
  return static_cast<float>(value);
}

Part load(const float* at) {
  Part part;
  std::memcpy(&part, at, sizeof(part));
  return part;
}
// Compilers make these of several instructions where they are written as below.
#if defined(__AVX512F__)
Part load(const bf16* at) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
Part load(const int8_t* at) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
#elif defined(__AVX2__)
Part load(const bf16* at) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
Part load(const int8_t* at) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
#else
template <typename Weight>
Part load(const Weight* at) {
  float values[kPartLanes];
  for (int64_t lane = 0; lane < kPartLanes; ++lane) values[lane] = as_float(at[lane]);
  return load(values);
}
#endif

// The two halves of a vector, added.
template <typename Half, typename Whole>
Half halved(const Whole& vector) {
  static_assert(2 * sizeof(Half) == sizeof(Whole));
  Half halves[2];
  std::memcpy(halves, &vector, sizeof(vector));
  return halves[0] + halves[1];
}

using Eight = float __attribute__((vector_size(8 * sizeof(float))));
using Four = float __attribute__((vector_size(4 * sizeof(float))));

float sum_of(const Vector& vector) {
  const Four four = halved<Four>(halved<Eight>(vector));
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// sum_of() each of 4 vectors, in the lane of its number.
Four sums_of_four(const Vector* vectors) {
  Four fours[4];
  for (int i = 0; i < 4; ++i) fours[i] = halved<Four>(halved<Eight>(vectors[i]));
  // Lanes 0 and 2 of two vectors each, then 1 and 3.
  const auto evens = [](const Four& a, const Four& b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6);
  };
  const auto odds = [](const Four& a, const Four& b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7);
  };
  const Four even[2] = {evens(fours[0], fours[1]), evens(fours[2], fours[3])};
  const Four odd[2] = {odds(fours[0], fours[1]), odds(fours[2], fours[3])};
  return (evens(even[0], even[1]) + odds(even[0], even[1])) +
         (evens(odd[0], odd[1]) + odds(odd[0], odd[1]));
}

#if defined(__AVX512F__)
// sum_of() each of 16 vectors, in the lane of its number: as many vectors are halved at once as
// fill one, which takes a third of the instructions.
Part sums_of(const Part* vectors) {
  Part eighths[8], fours[4], twos[2];
  for (int i = 0; i < 8; ++i) {
    const Part &a = vectors[i], &b = vectors[i + 8];
    eighths[i] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
        __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  }
  // Four lanes each of vectors i, i + 4, i + 8 and i + 12.
  for (int i = 0; i < 4; ++i) {
    const Part &a = eighths[i], &b = eighths[i + 4];
    fours[i] =
        __builtin_shufflevector(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
        __builtin_shufflevector(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
  }
  for (int i = 0; i < 2; ++i) {
    const Part &a = fours[i], &b = fours[i + 2];
    twos[i] =
        __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
        __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
  const Part &a = twos[0], &b = twos[1];
  return __builtin_shufflevector(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
         __builtin_shufflevector(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}
#endif

// sums[row][column]: products of Rows rows of x with Columns rows of w, all k long and the latter
// `apart` from each other.
template <int Rows, int Columns, typename Weight>
void dot_block(const float* x, const Weight* w, int64_t apart, int64_t k, float (*sums)[Columns]) {
  Vector lanes[Rows][Columns];
  for (auto& row : lanes) {  // registers, which compilers would otherwise clear by way of memory
    for (Vector& column : row) {
      for (Part& part : column.parts) part = Part{};
    }
  }
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    Vector values[Rows];
    for (int row = 0; row < Rows; ++row) {
      for (int part = 0; part < kParts; ++part) {
        values[row].parts[part] = load(x + row * k + i + part * kPartLanes);
      }
    }
    for (int column = 0; column < Columns; ++column) {
      for (int part = 0; part < kParts; ++part) {
        const Part weights = load(w + column * apart + i + part * kPartLanes);
        for (int row = 0; row < Rows; ++row) {
          lanes[row][column].parts[part] += values[row].parts[part] * weights;
        }
      }
    }
  }
#if defined(__AVX512F__)
  if constexpr (Rows * Columns == kLanes) {
    if (i == k) {
      const Part all = sums_of(&lanes[0][0].parts[0]);
      std::memcpy(sums[0], &all, sizeof(all));
      return;
    }
  }
#endif
  if constexpr (Rows * Columns == 4) {
    if (i == k) {
      const Four all = sums_of_four(&lanes[0][0]);
      std::memcpy(sums[0], &all, sizeof(all));
      return;
    }
  }
  for (int row = 0; row < Rows; ++row) {
    for (int column = 0; column < Columns; ++column) {
      float rest = 0;
      for (int64_t j = i; j < k; ++j) {
        rest = std::fma(x[row * k + j], as_float(w[column * apart + j]), rest);
      }
      sums[row][column] = sum_of(lanes[row][column]) + rest;
    }
  }
}

// Columns `first`, `first` + `apart` and so on of y [m,n] = x [m,k] w^T, times their scales unless
// null.
template <int Columns, typename Weight, typename Out>
void columns_of(const float* x, const Weight* w, const float* scales, Out* y, int64_t m, int64_t n,
                int64_t k, int64_t first, int64_t apart, bool accumulate) {
  const Weight* weights = w + first * k;
  const int64_t step = apart * k;
  float sums[kMaxProductRows][Columns];
  int64_t row = 0;
  if constexpr (Columns == kColumnsOfOneRow) m = 1;  // so that no code is made for others
  for (; row + kRows <= m; row += kRows) {
    dot_block<kRows, Columns>(x + row * k, weights, step, k, sums + row);
  }
  if (kRows > 4 && row + 4 <= m) {
    dot_block<4, Columns>(x + row * k, weights, step, k, sums + row);
    row += 4;
  }
  if (kRows > 2 && row + 2 <= m) {
    dot_block<2, Columns>(x + row * k, weights, step, k, sums + row);
    row += 2;
  }
  if (row < m) dot_block<1, Columns>(x + row * k, weights, step, k, sums + row);
  for (row = 0; row < m; ++row) {
    for (int column = 0; column < Columns; ++column) {
      const int64_t at = first + column * apart;
      const float sum = sums[row][column], scale = scales == nullptr ? 1 : scales[at];
      Out& out = y[row * n + at];
      // Written so that compilers round as often whatever the rows.
      out = Out(accumulate ? std::fma(scale, sum, as_float(out)) : scale * sum);
    }
  }
}

template <int Columns, typename Weight, typename Out>
void products_by(const float* x, const Weight* w, const float* scales, Out* y, int64_t m, int64_t n,
                 int64_t k, bool accumulate) {
  // The columns of a block lie `blocks` apart, so that each is one stream through the memory of
  // all blocks, which the processor asks ahead: rows side by side end before it has begun.
  const int64_t blocks = n / Columns;
  parallel_for(blocks, 8 / Columns, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      columns_of<Columns>(x, w, scales, y, m, n, k, block, blocks, accumulate);
    }
  });
  for (int64_t column = blocks * Columns; column < n; ++column) {
    columns_of<1>(x, w, scales, y, m, n, k, column, 1, accumulate);
  }
}

template <typename Weight, typename Out>
void products(const float* x, const Weight* w, const float* scales, Out* y, int64_t m, int64_t n,
              int64_t k, bool accumulate) {
  if (m == 1) return products_by<kColumnsOfOneRow>(x, w, scales, y, m, n, k, accumulate);
  products_by<kColumns>(x, w, scales, y, m, n, k, accumulate);
}

template <typename Weight>
void products(const float* x, const Weight* w, const Tensor& c, int64_t m, int64_t n, int64_t k,
              bool accumulate) {
  if (c.dtype() == DType::f32) {
    products(x, w, nullptr, c.data<float>(), m, n, k, accumulate);
  } else {
    products(x, w, nullptr, c.data<bf16>(), m, n, k, accumulate);
  }
}

}  // namespace

void row_products(const Tensor& a, const Tensor& b, const Tensor& c, int64_t m, int64_t n,
                  int64_t k, bool accumulate) {
  require(m <= kMaxProductRows, "row_products: ", m, " rows");
  const Tensor x = a.to(DType::f32);
  if (b.dtype() == DType::f32) {
    products(x.data<float>(), b.data<float>(), c, m, n, k, accumulate);
  } else {
    products(x.data<float>(), b.data<bf16>(), c, m, n, k, accumulate);
  }
}

void packed_row_products(const Tensor& a, const PackedMatrix& b, const Tensor& c, int64_t m,
                         int64_t n, int64_t k, bool accumulate) {
  require(m <= kMaxProductRows, "row_products: ", m, " rows");
  const float* x = a.data<float>();
  auto* y = c.data<float>();
  if (b.format == WeightFormat::bf16) {
    products(x, b.values.data<bf16>(), nullptr, y, m, n, k, accumulate);
  } else {
    const auto* integers = reinterpret_cast<const int8_t*>(b.values.data<uint8_t>());
    products(x, integers, b.scales.data<float>(), y, m, n, k, accumulate);
  }
}

}  // namespace linnet
