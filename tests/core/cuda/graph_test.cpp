// Captured work repeats itself on what device memory holds then, and what cannot be captured is
// refused.
#include "core/cuda/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "core/cuda/cuda_device.h"
#include "core/elementwise.h"
#include "core/gemm.h"
#include "core/sort.h"
#include "tests/cuda_helpers.h"

namespace linnet {
namespace {

using cuda::Graph;
using cuda::GraphMemory;
using cuda::NotCapturable;
using test::kGpu;
using test::random_tensor;
using test::same_bits;
using testing::HasSubstr;

// Kernels, products, a sort, a fill and copies, over memory of its own.
void work(const Tensor& x, const Tensor& y) {
  const Tensor square = Tensor::zeros({6, 6}, DType::f32, kGpu);
  gemm(x, Transpose::no, x, Transpose::yes, square);
  add_into(square, square.clone());
  const Tensor products = Tensor::empty({1, 6, 7}, DType::f32, kGpu);
  batched_gemm(square.reshape({1, 6, 6}), Transpose::no, x.reshape({1, 6, 7}), Transpose::no,
               products);
  const Tensor sorted = Tensor::empty({6, 7}, DType::f32, kGpu);
  sort_rows(products.reshape({6, 7}), sorted, Tensor::empty({6, 7}, DType::i32, kGpu));
  y.copy_from(sorted);
}

TEST(CudaGraph, RepeatsTheWorkOnNewContents) {
  const Tensor x = random_tensor({6, 7}, "first", DType::f32).to(kGpu);
  const Tensor y = Tensor::full({6, 7}, 5, DType::f32, kGpu);
  const Graph graph(cuda::make_graph_memory(0), [&] { work(x, y); });
  EXPECT_GE(graph.operations(), 7u);
  EXPECT_EQ(sum(y), 5 * 42) << "a capture runs nothing";
  for (const char* name : {"first", "second", "third"}) {
    x.copy_from(random_tensor({6, 7}, name, DType::f32));
    graph.replay();
    const Tensor expected = Tensor::empty({6, 7}, DType::f32, kGpu);
    work(x, expected);
    EXPECT_TRUE(same_bits(y.to(Device{}), expected.to(Device{}))) << name;
  }
}

TEST(CudaGraph, HasThingsBroughtUpToDateBeforeEachReplay) {
  const Tensor read = Tensor::zeros({3}, DType::f32, kGpu),
               y = Tensor::zeros({3}, DType::f32, kGpu);
  const Graph graph(cuda::make_graph_memory(0), [&] {
    cuda::before_each_replay([read](uint64_t step) { read.fill(static_cast<double>(step)); });
    y.copy_from(read);
  });
  for (const uint64_t step : {7u, 2u}) {
    graph.replay(step);
    EXPECT_EQ(y.to_vector<double>(), std::vector<double>(3, static_cast<double>(step)));
  }
  EXPECT_THROW(cuda::before_each_replay([](uint64_t) {}), Error) << "nothing is captured";
}

TEST(CudaGraph, KnowsWhetherItDoesAnything) {
  const auto memory = cuda::make_graph_memory(0);
  const Tensor x = Tensor::zeros({3}, DType::f32, kGpu);
  EXPECT_EQ(Graph(memory, [] {}).operations(), 0u);
  EXPECT_EQ(Graph(memory, [&] { x.set_zero(); }).operations(), 1u);
}

TEST(CudaGraph, RefusesWhatCannotBeRecorded) {
  const Tensor x = Tensor::full({3}, 2, DType::f32, kGpu);
  const auto memory = cuda::make_graph_memory(0);
  const std::vector<std::pair<const char*, std::function<void()>>> cases = {
      {"a copy of device memory to the host", [&] { x.to_vector<float>(); }},
      {"a copy of device memory to the host", [&] { sum(x); }},
      {"a copy of host memory to the device", [&] { Tensor::full({3}, 1).to(kGpu); }},
      {"a copy of host memory to the device", [&] { x.copy_from(Tensor::full({3}, 1)); }},
      {"waiting for the device", [] { device_interface(kGpu).synchronize(); }},
      {"a draw", [] { cuda::refuse_capture("a draw"); }},
  };
  for (const auto& one : cases) {
    const std::string what = one.first;
    try {
      const Graph graph(memory, [&] {
        x.fill(1);
        one.second();
      });
      ADD_FAILURE() << what << " was captured";
    } catch (const NotCapturable& refusal) {
      EXPECT_EQ(refusal.what(), concat(what, " cannot be captured in a CUDA graph"));
    }
    EXPECT_FALSE(cuda::capturing());
    EXPECT_EQ(x.to_vector<float>(), std::vector<float>({2, 2, 2})) << what;
  }
  EXPECT_NO_THROW(cuda::refuse_capture("a draw"));
}

TEST(CudaGraph, AFailureInsideNamesTheWayWithout) {
  try {
    const Graph graph(cuda::make_graph_memory(0),
                      [] { throw Error("the launch of a kernel failed"); });
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the launch of a kernel failed"));
    EXPECT_THAT(error.what(), HasSubstr("train.cuda_graph=false"));
  }
  EXPECT_FALSE(cuda::capturing());
}

TEST(CudaGraph, KeepsTheMemoryThatReplaysUse) {
  const size_t before = allocated_bytes(kGpu);
  const Tensor y = Tensor::zeros({1000}, DType::f32, kGpu);
  Tensor outside = Tensor::full({1000}, 3, DType::f32, kGpu);
  Tensor survivor;
  std::optional<Graph> graph;
  graph.emplace(cuda::make_graph_memory(0), [&] {
    for (int i = 0; i < 5; ++i) {
      const Tensor copy = outside.clone();  // five times in the same place
      add_into(y, copy);
    }
    survivor = Tensor::full({500}, 4, DType::f32, kGpu);
    outside = {};
  });
  EXPECT_LT(allocated_bytes(kGpu), before + 5 * 4096 + 2000);
  EXPECT_GE(allocated_bytes(kGpu), before + 3 * 4000) << "what is outside is kept";
  const Tensor churn = Tensor::full({1000}, 9, DType::f32, kGpu);
  graph->replay();
  graph->replay();
  EXPECT_EQ(sum(y), 2 * 15 * 1000);
  EXPECT_EQ(sum(churn), 9 * 1000);
  graph.reset();
  EXPECT_EQ(sum(survivor), 4 * 500) << "memory lives as long as its tensors";
  survivor = {};
  EXPECT_EQ(allocated_bytes(kGpu), before + y.bytes() + churn.bytes());
}

TEST(CudaGraph, GraphsShareMemory) {
  const size_t before = allocated_bytes(kGpu);
  const auto memory = cuda::make_graph_memory(0);
  const Tensor x = Tensor::full({1000}, 1, DType::f32, kGpu);
  const auto twice = [&] {
    const Tensor copy = x.clone();
    add_into(copy, x);
    x.copy_from(copy);
  };
  const Graph first(memory, twice), second(memory, twice);
  first.replay();
  second.replay();
  first.replay();
  EXPECT_EQ(sum(x), 8 * 1000);
  EXPECT_LE(allocated_bytes(kGpu), before + x.bytes() + 4096);
}

// The blocks that GraphMemory takes and gives back.
struct Store {
  std::vector<std::pair<char*, size_t>> taken;
  size_t limit = 1 << 20;
  size_t given = 0;

  std::unique_ptr<GraphMemory> memory() {
    return std::make_unique<GraphMemory>(
        [this](size_t bytes) -> void* {
          if (bytes > limit) return nullptr;
          limit -= bytes;
          taken.emplace_back(static_cast<char*>(::operator new(bytes)), bytes);
          return taken.back().first;
        },
        [this](void* block, size_t bytes) {
          given += bytes;
          ::operator delete(block);
        });
  }
};

TEST(GraphMemory, UsesTheSmallestPieceThatFits) {
  Store store;
  const auto memory = store.memory();
  void* const large = memory->allocate(8192);
  void* const between = memory->allocate(512);
  void* const small = memory->allocate(2048);
  memory->release(large);
  memory->release(small);
  EXPECT_EQ(memory->allocate(1500), small);
  EXPECT_EQ(memory->allocate(4000), large);
  EXPECT_EQ(memory->allocate(4096), static_cast<char*>(large) + 4096) << "what was left of it";
  EXPECT_EQ(memory->allocate(1), static_cast<char*>(small) + 1536);
  EXPECT_EQ(store.taken.size(), 3u);
  EXPECT_NE(between, nullptr);
}

TEST(GraphMemory, JoinsNeighboursThatAreFree) {
  Store store;
  const auto memory = store.memory();
  memory->release(memory->allocate(4096));
  std::vector<void*> quarters;
  for (int i = 0; i < 4; ++i) quarters.push_back(memory->allocate(1024));
  EXPECT_EQ(store.taken.size(), 1u);
  for (const int i : {0, 2, 1, 3}) memory->release(quarters[static_cast<size_t>(i)]);
  EXPECT_EQ(memory->allocate(4096), quarters[0]);
  EXPECT_EQ(store.taken.size(), 1u);
}

TEST(GraphMemory, NeverJoinsSegments) {
  Store store;
  const auto memory = store.memory();
  std::vector<void*> segments;
  for (int i = 0; i < 8; ++i) segments.push_back(memory->allocate(512));
  for (void* segment : segments) memory->release(segment);
  memory->allocate(1024);
  EXPECT_EQ(store.taken.size(), 9u);
  EXPECT_EQ(store.taken.back().second, 1024u);
}

TEST(GraphMemory, GivesEverythingBack) {
  Store store;
  bool kept = true;
  {
    const auto memory = store.memory();
    memory->allocate(600);
    memory->release(memory->allocate(5000));
    EXPECT_EQ(memory->allocate(2 << 20), nullptr);
    memory->keep([&] { kept = false; });
    EXPECT_EQ(memory->bytes(), 1024u + 5120u);
    EXPECT_TRUE(kept);
  }
  EXPECT_EQ(store.given, 1024u + 5120u);
  EXPECT_FALSE(kept);
}

}  // namespace
}  // namespace linnet
