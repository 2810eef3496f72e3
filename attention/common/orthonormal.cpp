// Gram-Schmidt in double.
#include "attention/common/orthonormal.h"

#include <cmath>

#include "core/error.h"

namespace linnet {
namespace {

// Remainder of a row, relative to its length, below which its direction is rounding error.
constexpr double kDependent = 1e-12;

double dot(const double* a, const double* b, int64_t n) {
  double total = 0;
  for (int64_t c = 0; c < n; ++c) total += a[c] * b[c];
  return total;
}

}  // namespace

void orthonormalise_rows(double* rows, int64_t rank, int64_t width, std::string_view what) {
  for (int64_t l = 0; l < rank; ++l) {
    double* row = rows + l * width;
    const double smallest = kDependent * std::sqrt(dot(row, row, width));
    // Twice for accuracy.
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t other = 0; other < l; ++other) {
        const double* before = rows + other * width;
        const double along = dot(row, before, width);
        for (int64_t c = 0; c < width; ++c) row[c] -= along * before[c];
      }
      const double norm = std::sqrt(dot(row, row, width));
      require(norm > smallest, what, ": row ", l, " of ", rank,
              " is not finite or depends linearly on the rows before it, so there is no "
              "orthonormal basis of them; lower the learning rate");
      for (int64_t c = 0; c < width; ++c) row[c] /= norm;
    }
  }
}

std::vector<double> orthonormal_rows(int64_t rank, int64_t width, const RandomKey& key) {
  std::vector<double> rows(static_cast<size_t>(rank * width));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = key.normal(i);
  orthonormalise_rows(rows.data(), rank, width, "a drawn basis");
  return rows;
}

}  // namespace linnet
