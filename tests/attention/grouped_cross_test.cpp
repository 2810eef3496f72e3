// Grouped attention's paired cross form: groups of queries read the groups of the source with the
// same number.
#include <gtest/gtest.h>

#include "attention/common/token_slices.h"
#include "autograd/grad_check.h"
#include "tests/attention/made_mixer.h"

namespace linnet {
namespace {

using test::MadeMixer;
using test::random_tensor;

constexpr int64_t kRows = 2, kLength = 9, kHeads = 2, kWidth = 4;

MixerOptions options() {
  MixerOptions options;
  options.width = kHeads * kWidth;
  options.heads = kHeads;
  options.form = Form::cross;
  options.max_length = 20;
  return options;
}

Tensor heads_of(int64_t tokens, const char* name) {
  return random_tensor({kRows, tokens, kHeads, kWidth}, name);
}

// With that alpha.
struct Paired : MadeMixer {
  Paired(const char* mechanism, const std::string& parameters, double alpha)
      : MadeMixer(mechanism, parameters, options()) {
    set("alpha", {alpha});
  }
};

MixerContext context_of(int64_t source) {
  MixerContext context;
  context.key_mask = Tensor::full({kRows, kLength}, 1, DType::u8);
  context.key_mask.data<uint8_t>()[2] = 0;
  context.source_mask = Tensor::full({kRows, source}, 1, DType::u8);
  context.source_mask.data<uint8_t>()[source + 1] = 0;
  return context;
}

TEST(GroupedCross, QueriesWithoutAGroupInTheSourceReadTheSumAlone) {
  constexpr int64_t kSource = 5;  // a group of 4, and one of which there is one token
  const Variable q(heads_of(kLength, "q")), k(heads_of(kSource, "k")), v(heads_of(kSource, "v"));
  for (const char* name : {"grouped_linear", "augmented_linear"}) {
    SCOPED_TRACE(name);
    const MixerContext context = context_of(kSource);
    const auto mixed = [&](const std::string& parameters, double alpha) {
      return Paired(name, parameters, alpha).mix(q, k, v, context).y.value();
    };
    const Tensor linear = MadeMixer(name, "{group: 4}", options()).mix(q, k, v, context).y.value();
    const Tensor local = mixed("{group: 4, cross: paired}", 0);
    const Tensor both = mixed("{group: 4, cross: paired}", 1);
    EXPECT_TRUE(test::close(tokens_of(both, 8, kLength), tokens_of(linear, 8, kLength), 1e-13));
    EXPECT_TRUE(test::close(tokens_of(local, 8, kLength),
                            Tensor::zeros({kRows, 1, kHeads, kWidth}, DType::f64), 0));
    EXPECT_FALSE(test::close(tokens_of(local, 4, 8),
                             Tensor::zeros({kRows, 4, kHeads, kWidth}, DType::f64), 1e-6));
    // Of the last group a query sees the one token.
    const Tensor changed = v.value().clone();
    for (int64_t i = 0; i < kHeads * kWidth; ++i) {
      changed.data<double>()[4 * kHeads * kWidth + i] += 1;
    }
    const Tensor moved = Paired(name, "{group: 4, cross: paired}", 0)
                             .mix(q, k, Variable(changed), context)
                             .y.value();
    EXPECT_TRUE(test::close(tokens_of(moved, 0, 4), tokens_of(local, 0, 4), 0));
    EXPECT_FALSE(test::close(tokens_of(moved, 4, 8), tokens_of(local, 4, 8), 1e-6));
  }
}

TEST(GroupedCross, QueriesOfLaterCallsGoOn) {
  constexpr int64_t kSource = 11;
  const Variable q(heads_of(kLength, "q")), k(heads_of(kSource, "k")), v(heads_of(kSource, "v"));
  for (const char* parameters : {"{group: 4, cross: paired}", "{group: 4, preset: t5}",
                                 "{group: 4, kappa: softmax, cross: paired}"}) {
    SCOPED_TRACE(parameters);
    const Paired mixer("grouped_linear", parameters, 0.3);
    const MixerContext context = context_of(kSource);
    const Tensor whole = mixer.mix(q, k, v, context).y.value();
    MixerState state;
    for (int64_t begin : {0, 3, 7, 8}) {
      const int64_t end = begin == 0 ? 3 : begin == 3 ? 7 : begin + 1;
      MixerContext at = context;
      at.key_mask = tokens_of(context.key_mask, begin, end);
      at.place.time_offset = begin;
      const bool first = state.empty();
      auto part = mixer.mix(tokens_of(q, begin, end), first ? k : Variable(),
                            first ? v : Variable(), at, state);
      EXPECT_TRUE(test::close(part.y.value(), tokens_of(whole, begin, end), 1e-12)) << begin;
      state = part.state;
    }
  }
}

TEST(GroupedCross, GradientsOfBothBranches) {
  constexpr int64_t kSource = 7;
  for (const char* parameters :
       {"{group: 4, preset: t5}", "{group: 4, kappa: softmax, cross: paired}"}) {
    SCOPED_TRACE(parameters);
    const Paired mixer("grouped_linear", parameters, 0.3);
    const MixerContext context = context_of(kSource);
    const auto checked = grad_check(
        [&](const std::vector<Variable>& in) {
          return std::vector<Variable>{mixer.mix(in[0], in[1], in[2], context).y};
        },
        {heads_of(kLength, "q"), heads_of(kSource, "k"), heads_of(kSource, "v")},
        {.directions = 3});
    EXPECT_TRUE(checked.passed) << checked.message;
  }
}

TEST(GroupedCross, QueriesHaveConsecutivePositions) {
  const Paired mixer("grouped_linear", "{cross: paired}", 1);
  MixerContext context;
  context.positions = test::ids({0, 1, 2, 0, 2, 3}, {2, 3});
  const Variable q(heads_of(3, "q")), k(heads_of(3, "k")), v(heads_of(3, "v"));
  EXPECT_NE(test::message_of<UsageError>([&] {
              mixer.mix(q, k, v, context);
            }).find("got 2 where 1 was expected"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
