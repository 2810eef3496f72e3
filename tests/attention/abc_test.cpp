// What the ABC family shares: queues of tokens, choices of slots, what is refused.
#include <gtest/gtest.h>

#include <set>

#include "attention/abc/slot_choices.h"
#include "attention/abc/token_queues.h"
#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using Numbers = std::vector<int32_t>;

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
  EXPECT_EQ(one.order.to_vector<int32_t>(), Numbers({0, 2, 3, 5, -1, -1}));
  EXPECT_EQ(one.place.to_vector<int32_t>(), Numbers({0, -1, 1, 2, -1, 3}));
  EXPECT_EQ(one.carry_order.to_vector<int32_t>(), Numbers({1, 2, 3}));
  in.queues = 2;
  const TokenQueues two = token_queues(in);
  EXPECT_EQ(two.order.to_vector<int32_t>(), Numbers({0, 2, -1, 3, 5, -1}));
  EXPECT_EQ(two.carry_order.to_vector<int32_t>(), Numbers({-1, 0, 1, -1, 3, 4}));
  EXPECT_EQ(two.phase.to_vector<int64_t>(), std::vector<int64_t>({0}));
}

TEST(TokenQueues, PhaseSaysWhichQueueComesNext) {
  TokenQueueInputs in;
  in.B = 2;
  in.T = 3;
  in.queues = 2;
  in.phase = Tensor::from(std::vector<int64_t>{0, 1}, {2});
  const TokenQueues queues = token_queues(in);
  EXPECT_EQ(queues.order.to_vector<int32_t>(), Numbers({0, 2, 1, -1, 4, -1, 3, 5}));
  EXPECT_EQ(queues.phase.to_vector<int64_t>(), std::vector<int64_t>({1, 0}));
}

TEST(TokenQueues, CarryWhatIsLeftOfThePastWhereTheDocumentGoesOn) {
  TokenQueueInputs in;
  in.B = 3;
  in.T = 2;
  in.keep = 3;
  in.past_mask = mask_of({0, 1, 1, 1, 1, 1, 1, 1, 1}, {3, 3});
  // Row 0 goes on; row 1 begins another document with its second token; so does row 2, whose first
  // token is padded.
  in.segments = Tensor::from(Numbers{4, 4, 4, 5, 4, 5}, {3, 2});
  in.mask = mask_of({1, 0, 1, 1, 0, 1}, {3, 2});
  const TokenQueues queues = token_queues(in);
  // Of [past ; places], five numbers a row.
  EXPECT_EQ(queues.carry_order.to_vector<int32_t>(), Numbers({1, 2, 3, -1, -1, 9, -1, -1, 13}));
  EXPECT_EQ(queues.past_mask.to_vector<int32_t>(), Numbers({0, 1, 1, 1, 1, 1, 0, 0, 0}));
  EXPECT_EQ(queues.segments.to_vector<int32_t>(), Numbers({0, 0, 0, 1, 1, 1}));
}

TEST(TakeTokens, MovesTokensAndTheirGradients) {
  const Tensor order = Tensor::from(Numbers{3, -1, 0}, {1, 3});
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
  const Tensor segments = Tensor::from(Numbers{0, 0, 0, 0, 0, 0, 1, 1}, {1, 8});
  const PooledSlots pooled = pooled_slots(mask, segments, 1, 8, 3, {});
  EXPECT_EQ(pooled.slots.to_vector<int32_t>(), Numbers({0, 0, -1, 1, 1, 2, 0, 1}));
  const std::vector<double> weights = pooled.weights.to_vector<double>();
  EXPECT_DOUBLE_EQ(weights[0], 0.6);
  EXPECT_EQ(weights[2], 0);
  EXPECT_EQ(weights[7], 1.5);
}

TEST(SlotChoices, DrawsFollowExampleAndPositionAlone) {
  const RandomKey key = RandomKey{5, 2, 0}.at("layer");
  const auto drawn = [&](const Numbers& positions, int64_t example, int64_t heads) {
    const Tensor examples = Tensor::from(std::vector<int64_t>{example}, {1});
    const auto n = static_cast<int64_t>(positions.size());
    return random_slots(key, examples, Tensor::from(positions, {1, n}), heads, 7)
        .to_vector<int32_t>();
  };
  Numbers many(500);
  for (int32_t i = 0; i < 500; ++i) many[i] = i;
  const Numbers all = drawn(many, 3, 2);
  EXPECT_EQ(std::set<int32_t>(all.begin(), all.end()), std::set<int32_t>({0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(drawn({40, 41}, 3, 2), Numbers(all.begin() + 80, all.begin() + 84));
  EXPECT_NE(drawn(many, 4, 2), all);
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
