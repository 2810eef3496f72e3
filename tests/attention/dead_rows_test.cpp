// Rows of attention whose features have vanished, as they are counted.
#include "layers/dead_rows.h"

#include <gtest/gtest.h>

#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

// A mechanism on two heads of width 2, called with q, k and v [B,T,2,2].
class Called {
 public:
  Called(const char* mechanism, const char* parameters, Form form) {
    MixerOptions options;
    options.width = 4;
    options.heads = options.max_length = 2;
    options.form = form;
    options.layer = 3;
    const ParameterScope root(set_);
    mixer_ = find_mechanism(mechanism).make(parse_yaml(parameters, "test"), options,
                                            {root.child("own"), root.child("tied")});
    set_.materialize(1);
  }
  void operator()(const std::vector<float>& q, const Tensor& mask = {}) const {
    const int64_t T = std::ssize(q) / 4;
    const Variable ones(Tensor::full({1, T, 2, 2}, 1));
    MixerContext context;
    context.key_mask = mask;
    dynamic_cast<const AttentionMixer&>(*mixer_).attend(
        {Variable(Tensor::from(q, {1, T, 2, 2})), ones, ones, {}, {}}, context, {});
  }

 private:
  ParameterSet set_;
  std::unique_ptr<TokenMixer> mixer_;
};

TEST(DeadRows, AreQueriesWithoutAFeature) {
  const Called relu("relu", "{}", Form::causal);
  // Two heads of three tokens: in the first head the second token has nothing positive, in the
  // second head the last two.
  const std::vector<float> q = {1, -1, 2, 2, -1, -2, -3, 0, 4, -4, 0, -1};
  DeadRowCount outer;
  {
    const DeadRowCount count;
    relu(q);
    ASSERT_EQ(count.layers().size(), 1U);
    EXPECT_EQ(count.layers().at(3).rows, 6);
    EXPECT_EQ(count.layers().at(3).dead, 3);
    // Padding is no row.
    relu(q, Tensor::from(std::vector<uint8_t>{1, 1, 0}, {1, 3}));
    EXPECT_EQ(count.layers().at(3).rows, 6 + 4);
    EXPECT_EQ(count.layers().at(3).dead, 3 + 2);
  }
  EXPECT_TRUE(outer.layers().empty());
  relu(q);
  EXPECT_EQ(outer.layers().at(3).dead, 3);
}

TEST(DeadRows, ArePerformerQueriesOfWhichOnlyEpsilonIsLeft) {
  const std::vector<float> q = {1, -1, 2, 2, 1, 1, 1, 60};
  const DeadRowCount count;
  Called("performer", "{redraw_steps: 0}", Form::noncausal)(q);
  EXPECT_EQ(count.layers().at(3).rows, 4);
  EXPECT_EQ(count.layers().at(3).dead, 1);
  // The causal form has no epsilon, and stabilisers that keep the largest feature.
  Called("performer", "{redraw_steps: 0}", Form::causal)(q);
  EXPECT_EQ(count.layers().at(3).rows, 8);
  EXPECT_EQ(count.layers().at(3).dead, 1);
  // One direction: of q and -q one is on its wrong side.
  Called("performer", "{kernel: relu, features: 1, redraw_steps: 0}",
         Form::noncausal)({1, 2, -1, -2, -3, 1, 3, -1});
  EXPECT_EQ(count.layers().at(3).rows, 12);
  EXPECT_EQ(count.layers().at(3).dead, 3);
}

TEST(DeadRows, AreCountedOnceWhereFeaturesSayWhichTheyAre) {
  DeadRowCount count;
  count.add_features(0, Tensor::zeros({1, 2, 2, 3}), 0, {});
  count.add_outputs(0, Tensor::zeros({1, 2, 2, 4}), {});
  EXPECT_EQ(count.layers().at(0).rows, 4);
  EXPECT_EQ(count.layers().at(0).dead, 4);
}

}  // namespace
}  // namespace linnet
