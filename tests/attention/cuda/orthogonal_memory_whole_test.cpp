// The orthogonal memory of whole segments on tensor cores (noncausal, cross-attention) gives what
// the CPU computes in double: rows cut into runs, segments inside chunks, across them and at their
// edges, sources of any length, carried sources, masks.
#include "attention/primitives/orthogonal_memory/cuda/whole.h"

#include "tests/attention/cuda/orthogonal_memory_fast_inputs.h"

namespace linnet {
namespace {

using namespace test::orthogonal_memory_inputs;
using test::kGpu;

constexpr MemoryScope kWhole = MemoryScope::whole;

Setting cross(const char* name, int64_t source, int64_t d, bool state = false, bool masks = false) {
  Setting s{name, kWhole, 0, 2, 70, 2, 12, d, state, false, masks};
  s.source = source;
  return s;
}

Setting segments(const char* name, int32_t tokens, int64_t T, bool state = false,
                 bool masks = false) {
  Setting s{name, kWhole, 0, 2, T, 2, 12, 16, state, true, masks};
  s.segment_tokens = tokens;
  return s;
}

TEST(CudaOrthogonalMemoryFast, WholeMemoriesAreWhatTheCpuComputesInDouble) {
  const std::vector<Setting> settings{
      {"one chunk", kWhole, 0, 1, 64, 1, 16, 16},
      {"a token more", kWhole, 0, 2, 65, 2, 20, 32, true},
      {"the usual width", kWhole, 0, 1, 90, 1, 64, 64},
      {"wide heads", kWhole, 0, 1, 80, 1, 72, 128},
      {"runs, masks", kWhole, 0, 2, 13 * 64 + 5, 1, 8, 16, true, false, true},
      cross("cross", 23, 16),
      cross("cross, a longer source", 200, 24, false, true),
      cross("cross, encoded source", 0, 16, true),
      cross("cross, no source", 0, 16),
      cross("cross, one code", 1, 16),
      segments("segments", 37, 150),
      segments("segments of one code", 1, 70),
      segments("short segments", 3, 130, true, true),
      segments("segments of a chunk", 64, 200),
      segments("segments of more than a chunk", 150, 330, true, true),
      {"segments of wide heads", kWhole, 0, 1, 80, 1, 72, 128, true, true},
  };
  for (const Setting& s : settings) expect_what_the_cpu_computes(s, inputs_of(s));
}

TEST(CudaOrthogonalMemoryFast, WholeMemoriesOfExtremeInputsStayFinite) {
  Setting s{"large logits", kWhole, 0, 2, 80, 1, 16, 16};
  std::vector<Tensor> in = inputs_of(s);
  for (int64_t i = 0; i < in[0].elements(); ++i) {
    in[0].data<double>()[i] *= 64;
    in[1].data<double>()[i] = 4 + in[1].data<double>()[i];
  }
  in[1] = in[1].to(DType::bf16).to(DType::f64);
  expect_what_the_cpu_computes(s, in);
  for (const size_t zero : {0, 1}) {
    s.name = zero == 0 ? "queries of zero" : "codes of zero";
    in = inputs_of(s);
    in[zero].fill(0);
    expect_what_the_cpu_computes(s, in);
  }
}

TEST(CudaOrthogonalMemoryFast, WholeMemoriesRepeatBitForBit) {
  const UseKernels use(KernelChoice::tensor_cores, kGpu);
  for (const Setting& s :
       {Setting{"", kWhole, 0, 1, 9 * 64, 1, 8, 16}, segments("", 50, 140, true)}) {
    const std::vector<Tensor> in = inputs_of(s);
    const Outcome once = run(s, in, kGpu), again = run(s, in, kGpu);
    for (size_t i = 0; i < once.values.size(); ++i) {
      EXPECT_TRUE(test::same_bits(once.values[i].to(Device{}), again.values[i].to(Device{})));
    }
  }
}

TEST(CudaOrthogonalMemoryFast, SequencesAreCutWhereHeadsAreFew) {
  const cuda::orthogonal_memory_fast::ChunkRuns few =
      cuda::orthogonal_memory_fast::chunk_runs(2, 837);
  EXPECT_EQ(few.runs, 3);
  EXPECT_EQ(few.chunks, 5);
  EXPECT_EQ(cuda::orthogonal_memory_fast::chunk_runs(264, 8192).runs, 1);
  EXPECT_EQ(cuda::orthogonal_memory_fast::chunk_runs(12, 8192).runs, 22);
  EXPECT_EQ(cuda::orthogonal_memory_fast::chunk_runs(1, 1).runs, 1);
}

// Blocks fill whole waves of what a GPU runs at once, unless runs would be shorter than a few
// chunks.
TEST(CudaOrthogonalMemoryFast, RunsFillWavesOfBlocks) {
  namespace fast = cuda::orthogonal_memory_fast;
  for (const int64_t slots : {fast::kMultiprocessors, 2 * fast::kMultiprocessors}) {
    for (const int64_t blocks : {1, 8, 192}) {
      for (int64_t tokens = 256; tokens <= 65536; tokens *= 2) {
        const fast::ChunkRuns split = fast::chunk_runs(blocks, tokens, slots);
        const int64_t all = split.runs * blocks, waves = (all + slots - 1) / slots;
        EXPECT_GE(int64_t{split.runs} * split.chunks * 64, tokens);
        EXPECT_TRUE(10 * all >= 7 * waves * slots || split.chunks <= 8)
            << blocks << " blocks, " << tokens << " tokens: " << split.runs << " runs";
      }
    }
  }
}

}  // namespace
}  // namespace linnet
