// Calls of the heap in steps of generation: none after the second token.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "attention/registry.h"
#include "core/sanitizers.h"
#include "recipes/engine/generator.h"
#include "tests/recipes/tiny_run.h"

namespace {

// Of all threads.
std::atomic<int64_t> heap_calls{0};

}  // namespace

#if defined(__GLIBC__) && !LINNET_BUILD_ADDRESS_SANITIZER && !LINNET_BUILD_THREAD_SANITIZER
constexpr bool kCounts = true;

// Stand before the C library's own for this program and its libraries.
extern "C" {
void* __libc_malloc(size_t bytes);                      // NOLINT(bugprone-reserved-identifier)
void* __libc_calloc(size_t count, size_t bytes);        // NOLINT(bugprone-reserved-identifier)
void* __libc_realloc(void* block, size_t bytes);        // NOLINT(bugprone-reserved-identifier)
void* __libc_memalign(size_t alignment, size_t bytes);  // NOLINT(bugprone-reserved-identifier)
void __libc_free(void* block);                          // NOLINT(bugprone-reserved-identifier)

void* malloc(size_t bytes) {
  ++heap_calls;
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  ++heap_calls;
  return __libc_calloc(count, bytes);
}
void* realloc(void* block, size_t bytes) {
  ++heap_calls;
  return __libc_realloc(block, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  ++heap_calls;
  return __libc_memalign(alignment, bytes);
}
void free(void* block) {
  ++heap_calls;
  __libc_free(block);
}
}
#else
constexpr bool kCounts = false;
#endif

namespace linnet {
namespace {

class GeneratorHeap : public test::TinyRun {
 protected:
  static constexpr int64_t kTokens = 24;

  void SetUp() override {
    const int64_t before = heap_calls;
    void* volatile block = std::malloc(1);  // volatile: a compiler may leave the pair out
    std::free(block);
    if (!kCounts || heap_calls == before) GTEST_SKIP() << "this build has a heap of its own";
  }

  // The calls of each step from number `first` on, where there are any: "3: 2, 17: 1". The texts'
  // lengths stay between two powers of two, at which keys and values outgrow their blocks.
  std::string calls(const std::string& attention, int64_t texts, size_t first,
                    int64_t width = 16) const {
    const Recipe small = recipe({attention, concat("model.width=", width)});
    const auto model = build_model(small, {40, 64, 0});
    std::vector<ReadText> prompts(static_cast<size_t>(texts));
    std::vector<Continuation> continuations;
    GenerateOptions options;
    options.tokens = kTokens;
    options.log_probabilities = true;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const std::vector<int32_t> prompt(35 + i, static_cast<int32_t>(i));
      read_text(*model, prompt, prompts[i]);
      continuations.push_back({[&prompts, i] { return std::move(prompts[i]); }, options, {}});
    }
    std::array<int64_t, kTokens> after{};
    size_t passes = 0;
    generate_batch(
        *model, continuations, texts, [](size_t, const Generated&) {},
        [&](size_t) { after.at(passes++) = heap_calls; });
    EXPECT_EQ(passes, kTokens - 1);
    std::string list;
    for (size_t i = first - 1; i < passes; ++i) {
      const int64_t own = after.at(i) - after.at(i - 1);
      if (own > 0) list += concat(list.empty() ? "" : ", ", i + 1, ": ", own);
    }
    return list;
  }
};

TEST_F(GeneratorHeap, IsNotCalledAfterTheSecondToken) {
  for (const std::string attention :
       {"softmax", "linear", "lavo, rank: 4, window: 4", "abc_mlp, slots: 4"}) {
    for (const int64_t texts : {1, 3}) {
      EXPECT_EQ(calls("model.attention={name: " + attention + "}", texts, 3), "")
          << attention << ", " << texts << " texts";
    }
  }
}

// eva and longshort keep tokens by chunks: steps in which one ends take more than those before.
TEST_F(GeneratorHeap, IsNotCalledByAnyMechanism) {
  for (const Mechanism& mechanism : mechanisms()) {
    if (!test::small_traits(mechanism).decode_state) continue;
    EXPECT_EQ(calls(test::small_attention(mechanism), 1, 3), "") << mechanism.name;
  }
  for (const std::string attention : {"eva", "longshort"}) {
    EXPECT_EQ(calls("model.attention={name: " + attention + "}", 3, 3, 64), "") << attention;
  }
}

}  // namespace
}  // namespace linnet
