// Where heads are few, LAVO's one pass on tensor cores cuts sequences into runs: as many as fill a
// GPU, with the results of the primitives on the CPU in double.
#include "attention/lavo/cuda/lavo_pass_fast.h"
#include "tests/attention/cuda/lavo_pass_inputs.h"

namespace linnet {
namespace {

using namespace test::lavo_pass_inputs;
namespace fast = cuda::lavo_pass_fast;
namespace memory = cuda::orthogonal_memory_fast;

fast::Forward forward_of(int64_t rows, int64_t T, int64_t width) {
  fast::Forward call;
  call.memory.q = {nullptr, rows, T, 1, width};
  return call;
}

// Few heads: the window's backward pass has runs, here of five and of four chunks.
TEST(CudaLavoPass, RunsOfALongSequenceShareNoSums) {
  const Setting s{"runs", 18, 2, 13 * 64 + 5, 1, 8, 16, 1, false, true, true};
  fast::WindowBackward call;
  call.memory.q = {nullptr, s.B, s.T, s.H, s.d};
  fast::plan_runs(call);
  EXPECT_EQ(call.runs, 3);
  EXPECT_EQ(call.run_chunks, 5);
  expect_what_primitives_compute(s, inputs_of(s));
}

// The memory before each run is the sum of what the runs before it add: with windows that runs cut
// and windows that end with them, masks, heads of every width of tiles.
TEST(CudaLavoPass, RunsOfALongSequenceContinueEachOther) {
  const fast::Forward call = forward_of(2, 13 * 64 + 5, 16);
  EXPECT_EQ(fast::forward_runs(call).runs, 3);
  EXPECT_EQ(fast::forward_runs(call).chunks, 5);
  for (const Setting& s : std::vector<Setting>{
           {"windows that runs cut", 18, 2, 13 * 64 + 5, 1, 8, 16, 1, false, false, true, 5},
           {"windows that end with runs", 16, 1, 8 * 64, 2, 16, 16, 1, true},
           {"the widest window", 64, 1, 9 * 64 + 1, 1, 16, 64, 0, false, false, true, 31},
           {"windows of two tokens", 2, 1, 9 * 64 + 3, 1, 4, 8, 0},
           {"heads of 128", 7, 1, 9 * 64 + 1, 1, 16, 128, 1, false, false, false, 3, 0.125}}) {
    EXPECT_GT(fast::forward_runs(forward_of(s.B * s.H, s.T, s.d)).runs, 1) << s.name;
    expect_what_primitives_compute(s, inputs_of(s));
  }
}

// The gradients of the memory after each run are the sum of what later runs add, and those of the
// carried sums; also where the window that is open before the last run does not end in it.
TEST(CudaLavoPass, RunsOfTheMemorysGradientsContinueEachOther) {
  const auto runs_of = [](const Setting& s) {
    memory::Backward call;
    call.q = {nullptr, s.B, s.T, s.H, s.d};
    return fast::backward_runs(call);
  };
  const Setting open{"the last run is shorter than its window",
                     64,
                     1,
                     20 * 64 + 3,
                     1,
                     8,
                     16,
                     0,
                     false,
                     false,
                     false,
                     31};
  EXPECT_EQ(runs_of(open).runs, 5);
  EXPECT_EQ(runs_of(open).chunks, 5);
  for (const Setting& s : std::vector<Setting>{
           open,
           {"it ends with it", 64, 1, 20 * 64 + 3, 1, 8, 16, 0, false, false, false, 61},
           {"two rows of two heads", 18, 2, 13 * 64 + 5, 2, 12, 40, 1, true, false, true, 5}}) {
    EXPECT_GT(runs_of(s).runs, 1) << s.name;
    expect_what_primitives_compute(s, inputs_of(s));
  }
}

// Documents and dropout name tokens by their place in the row, not in the run.
TEST(CudaLavoPass, RunsWithDropoutOrDocuments) {
  Setting s{"dropout", 16, 2, 8 * 64 + 9, 1, 16, 16, 1, false, false, true};
  s.dropout = 0.25;
  expect_what_primitives_compute(s, inputs_of(s));
  s = {"documents", 16, 1, 10 * 64, 1, 16, 16, 1, false, true};
  fast::Forward call = forward_of(1, s.T, s.d);
  const int32_t segment = 0;
  call.memory.segments = &segment;
  EXPECT_EQ(fast::forward_runs(call).runs, 1);  // segments forget what was before
  memory::Backward backward;
  backward.q = call.memory.q;
  EXPECT_EQ(fast::backward_runs(backward).runs, 2);
  backward.segments = &segment;
  EXPECT_EQ(fast::backward_runs(backward).runs, 1);
  expect_what_primitives_compute(s, inputs_of(s));
}

// Blocks fill whole waves of what a GPU runs at once, unless runs would be shorter than a few
// chunks; where heads nearly fill it, sums before runs would cost more than they save.
TEST(CudaLavoPass, RunsFillWavesOfBlocks) {
  EXPECT_EQ(fast::forward_blocks(64), 2);
  EXPECT_EQ(fast::forward_blocks(128), 1);
  EXPECT_EQ(fast::window_backward_blocks(32), 3);
  EXPECT_EQ(fast::window_backward_blocks(64), 2);
  for (const int64_t width : {32, 64, 128}) {
    for (const int64_t heads : {1, 8, 192}) {
      for (int64_t tokens = 256; tokens <= 65536; tokens *= 2) {
        const auto expect_full = [&](int64_t runs, int64_t chunks, int64_t blocks) {
          const int64_t slots = blocks * memory::kMultiprocessors, all = runs * heads;
          const int64_t waves = (all + slots - 1) / slots;
          EXPECT_GE(runs * chunks * 64, tokens);
          EXPECT_TRUE(10 * all >= 7 * waves * slots || chunks <= 8)
              << heads << " heads of " << width << ", " << tokens << " tokens: " << runs << " runs";
        };
        const memory::ChunkRuns split = fast::forward_runs(forward_of(heads, tokens, width));
        expect_full(split.runs, split.chunks, fast::forward_blocks(width));
        memory::Backward back;
        back.q = {nullptr, heads, tokens, 1, width};
        const memory::ChunkRuns back_split = fast::backward_runs(back);
        expect_full(back_split.runs, back_split.chunks, memory::backward_blocks(width));
        fast::WindowBackward call;
        call.memory.q = {nullptr, heads, tokens, 1, width};
        fast::plan_runs(call);
        expect_full(call.runs, call.run_chunks, fast::window_backward_blocks(width));
      }
    }
  }
  // 16 rows of 12 heads, 8,192 tokens, and one row of 8.
  EXPECT_EQ(fast::forward_runs(forward_of(192, 8192, 64)).runs, 1);
  EXPECT_EQ(fast::forward_runs(forward_of(8, 8192, 64)).runs, 32);
}

}  // namespace
}  // namespace linnet
