// The emulator finds what it promises: kernels with one planted bug each. What only sanitizers see
// is not run here; races are, and ThreadSanitizer's build must report them (see planted_race).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/cuda/async_copy.h"
#include "core/cuda/kernel.h"
#include "core/cuda/mma.h"
#include "tests/cuda_helpers.h"

namespace linnet::cuda {
namespace {

using testing::HasSubstr;

enum class Bug : uint8_t {
  none,
  missing_barrier,
  missing_warp_barrier,
  divergent_shuffle,
  divergent_barrier,
  little_shared_memory,
  uninitialized_shared,
  lane_outside_mask,
  early_return,
};

struct Layout {
  __host__ __device__ explicit Layout(SharedArena& arena)
      : tile(arena.take<float[17]>(16)), line(arena.take<float>(256)) {}
  float (*tile)[17];
  float* line;
};

// y = the block's 16 x 16 tile transposed, plus each value's neighbour of the warp, plus the count
// of threads.
template <Bug bug>
__global__ void planted(const float* x, float* y) {
  SharedArena arena;
  const Layout shared(arena);
  const unsigned t = threadIdx.x, row = t / 16, column = t % 16, lane = t % 32;
  const int64_t at = global_thread();
  if (bug != Bug::uninitialized_shared || t != 77) shared.tile[row][column] = x[at];
  if (bug != Bug::missing_barrier) __syncthreads();
  float value = shared.tile[column][row];
  shared.line[t] = value;
  if (bug != Bug::missing_warp_barrier) __syncwarp();
  value += shared.line[t ^ 1u];
  if (bug == Bug::divergent_shuffle && lane < 16) value += 0 * __shfl_xor_sync(~0u, value, 1);
  if (bug == Bug::lane_outside_mask && lane < 16) value += 0 * __shfl_sync(0xFFFFu, value, 20);
  if (bug == Bug::early_return && t == 3) {
    y[at] = value + 255;
    return;
  }
  if (bug == Bug::divergent_barrier && t < 128) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  y[at] = value + static_cast<float>(__syncthreads_count(1));
}

constexpr int kBlocks = 3;

template <Bug bug>
double wrong_values() {
  const Tensor x = test::random_tensor({kBlocks * 256}, "planted", DType::f32);
  const Tensor on_device = x.to(test::kGpu);
  const Tensor y = Tensor::zeros(x.shape(), DType::f32, test::kGpu);
  const size_t less = bug == Bug::little_shared_memory ? 64 : 0;
  launch({"planted", kBlocks, 256, shared_bytes<Layout>() - less}, planted<bug>,
         static_cast<const float*>(pointer<float>(on_device)), pointer<float>(y));
  const std::vector<float> in = x.to_vector<float>(), out = y.to_vector<float>();
  const auto transposed = [&](int i) {
    const int t = i % 256;
    return in[static_cast<size_t>(i / 256 * 256 + t % 16 * 16 + t / 16)];
  };
  double wrong = 0;
  for (int i = 0; i < kBlocks * 256; ++i) {
    const float expected = transposed(i) + transposed(i ^ 1);
    const float threads = bug == Bug::early_return ? 255 : 256;
    if (!(out[static_cast<size_t>(i)] == expected + threads)) ++wrong;
  }
  return wrong;
}

template <Bug bug>
std::string error_of() {
  try {
    wrong_values<bug>();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CudaEmulation, RightKernelsRun) {
  EXPECT_EQ(wrong_values<Bug::none>(), 0);
  EXPECT_EQ(wrong_values<Bug::early_return>(), 0);
}

// Under ThreadSanitizer these are reported as races and end the test.
#ifndef __SANITIZE_THREAD__
TEST(CudaEmulation, MissingBarriersGiveWrongResults) {
  EXPECT_GT(wrong_values<Bug::missing_barrier>(), 0);
  EXPECT_GT(wrong_values<Bug::missing_warp_barrier>(), 0);
}
#else
TEST(CudaEmulation, MissingBarriersAreRaces) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // fibers do not survive a fork
  const testing::ExitedWithCode racy(66);          // ThreadSanitizer's, when it reported something
  const char* here = "data race [^ ]*emulation_test.cu";
  EXPECT_EXIT((wrong_values<Bug::missing_barrier>(), std::exit(0)), racy, here);
  EXPECT_EXIT((wrong_values<Bug::missing_warp_barrier>(), std::exit(0)), racy, here);
}
#endif

TEST(CudaEmulation, UninitializedSharedMemoryIsNan) {
  EXPECT_GT(wrong_values<Bug::uninitialized_shared>(), 0);
}

TEST(CudaEmulation, MisuseIsAnErrorWithItsPlace) {
  EXPECT_THAT(error_of<Bug::divergent_shuffle>(),
              testing::AllOf(HasSubstr("kernel planted"), HasSubstr("emulation_test.cu:")));
  EXPECT_THAT(error_of<Bug::lane_outside_mask>(), HasSubstr("takes no part in the collective"));
  EXPECT_THAT(error_of<Bug::divergent_barrier>(), HasSubstr("divergent barriers"));
  EXPECT_THAT(error_of<Bug::little_shared_memory>(), HasSubstr("bytes of shared memory"));
  EXPECT_EQ(wrong_values<Bug::none>(), 0) << "the emulator works on after an error";
}

struct CopyLayout {
  __host__ __device__ explicit CopyLayout(SharedArena& arena) : line(arena.take<float>(128)) {}
  float* line;
};

enum class CopyBug : uint8_t { none, missing_wait, misaligned, divergent_product };

// y = x by asynchronous copies, plus the products of zeros.
template <CopyBug bug>
__global__ void planted_copy(const float* x, float* y) {
  SharedArena arena;
  const CopyLayout shared(arena);
  const unsigned lane = threadIdx.x;
  const int64_t at = 4 * global_thread();
  AsyncCopies copies;
  copies.copy(shared.line + 4 * lane, x + at + (bug == CopyBug::misaligned && lane == 3 ? 1 : 0),
              true);
  copies.commit();
  copies.wait<bug == CopyBug::missing_wait ? 1 : 0>();
  ResultFragment nothing{};
  if (bug != CopyBug::divergent_product || lane < 16) multiply({}, {}, nothing);
  for (unsigned i = 0; i < 4; ++i) y[at + i] = shared.line[4 * lane + i] + nothing.values[i];
}

template <CopyBug bug>
bool copies_rightly() {
  const Tensor x = test::random_tensor({256}, "planted", DType::f32);
  const Tensor on_device = x.to(test::kGpu), y = Tensor::zeros(x.shape(), DType::f32, test::kGpu);
  launch({"planted_copy", 2, 32, shared_bytes<CopyLayout>()}, planted_copy<bug>,
         static_cast<const float*>(pointer<float>(on_device)), pointer<float>(y));
  return x.to_vector<float>() == y.to_vector<float>();
}

TEST(CudaEmulation, CopiesThatNobodyWaitsForAreNan) {
  EXPECT_TRUE(copies_rightly<CopyBug::none>());
  EXPECT_FALSE(copies_rightly<CopyBug::missing_wait>());
}

TEST(CudaEmulation, MisuseOfTensorCoresAndCopiesIsAnError) {
  EXPECT_THAT(test::message_of<Error>(copies_rightly<CopyBug::misaligned>),
              HasSubstr("does not begin on 16 bytes"));
  EXPECT_THAT(test::message_of<Error>(copies_rightly<CopyBug::divergent_product>),
              HasSubstr("only lanes 0000ffff take part"));
  EXPECT_TRUE(copies_rightly<CopyBug::none>()) << "the emulator works on after an error";
}

TEST(CudaLaunch, MoreBlocksThanAGridHasAreRefused) {
  constexpr int64_t kMax = 2'147'483'647;
  EXPECT_EQ(blocks_for(kMax * 256, 256), kMax);
  EXPECT_THAT(test::message_of<Error>([] { blocks_for(kMax * 256 + 1, 256); }),
              HasSubstr("make the micro-batch or the context smaller"));
}

}  // namespace
}  // namespace linnet::cuda
