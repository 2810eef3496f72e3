// Emulated work that runs as late as a GPU's may (LINNET_EMULATION_LATE=1), and addresses that a
// GPU could not read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/cuda/cuda_device.h"
#include "core/cuda/for_each.h"
#include "core/cuda/graph.h"
#include "core/cuda/kernel.h"
#include "core/gemm.h"
#include "tests/cuda_helpers.h"
#include "tests/error_helpers.h"

namespace linnet::cuda {
namespace {

using test::kGpu;
using testing::HasSubstr;

// Sets LINNET_EMULATION_LATE for a while.
class Late {
 public:
  explicit Late(bool late = true) {
    const char* before = std::getenv("LINNET_EMULATION_LATE");
    if (before != nullptr) before_ = before;
    setenv("LINNET_EMULATION_LATE", late ? "1" : "0", 1);
  }
  ~Late() {
    if (before_) {
      setenv("LINNET_EMULATION_LATE", before_->c_str(), 1);
    } else {
      unsetenv("LINNET_EMULATION_LATE");
    }
  }
  Late(const Late&) = delete;
  Late& operator=(const Late&) = delete;

 private:
  std::optional<std::string> before_;
};

__global__ void add_one(float* y) {
  y[threadIdx.x] += 1;
}

__global__ void divergent(float* y) {
  if (threadIdx.x < 7) __syncwarp();
  y[threadIdx.x] = __shfl_sync(~0u, y[threadIdx.x], 0);
}

struct Holder {
  int64_t count;
  const float* x;
};
__global__ void read_held(float* y, const Holder held) {
  if (threadIdx.x < held.count) y[threadIdx.x] = held.x[threadIdx.x];
}

// What the emulated device's memory holds now; a GPU would have to be asked.
float first_of(const Tensor& y) {
  return *static_cast<const float*>(y.raw());
}

void launch_add_one(const Tensor& y) {
  launch({"add_one", 1, 32}, add_one, pointer<float>(y));
}

TEST(CudaLate, WorkRunsWhenTheHostWaits) {
  const Tensor y = Tensor::full({32}, 3, DType::f32, kGpu);
  synchronize();
  {
    const Late late;
    launch_add_one(y);
    EXPECT_EQ(first_of(y), 3);
    EXPECT_EQ(y.to_vector<float>(), std::vector<float>(32, 4)) << "a copy to the host waits";
    y.set_zero();
    gemm(y.reshape({1, 32}), Transpose::no, y.reshape({32, 1}), Transpose::no,
         y.rows(0, 1).reshape({1, 1}), 1, 1);
    launch_add_one(y);
    EXPECT_EQ(first_of(y), 4);
    synchronize();
    EXPECT_EQ(first_of(y), 1);
    launch_add_one(y);
  }
  const Late now(false);
  launch_add_one(y);
  EXPECT_EQ(first_of(y), 3) << "earlier work first";
}

TEST(CudaLate, OldWorkRunsWhereMuchWaits) {
  const Late late;
  const Tensor y = Tensor::zeros({32}, DType::f32, kGpu);
  synchronize();
  for (int i = 0; i < 1025; ++i) launch_add_one(y);
  EXPECT_EQ(first_of(y), 1);
  EXPECT_EQ(y.to_vector<float>()[0], 1025);
}

TEST(CudaLate, HostMemoryMayChangeAfterACopy) {
  const Late late;
  const Tensor x = Tensor::full({3}, 2, DType::f32);
  const Tensor y = x.to(kGpu);
  x.fill(9);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(3, 2));
}

TEST(CudaLate, ReleasedMemoryServesEarlierWork) {
  const Late late;
  const Tensor y = Tensor::zeros({1000}, DType::f32, kGpu);
  const size_t before = allocated_bytes(kGpu);
  y.copy_from(Tensor::full({1000}, 5, DType::f32, kGpu));
  EXPECT_EQ(allocated_bytes(kGpu), before);
  const Tensor next = Tensor::full({1000}, 7, DType::f32, kGpu);
  EXPECT_EQ(y.to_vector<float>(), std::vector<float>(1000, 5));
  EXPECT_EQ(next.to_vector<float>(), std::vector<float>(1000, 7));
}

TEST(CudaLate, GraphsWaitToo) {
  const Late late;
  const Tensor y = Tensor::zeros({32}, DType::f32, kGpu);
  {
    const Graph graph(make_graph_memory(0), [&] { launch_add_one(y); });
    graph.replay();
    y.fill(6);
    graph.replay();
    EXPECT_EQ(first_of(y), 0) << "a capture waits for earlier work, a replay does not";
  }
  EXPECT_EQ(y.to_vector<float>()[0], 7) << "the graph is gone";
}

TEST(CudaLate, AKernelsErrorComesWhenTheHostWaits) {
  const Late late;
  const Tensor y = Tensor::zeros({32}, DType::f32, kGpu);
  launch({"divergent", 1, 32}, divergent, pointer<float>(y));
  launch_add_one(y);
  EXPECT_THAT(test::message_of<Error>([] { synchronize(); }), HasSubstr("kernel divergent"));
  EXPECT_EQ(y.to_vector<float>()[0], 1);
  // What the driver itself refuses is refused at once.
  EXPECT_THAT(test::message_of<Error>([&] {
                launch({"add_one", 1, 2000}, add_one, pointer<float>(y));
              }),
              HasSubstr("kernel add_one: a GPU refuses a grid"));
}

TEST(CudaAddresses, KernelsGetDeviceMemoryOnly) {
  const Tensor y = Tensor::zeros({32}, DType::f32, kGpu);
  float* out = pointer<float>(y);
  std::vector<float> host(32);
  const auto refusal = [](const auto& launch_it) { return test::message_of<Error>(launch_it); };
  EXPECT_THAT(
      refusal([&] {
        launch({"add_one", 1, 32}, add_one, host.data());
      }),
      HasSubstr("kernel add_one: argument 1 holds an address that is not of device memory"));
  const auto read = [&](const float* x, int64_t count = 32) {
    launch({"read_held", 1, 32}, read_held, out, Holder{count, x});
  };
  EXPECT_THAT(refusal([&] { read(host.data()); }), HasSubstr("kernel read_held: argument 2"));
  const float on_stack[32] = {};
  EXPECT_THAT(refusal([&] { read(on_stack); }), HasSubstr("kernel read_held: argument 2"));
  const float* from = host.data();
  EXPECT_THAT(
      refusal([&] { for_each("copy", 32, [=] __device__(int64_t i) { out[i] = from[i]; }); }),
      HasSubstr("kernel copy: argument 2"));
  const float* released = pointer<float>(Tensor::zeros({32}, DType::f32, kGpu));
  EXPECT_THAT(refusal([&] { read(released); }), HasSubstr("memory that was released"));
  read(pointer<float>(y));
  read(pointer<float>(y) + 32, 0);  // the end, which nothing may read
}

struct Padded {
  const float* x;
  bool narrow;
};
__global__ void read_padded(float* y, const Padded held) {
  y[threadIdx.x] = held.narrow ? 0 : held.x[threadIdx.x];
}

// A compiler leaves there what was on the stack.
TEST(CudaAddresses, PaddingIsNoArgument) {
  const Tensor y = Tensor::zeros({32}, DType::f32, kGpu);
  float* out = pointer<float>(y);
  Padded held;
  const void* const words[] = {out, &held};
  static_assert(sizeof held == sizeof words);
  std::memcpy(&held, words, sizeof held);
  held.narrow = true;
  launch({"read_padded", 1, 32}, read_padded, out, held);
  synchronize();
}

TEST(CudaAddresses, CopiesStayInsideTheirMemory) {
  const Tensor y = Tensor::zeros({32}, DType::f32, kGpu);
  float values[33] = {};
  float* const device = pointer<float>(y);
  EXPECT_THROW(copy_from_host(device, values, 33 * sizeof(float)), Error);
  EXPECT_THROW(copy_to_host(values, device + 1, 32 * sizeof(float)), Error);
  EXPECT_THROW(copy_from_host(values, values + 1, 4), Error);
  EXPECT_THROW(copy(device, values, 4), Error);
  EXPECT_THROW(copy(values, device, 4), Error);
  EXPECT_THROW(fill_bytes(device, 0, 129), Error);
  copy_to_host(values, device, 32 * sizeof(float));
}

}  // namespace
}  // namespace linnet::cuda
