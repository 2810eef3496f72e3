// Threads of generation: waking one costs more than the products of a narrow model's step. The
// test counts parallel regions instead of timing them.
#include <dlfcn.h>
#include <omp.h>

#include <atomic>

#include "core/threads.h"
#include "recipes/engine/generator.h"
#include "tests/recipes/tiny_run.h"

namespace {

// Parallel regions of more than one thread.
std::atomic<int> shared_regions{0};

}  // namespace

// Stands before the OpenMP library's own for linnet and the libraries that it calls.
extern "C" void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags) {
  using Start = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "GOMP_parallel"));
  const int members = threads > 0 ? static_cast<int>(threads) : omp_get_max_threads();
  if (members > 1 && omp_in_parallel() == 0) ++shared_regions;
  start(body, data, threads, flags);
}

namespace linnet {
namespace {

class GeneratorThreads : public test::TinyRun {
 protected:
  void SetUp() override {
    TinyRun::SetUp();
    set_thread_count(2);
  }
  void TearDown() override {
    set_thread_count(before_);
    TinyRun::TearDown();
  }

  // Regions of the steps that follow the first token; the steps' tokens go to `tokens`.
  int regions_of_steps(const std::vector<std::string>& changes, int64_t vocabulary,
                       size_t prompt_tokens = 3) {
    const Recipe wide = recipe(changes);
    const auto model = build_model(wide, {vocabulary, wide.data.context, 0});
    GenerateOptions options;
    options.tokens = 6;
    int at_first = -1;
    const std::vector<int32_t> prompt(prompt_tokens, 1);
    tokens_ = generate(*model, prompt, options, [&](int32_t) {
                if (at_first < 0) at_first = shared_regions;
                return true;
              }).tokens;
    return shared_regions - at_first;
  }

  std::vector<int32_t> tokens_;

 private:
  int before_ = thread_count();
};

TEST_F(GeneratorThreads, NarrowModelsTakeOneAtEveryWidth) {
  const int64_t before = shared_regions;
  parallel_for(2, 1, [](int64_t, int64_t) {});
  if (shared_regions == before) GTEST_SKIP() << "this build makes teams without OpenMP";
  for (const std::string width : {"64", "192", "512"}) {
    for (const std::string attention : {"softmax", "linear", "lavo, rank: 16"}) {
      const std::vector<std::string> changes = {"model.width=" + width,
                                                "model.attention={name: " + attention + "}"};
      EXPECT_EQ(regions_of_steps(changes, 40), 0) << attention << ", width " << width;
      const std::vector<int32_t> tokens = tokens_;
      regions_of_steps(changes, 40);
      EXPECT_EQ(tokens_, tokens);
    }
  }
  EXPECT_EQ(thread_count(), 2);
}

TEST_F(GeneratorThreads, LargeProductsAndLargeStatesShareThem) {
  const int64_t before = shared_regions;
  parallel_for(2, 1, [](int64_t, int64_t) {});
  if (shared_regions == before) GTEST_SKIP() << "this build makes teams without OpenMP";
  // The logits: width 64 by as many tokens of the vocabulary as the smallest shared product has.
  const int64_t vocabulary = kMinSharedWork / 64;
  EXPECT_EQ(regions_of_steps({"model.width=64"}, vocabulary - 1), 0);
  EXPECT_EQ(regions_of_steps({"model.width=64"}, vocabulary), 5);
  // Keys and values of the smallest shared state: the loop over heads.
  const std::vector<std::string> softmax = {"model.attention={name: softmax}", "model.layers=1",
                                            "model.width=256"};
  EXPECT_EQ(regions_of_steps(softmax, 40, 100), 0);
  EXPECT_GE(regions_of_steps(softmax, 40, kMinSharedWork / 512), 5);
}

}  // namespace
}  // namespace linnet
