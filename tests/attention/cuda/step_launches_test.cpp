// A token on the device is one launch, of primitives and of the carried tokens; and mixers that
// carry tokens give what the CPU computes for the whole sequence.
#include <functional>

#include "attention/primitives/block_attention/carry.h"
#include "attention/primitives/linear_attention/linear_attention.h"
#include "attention/primitives/orthogonal_memory/orthogonal_memory.h"
#include "attention/primitives/slot_attention/slot_attention.h"
#include "core/cuda/cuda_device.h"
#include "core/cuda/graph.h"
#include "tests/attention/cuda/step_tokens.h"
#include "tests/attention/made_mixer.h"
#include "tests/bf16_tolerance.h"

namespace linnet {
namespace {

using test::kGpu;
using test::random_tensor;
using test::sequence_of;
using test::token_of;

constexpr int64_t kRows = 2;

// Operations on the device that `work` takes.
size_t operations_of(const std::function<void()>& work) {
  set_fill_uninitialized(false);  // tests do, and it would count
  const size_t count = cuda::Graph(cuda::make_graph_memory(0), work).operations();
  set_fill_uninitialized(true);
  return count;
}

TEST(CudaStep, OneTokenIsOneLaunch) {
  const NoGrad off;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto tokens = [&](int64_t width) {
      return Variable(random_tensor({kRows, 1, 2, width}, "x").to(dtype).to(kGpu));
    };
    const Variable q = tokens(8), k = tokens(8), v = tokens(6), logits = tokens(5);
    const LinearAttentionSums sums = linear_attention_causal({q, k, v, {}, {}}, {}).state;
    // y is f32, as backward needs it, and converted.
    EXPECT_EQ(operations_of([&] {
                linear_attention_causal({q, k, v, {}, {}}, {}, sums);
              }),
              dtype == DType::f32 ? 1 : 2);
    const SlotMemory memory = slot_attention_causal({q, k, v, logits}, {}).state;
    EXPECT_EQ(operations_of([&] { slot_attention_causal({q, k, v, logits}, {}, memory); }), 1);
    OrthogonalMemoryContext context;
    context.options.window = 3;
    const Variable basis(random_tensor({2, 5, 8}, "basis").to(DType::f32).to(kGpu));
    const OrthogonalMemoryCarry carry = orthogonal_memory(q, k, basis, {}, context).carry;
    EXPECT_EQ(operations_of([&] { orthogonal_memory(q, k, basis, carry, context); }), 1);
  }
}

// The carried state is the same with one launch as with one after the other, which gradients take.
TEST(CudaStep, CarriedTokensAndTheirMaskAreOneLaunch) {
  const Tensor key_mask = Tensor::from(std::vector<uint8_t>{1, 0, 1, 1}, {kRows, 2}).to(kGpu);
  const Tensor past_mask =
      Tensor::from(std::vector<int64_t>{1, 0, 1, 1, 1, 0}, {kRows, 3}).to(kGpu);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t width : {3, 4}) {
      for (const int64_t keep : {1, 2, 4, 5, -1}) {
        for (const bool goes_on : {false, true}) {
          const auto leaf = [&](int64_t tokens, int64_t columns, const char* name) {
            return Variable(random_tensor({kRows, tokens, 1, columns}, name).to(dtype).to(kGpu),
                            true);
          };
          const std::vector<Variable> now{leaf(2, width, "k"), leaf(2, 6, "v")};
          CarriedTokens past{{{}, {}}, {}};
          if (goes_on)
            past = {{leaf(3, width, "past k"), leaf(3, 6, "past v")}, Variable(past_mask)};
          const CarriedTokens expected = carry_with_mask(past, now, key_mask, {}, keep);
          const NoGrad off;
          const CarriedTokens got = carry_with_mask(past, now, key_mask, {}, keep);
          for (size_t i = 0; i < 2; ++i) {
            EXPECT_TRUE(test::same_bits(got.tokens[i].value().to(Device{}),
                                        expected.tokens[i].value().to(Device{})));
          }
          EXPECT_TRUE(
              test::same_bits(got.mask.value().to(Device{}), expected.mask.value().to(Device{})));
          EXPECT_EQ(operations_of([&] { carry_with_mask(past, now, key_mask, {}, keep); }), 1);
        }
      }
    }
  }
}

// Windows and convolutions: the sequence at once on the CPU, token by token on the device.
TEST(CudaStep, MixersWithCarriedTokens) {
  constexpr int64_t kHeads = 2, kWidth = 4, kAll = 9;
  struct Case {
    const char* mechanism;
    const char* parameters;
    size_t operations;  // of a token; 0: not counted
  };
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  options.form = Form::causal;
  options.max_length = 16;
  const std::vector<Case> cases{{"local", "{window: 4}", 3},
                                {"softmax", "{}", 3},
                                {"augmented_linear", "{group: 4, conv: 9, conv_init: uniform}", 0}};
  std::vector<Tensor> in;
  for (const char* name : {"q", "k", "v"}) {
    in.push_back(random_tensor({1, kAll, kHeads, kWidth}, name).to(DType::bf16).to(DType::f64));
  }
  for (const Case& c : cases) {
    const NoGrad off;
    MixerContext context;
    std::vector<int32_t> positions;
    for (int32_t t = 0; t < kAll; ++t) positions.push_back(t);
    context.positions = test::ids(positions, {1, kAll});
    const auto at_once = [&](DType dtype) {
      const test::MadeMixer host(c.mechanism, c.parameters, options, dtype, {}, DType::bf16);
      const auto given = [&](size_t i) { return Variable(in[i].to(dtype)); };
      return host.mix(given(0), given(1), given(2), context).y.value();
    };
    const Tensor expected = at_once(DType::f64);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(concat(c.mechanism, ", ", name_of(dtype)));
      const test::MadeMixer mixer(c.mechanism, c.parameters, options, dtype, kGpu, DType::bf16);
      MixerState state;
      std::vector<Tensor> found;
      for (int32_t t = 0; t < kAll; ++t) {
        MixerContext here;
        here.positions = test::ids({t}, {1, 1}).to(kGpu);
        const auto token = [&](size_t i) {
          return Variable(token_of(in[i], t).to(dtype).to(kGpu));
        };
        const Variable q = token(0), k = token(1), v = token(2);
        if (t == 6 && c.operations > 0) {
          EXPECT_EQ(operations_of([&] { mixer.mix(q, k, v, here, state); }), c.operations);
        }
        const auto result = mixer.mix(q, k, v, here, state);
        found.push_back(result.y.value());
        state = result.state;
      }
      test::expect_close_in(dtype, {sequence_of(found)}, {expected}, 3e-6,
                            [&] { return std::vector<Tensor>{at_once(dtype)}; });
    }
  }
}

}  // namespace
}  // namespace linnet
