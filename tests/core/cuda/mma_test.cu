// Products on tensor cores, from operands that lie as they are or transposed, and the copies that
// bring operands to shared memory.
#include "core/cuda/mma.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/cuda/async_copy.h"
#include "tests/cuda_helpers.h"

namespace linnet::cuda {
namespace {

using test::kGpu;

constexpr int kStride = 24;  // of tiles in shared memory

struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : left(arena.take<kernel_bf16>(size_t{16} * kStride)),
        right(arena.take<kernel_bf16>(size_t{16} * kStride)) {}
  kernel_bf16 *left, *right;
};

// y [16,16] = x w of the first `rows` rows of the arrays x and w, both [16,16] and as they are or
// transposed; rows beyond are zeros. One warp.
__global__ void product(const kernel_bf16* x, const kernel_bf16* w, int rows, bool left_transposed,
                        bool right_transposed, bool twice, float* y) {
  SharedArena arena;
  const Layout shared(arena);
  const int lane = static_cast<int>(threadIdx.x), row = lane / 2, column = lane % 2 * 8;
  AsyncCopies copies;
  copies.copy(shared.left + row * kStride + column, x + row * 16 + column, row < rows);
  copies.commit();
  copies.copy(shared.right + row * kStride + column, w + row * 16 + column, row < rows);
  copies.commit();
  copies.wait<1>();
  __syncwarp();
  const LeftFragment left = left_transposed ? load_left_transposed(shared.left, kStride, lane)
                                            : load_left(shared.left, kStride, lane);
  copies.wait<0>();
  __syncwarp();
  const RightFragments right = right_transposed ? load_right_transposed(shared.right, kStride, lane)
                                                : load_right(shared.right, kStride, lane);
  ResultFragment sums[2] = {};
  for (int half = 0; half < 2; ++half) multiply(left, right.halves[half], sums[half]);
  if (twice) {  // (x w) w
    const LeftFragment again = as_left(sums[0], sums[1]);
    for (int half = 0; half < 2; ++half) {
      sums[half] = {};
      multiply(again, right.halves[half], sums[half]);
    }
  }
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 4; ++i) {
      y[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = sums[half].values[i];
    }
  }
}

double entry(const std::vector<double>& matrix, int row, int column, int rows, bool transposed) {
  if (transposed) std::swap(row, column);
  return row < rows ? matrix[static_cast<size_t>(row * 16 + column)] : 0;
}

TEST(TensorCores, MultiplyWhatLiesAsItIsAndTransposed) {
  // Small integers: exact, so that a wrong place shows.
  std::vector<double> x(256), w(256);
  for (size_t i = 0; i < 256; ++i) {
    x[i] = static_cast<double>(i * 7 % 11) - 5;
    w[i] = static_cast<double>(i * 5 % 13 % 3) - 1;
  }
  const Tensor left = Tensor::from(x, {16, 16}).to(DType::bf16).to(kGpu);
  const Tensor right = Tensor::from(w, {16, 16}).to(DType::bf16).to(kGpu);
  const Tensor y = Tensor::empty({16, 16}, DType::f32, kGpu);
  for (int which = 0; which < 16; ++which) {
    const bool left_transposed = which % 2 == 1, right_transposed = which / 2 % 2 == 1;
    const bool twice = which / 4 % 2 == 1;
    const int rows = which / 8 % 2 == 1 ? 11 : 16;
    launch({"product", 1, 32, shared_bytes<Layout>()}, product, pointer<const kernel_bf16>(left),
           pointer<const kernel_bf16>(right), rows, left_transposed, right_transposed, twice,
           pointer<float>(y));
    std::vector<double> expected(256), first(256);
    for (int pass = 0; pass < (twice ? 2 : 1); ++pass) {
      for (int r = 0; r < 16; ++r) {
        for (int c = 0; c < 16; ++c) {
          double sum = 0;
          for (int k = 0; k < 16; ++k) {
            const double along = pass == 1 ? first[static_cast<size_t>(r * 16 + k)]
                                           : entry(x, r, k, rows, left_transposed);
            sum += along * entry(w, k, c, rows, right_transposed);
          }
          expected[static_cast<size_t>(r * 16 + c)] = sum;
        }
      }
      first = expected;
    }
    EXPECT_EQ(y.to_vector<double>(), expected) << which;
  }
}

__global__ void round_pair(const float* x, float* y) {
  const int lane = static_cast<int>(threadIdx.x);
  const uint32_t word = pack(x[2 * lane], x[2 * lane + 1]);
  y[2 * lane] = low_of(word);
  y[2 * lane + 1] = high_of(word);
}

TEST(TensorCores, PairsAreRoundedAsBf16Is) {
  std::vector<float> x(64);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = std::ldexp(1.0f + 0.013f * static_cast<float>(i), static_cast<int>(i * 4) - 126);
    if (i % 3 == 0) x[i] = -x[i];
  }
  const Tensor in = Tensor::from(x, {64});
  const Tensor y = Tensor::empty({64}, DType::f32, kGpu), on_device = in.to(kGpu);
  launch({"round_pair", 1, 32}, round_pair, pointer<const float>(on_device), pointer<float>(y));
  EXPECT_EQ(y.to_vector<float>(), in.to(DType::bf16).to_vector<float>());
}

}  // namespace
}  // namespace linnet::cuda
