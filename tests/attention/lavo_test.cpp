// LAVO's orthonormal basis: the decomposition, and each kind of basis after an update.
#include "attention/common/orthonormal.h"
#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"
#include "tests/worst.h"

namespace linnet {
namespace {

constexpr int64_t kWidth = 16, kHeads = 2;

double dot(const double* a, const double* b, int64_t n) {
  double total = 0;
  for (int64_t c = 0; c < n; ++c) total += a[c] * b[c];
  return total;
}

// The largest entry of |rows rows^T - 1|; NaN counts as infinite.
double distance_from_orthonormal(const double* rows, int64_t rank, int64_t width) {
  double largest = 0;
  for (int64_t a = 0; a < rank; ++a) {
    for (int64_t b = 0; b < rank; ++b) {
      const double error =
          std::abs(dot(rows + a * width, rows + b * width, width) - (a == b ? 1 : 0));
      test::keep_worst(largest, error);
    }
  }
  return largest;
}

TEST(OrthonormaliseRows, IsTheQrDecompositionWithAPositiveDiagonal) {
  constexpr int64_t kRank = 5, kColumns = 7;
  const std::vector<double> before =
      test::random_tensor({kRank, kColumns}, "rows").to_vector<double>();
  std::vector<double> q = before;
  orthonormalise_rows(q.data(), kRank, kColumns, "rows");
  EXPECT_TRUE(distance_from_orthonormal(q.data(), kRank, kColumns) <= 1e-14);
  // Row l of the matrix is sum_m R_ml q_m with R_ml = 0 for m > l and R_ll > 0.
  for (int64_t l = 0; l < kRank; ++l) {
    std::vector<double> left(&before[l * kColumns], &before[l * kColumns] + kColumns);
    for (int64_t m = 0; m <= l; ++m) {
      const double r = dot(&q[m * kColumns], &before[l * kColumns], kColumns);
      if (m == l) {
        EXPECT_GT(r, 0) << l;
      }
      for (int64_t c = 0; c < kColumns; ++c) left[c] -= r * q[m * kColumns + c];
    }
    for (const double rest : left) EXPECT_TRUE(std::abs(rest) <= 1e-13) << l;
  }
}

TEST(OrthonormaliseRows, IsContinuousAndKeepsOrthonormalRows) {
  const std::vector<double> basis = orthonormal_rows(6, 8, RandomKey{3, 0, 0});
  std::vector<double> again = basis;
  orthonormalise_rows(again.data(), 6, 8, "rows");
  std::vector<double> near = basis;
  for (size_t i = 0; i < near.size(); ++i) near[i] += i % 2 == 0 ? 1e-6 : -1e-6;
  orthonormalise_rows(near.data(), 6, 8, "rows");
  for (size_t i = 0; i < basis.size(); ++i) {
    EXPECT_TRUE(std::abs(again[i] - basis[i]) <= 1e-14);
    EXPECT_TRUE(std::abs(near[i] - basis[i]) <= 1e-4);
  }
}

TEST(OrthonormaliseRows, RefusesRowsWithoutABasis) {
  const std::vector<std::vector<double>> bad = {
      {1, 2, 3, 2, 4, 6}, {0, 0, 0, 1, 0, 0}, {1, NAN, 0, 0, 1, 0}, {1, 0, 0, HUGE_VAL, 1, 0}};
  for (std::vector<double> rows : bad) {
    const double shown = rows[1];
    EXPECT_THROW(orthonormalise_rows(rows.data(), 2, 3, "rows"), Error) << shown;
  }
}

// A mixer whose weights have moved as an update moves them.
struct Moved {
  Moved(const std::string& parameters, DType master) {
    const ParameterScope root(set);
    MixerOptions options;
    options.width = kWidth;
    options.heads = kHeads;
    mixer = find_mechanism("lavo").make(parse_yaml(parameters, "parameters"), options,
                                        {root.child("own"), root.child("tied")});
    set.materialize(3, master, master);
    const Tensor step = test::random_tensor(set.weights().shape(), "step", DType::f64, 0.1);
    std::vector<double> weights = set.weights().to(DType::f64).to_vector<double>();
    const std::vector<double> change = step.to_vector<double>();
    for (size_t i = 0; i < weights.size(); ++i) weights[i] += change[i];
    set.weights().copy_from(Tensor::from(weights, set.weights().shape()));
    before = set.weights().to(DType::f64).to_vector<double>();
    mixer->after_update(set);
    after = set.weights().to(DType::f64).to_vector<double>();
  }
  ParameterSet set;
  std::unique_ptr<TokenMixer> mixer;
  std::vector<double> before, after;
};

TEST(LavoBasis, QrMakesEveryBasisOrthonormalAndTouchesNothingElse) {
  for (const DType dtype : {DType::f32, DType::f64}) {
    for (const bool shared : {false, true}) {
      const Moved moved(
          concat("{rank: 6, window: 4, basis_train: qr, basis: ", shared ? "model" : "head", "}"),
          dtype);
      const ParameterSet::Entry& basis = moved.set.find("own.basis");
      const int64_t width = shared ? kWidth : kWidth / kHeads;
      for (int64_t at = basis.begin; at < basis.end; at += 6 * width) {
        EXPECT_TRUE(distance_from_orthonormal(&moved.before[at], 6, width) > 0.01);
        EXPECT_TRUE(distance_from_orthonormal(&moved.after[at], 6, width) <=
                    (dtype == DType::f64 ? 1e-14 : 1e-6));
        for (int64_t l = 0; l < 6; ++l) {
          EXPECT_GT(dot(&moved.before[at + l * width], &moved.after[at + l * width], width), 0);
        }
      }
      for (int64_t i = 0; i < std::ssize(moved.before); ++i) {
        if (i >= basis.begin && i < basis.end) continue;
        EXPECT_EQ(moved.before[i], moved.after[i]) << i;
      }
    }
  }
}

// "Linear Attention via Orthogonal Memory": W_q, B and W_o, unless keys or values are compressed.
TEST(LavoCross, DeclaresTheProjectionsThatItReads) {
  const auto declared = [](const char* parameters) {
    ParameterSet set;
    const ParameterScope root(set);
    MixerOptions options;
    options.width = kWidth;
    options.heads = kHeads;
    options.form = Form::cross;
    find_mechanism("lavo").make(parse_yaml(parameters, "test"), options,
                                {root.child("own"), root.child("tied")});
    int64_t count = 0;
    for (const ParameterSet::Entry& entry : set.entries()) count += entry.shape.elements();
    return count;
  };
  constexpr int64_t kMap = kWidth * kWidth + kWidth, kBasis = 6 * kWidth;
  EXPECT_EQ(declared("{rank: 6}"), 2 * kMap + kBasis);
  EXPECT_EQ(declared("{rank: 6, code_input: k}"), 3 * kMap + kBasis);
  EXPECT_EQ(declared("{rank: 6, code_input: v}"), 3 * kMap + kBasis);
}

TEST(LavoBasis, FreeAndFrozenMixersAreUntouched) {
  for (const char* kind : {"free", "frozen"}) {
    const Moved moved(concat("{rank: 6, window: 4, basis_train: ", kind, "}"), DType::f32);
    EXPECT_EQ(moved.before, moved.after) << kind;
  }
}

}  // namespace
}  // namespace linnet
