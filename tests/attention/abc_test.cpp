// Shared code of the ABC family: queues of tokens, choices of slots, refused calls.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "attention/common/abc/slot_choices.h"
#include "attention/common/abc/token_queues.h"
#include "attention/registry.h"
#include "autograd/embedding.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using Indices = std::vector<int32_t>;

Tensor mask_of(const std::vector<uint8_t>& valid, const Shape& shape) {
  return Tensor::from(valid, shape);
}

TEST(TokenQueues, HoldValidTokensInOrder) {
  TokenQueueInputs in;
  in.B = 1;
  in.T = 6;
  in.keep = 3;
  in.mask = mask_of({1, 0, 1, 1, 0, 1}, {1, 6});
  const TokenQueues one = token_queues(in);
  EXPECT_EQ(one.order.to_vector<int32_t>(), Indices({0, 2, 3, 5, -1, -1}));
  EXPECT_EQ(one.place.to_vector<int32_t>(), Indices({0, -1, 1, 2, -1, 3}));
  EXPECT_EQ(one.carry_order.to_vector<int32_t>(), Indices({1, 2, 3}));
  in.queues = 2;
  const TokenQueues two = token_queues(in);
  EXPECT_EQ(two.order.to_vector<int32_t>(), Indices({0, 2, -1, 3, 5, -1}));
  EXPECT_EQ(two.carry_order.to_vector<int32_t>(), Indices({-1, 0, 1, -1, 3, 4}));
  EXPECT_EQ(two.phase.to_vector<int64_t>(), std::vector<int64_t>({0}));
}

TEST(TokenQueues, PhaseSaysWhichQueueComesNext) {
  TokenQueueInputs in;
  in.B = 2;
  in.T = 3;
  in.queues = 2;
  in.phase = Tensor::from(std::vector<int64_t>{0, 1}, {2});
  const TokenQueues queues = token_queues(in);
  EXPECT_EQ(queues.order.to_vector<int32_t>(), Indices({0, 2, 1, -1, 4, -1, 3, 5}));
  EXPECT_EQ(queues.phase.to_vector<int64_t>(), std::vector<int64_t>({1, 0}));
}

TEST(TokenQueues, CountWhatIsPushedAndNameTheirDraws) {
  TokenQueueInputs in;
  in.B = 2;
  in.T = 3;
  in.queues = 2;
  in.mask = mask_of({1, 1, 0, 1, 1, 1}, {2, 3});
  in.pushed = Tensor::from(std::vector<int64_t>{5, 6, 7, 8}, {2, 2});
  in.examples = Tensor::from(std::vector<int64_t>{40, 3}, {2});
  const TokenQueues queues = token_queues(in);
  EXPECT_EQ(queues.pushed.to_vector<int64_t>(), std::vector<int64_t>({6, 7, 9, 9}));
  EXPECT_EQ(queues.examples.to_vector<int64_t>(), std::vector<int64_t>({80, 81, 6, 7}));
  EXPECT_EQ(pushed_after(in.pushed, 4).to_vector<int64_t>(), std::vector<int64_t>({9, 10, 11, 12}));
}

TEST(TokenQueues, CarryWhatIsLeftOfThePastWhereTheDocumentGoesOn) {
  TokenQueueInputs in;
  in.B = 3;
  in.T = 2;
  in.keep = 3;
  in.past_mask = mask_of({0, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 3});
  // Row 0 goes on; row 1 begins another document with its second token; so does row 2, whose first
  // token is padded.
  in.segments = Tensor::from(Indices{4, 4, 4, 5, 4, 5}, {3, 2});
  in.mask = mask_of({1, 0, 1, 1, 0, 1}, {3, 2});
  const TokenQueues queues = token_queues(in);
  // Indices into [past ; places], five per row.
  EXPECT_EQ(queues.carry_order.to_vector<int32_t>(), Indices({1, 2, 3, -1, -1, 9, -1, -1, 13}));
  EXPECT_EQ(queues.past_mask.to_vector<int32_t>(), Indices({0, 1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(queues.segments.to_vector<int32_t>(), Indices({0, 0, 0, 1, 1, 1}));
}

TEST(TakeTokens, MovesTokensAndTheirGradients) {
  const Tensor order = Tensor::from(Indices{3, -1, 0}, {1, 3});
  const Variable x(test::random_tensor({2, 2, 1, 3}, "x"), true);
  const Variable taken = take_tokens(x, order);
  EXPECT_EQ(taken.shape(), Shape({1, 3, 1, 3}));
  const std::vector<double> from = x.value().to_vector<double>();
  const std::vector<double> got = taken.value().to_vector<double>();
  for (int c = 0; c < 3; ++c) {
    EXPECT_EQ(got[c], from[9 + c]);
    EXPECT_EQ(got[3 + c], 0);
    EXPECT_EQ(got[6 + c], from[c]);
  }
  backward({taken}, {Tensor::from(std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8, 9}, {1, 3, 1, 3})});
  EXPECT_EQ(x.grad().to_vector<double>(),
            std::vector<double>({7, 8, 9, 0, 0, 0, 0, 0, 0, 1, 2, 3}));
}

TEST(SlotChoices, PoolingCountsValidTokensOfEachDocument) {
  const Tensor mask = mask_of({1, 1, 0, 1, 1, 1, 1, 1}, {1, 8});
  const Tensor segments = Tensor::from(Indices{0, 0, 0, 0, 0, 0, 1, 1}, {1, 8});
  const PooledSlots pooled = pooled_slots(mask, segments, 1, 8, 3, {});
  EXPECT_EQ(pooled.slots.to_vector<int32_t>(), Indices({0, 0, -1, 1, 1, 2, 0, 1}));
  const std::vector<double> weights = pooled.weights.to_vector<double>();
  EXPECT_DOUBLE_EQ(weights[0], 0.6);
  EXPECT_EQ(weights[2], 0);
  EXPECT_EQ(weights[7], 1.5);
}

TEST(SlotChoices, DrawsFollowExampleAndPositionAlone) {
  const RandomKey key = RandomKey{5, 2, 0}.at("layer");
  const auto drawn = [&](const Indices& positions, int64_t example, int64_t heads) {
    const Tensor examples = Tensor::from(std::vector<int64_t>{example}, {1});
    const auto n = static_cast<int64_t>(positions.size());
    return random_slots(key, examples, Tensor::from(positions, {1, n}), heads, 7)
        .to_vector<int32_t>();
  };
  Indices many(500);
  for (int32_t i = 0; i < 500; ++i) many[i] = i;
  const Indices all = drawn(many, 3, 2);
  EXPECT_EQ(std::set<int32_t>(all.begin(), all.end()), std::set<int32_t>({0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(drawn({40, 41}, 3, 2), Indices(all.begin() + 80, all.begin() + 84));
  EXPECT_NE(drawn(many, 4, 2), all);
}

// One slot has the weight 1: a token's value is dropped or doubled.
TEST(AbcWindow, DropsSoftmaxWeightsInTraining) {
  for (const auto& [name, form] : {std::pair{"abc_window", Form::causal},
                                   {"abc_dilated", Form::causal},
                                   {"abc_window", Form::cross}}) {
    MixerOptions options;
    options.width = 4;
    options.heads = 2;
    options.form = form;
    options.dropout = 0.5;
    ParameterSet set;
    const ParameterScope root(set);
    const auto mixer = find_mechanism(name).make(parse_yaml("{slots: 1}", "test"), options,
                                                 {root.child("own"), root.child("tied")});
    set.materialize(1, DType::f64, DType::f64);
    constexpr int64_t T = 60;
    MixerContext context;
    context.positions = counted_positions(1, T, 0, {});
    context.place.examples = Tensor::from(std::vector<int64_t>{3}, {1});
    const Variable x(test::random_tensor({1, T, 4}, "x"));
    const auto read = [&] {
      const MixerResult result = form == Form::cross ? mixer->forward_cross(x, x, context, {})
                                                     : mixer->forward(x, context, {});
      return result.context.value().to_vector<double>();
    };
    const std::vector<double> all = read();
    context.training = true;
    const std::vector<double> kept = read();
    std::vector<int> of_head[2];
    for (int64_t i = 0; i < 2 * T; ++i) {
      const double factor = kept[2 * i] / all[2 * i];
      EXPECT_TRUE(std::abs(factor) <= 1e-12 || std::abs(factor - 2) <= 1e-12) << name << " " << i;
      of_head[i % 2].push_back(factor > 1 ? 1 : 0);
    }
    const auto share = std::accumulate(of_head[0].begin(), of_head[0].end(), 0);
    EXPECT_TRUE(share > T / 4 && share < 3 * T / 4) << name << " keeps " << share;
    EXPECT_NE(of_head[0], of_head[1]) << name;
    std::vector<int> of_queue[2];
    for (int64_t t = 0; t < T; ++t) of_queue[t % 2].push_back(of_head[0][t]);
    EXPECT_NE(of_queue[0], of_queue[1]) << name;
  }
}

TEST(AbcWindow, RefusesLiteralZerosInPackedDocuments) {
  for (const char* name : {"abc_window", "abc_dilated"}) {
    MixerOptions options;
    options.width = 4;
    options.heads = 1;
    ParameterSet set;
    const ParameterScope root(set);
    const auto mixer = find_mechanism(name).make(parse_yaml("{mask_empty: false}", "test"), options,
                                                 {root.child("own"), root.child("tied")});
    set.materialize(1);
    MixerContext context;
    context.positions = Tensor::zeros({1, 2}, DType::i32);
    const Variable x(Tensor::zeros({1, 2, 4}));
    EXPECT_NO_THROW(mixer->forward(x, context, {}));
    context.segments = Tensor::zeros({1, 2}, DType::i32);
    try {
      mixer->forward(x, context, {});
      FAIL() << name << " accepted packed documents";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("set mask_empty: true"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace linnet
