// Longformer: presets, parameters of the global tokens, refused options; slices along time.
#include "attention/longformer/longformer.h"
#include "attention/registry.h"

#include <algorithm>
#include <set>

#include "attention/common/token_slices.h"
#include "attention/conformance/subject.h"
#include "attention/define.h"
#include "attention/longformer/window_lists.h"
#include "autograd/grad_check.h"
#include "core/yaml.h"
#include "tests/attention/made_mixer.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

using conformance::Batch;
using conformance::check_options;
using conformance::random_batch;
using conformance::Subject;
using test::close;
using test::random_tensor;

Subject subject_of(const std::string& parameters, Form form = Form::noncausal) {
  return Subject(find_mechanism("longformer"), parse_yaml(parameters, "test"),
                 check_options(form, 8), DType::f64, 1);
}

TEST(Longformer, PresetsAreTheSurveysBudgetAndThePapersWindow) {
  const auto read = [](const std::string& preset) {
    const ConfigNode parameters = parse_yaml("{preset: " + preset + "}", "test");
    return parse_config<LongformerParams>(
        apply_preset(parameters, find_mechanism("longformer").presets));
  };
  MixerOptions options;
  options.width = 512;
  options.heads = 8;
  options.form = Form::noncausal;
  EXPECT_EQ(read("survey").width(options), 128);
  EXPECT_EQ(read("survey").globals(Form::noncausal), 1);
  EXPECT_EQ(read("survey").globals(Form::causal), 0);
  options.heads = 16;
  EXPECT_EQ(read("survey_mean").width(options), 64);
  EXPECT_EQ(read("survey_mean").globals(Form::noncausal), 0);
  EXPECT_EQ(read("original").width(options), 512);
  EXPECT_TRUE(read("original").separate());
}

TEST(Longformer, SeparateProjectionsAreThreeMoreAndChangeNothingWhereEqual) {
  const Subject shared = subject_of("{window: 4, global_tokens: 2}");
  Subject separate = subject_of("{window: 4, global_tokens: 2, global_proj: separate}");
  const int64_t E = 16;
  EXPECT_EQ(separate.parameters().count(), shared.parameters().count() + 3 * (E * E + E));
  auto weights = shared.weights();
  for (const char* name : {"q", "k", "v"}) {
    for (const char* part : {".weight", ".bias"}) {
      weights[concat(name, "_global", part)] = weights.at(concat(name, part));
    }
  }
  separate.set_weights(weights);
  const Batch batch = random_batch(Form::noncausal, 2, 19, 1, E, 1);
  EXPECT_TRUE(close(separate.run(batch).y, shared.run(batch).y, 1e-13));
}

TEST(Longformer, EveryQueryReadsAndTeachesTheGlobalKey) {
  // From token 0 alone to the last query: its gradient is not zero, that of another far token is.
  Subject subject = subject_of("{window: 2}");
  const Batch batch = random_batch(Form::noncausal, 1, 12, 1, 16, 1);
  const Variable x = subject.input(batch.x, true);
  const Variable y = subject.forward(x, {}, batch, {}, false).y;
  const Tensor seed = Tensor::zeros(y.shape(), DType::f64);
  seed.slice(11 * 16, {16}).fill(1);
  backward({y}, {seed});
  const auto norm = [&](int64_t t) {
    double total = 0;
    for (int64_t c = 0; c < 16; ++c) total += std::abs(x.grad().data<double>()[t * 16 + c]);
    return total;
  };
  EXPECT_GT(norm(0), 1e-6);
  EXPECT_EQ(norm(5), 0);
  EXPECT_GT(norm(10), 1e-6);
}

TEST(Longformer, RefusesWhatItsFormsDoNotDefine) {
  EXPECT_THROW(subject_of("{window: 5}"), UsageError);
  EXPECT_NO_THROW(subject_of("{window: 5}", Form::causal));
  EXPECT_THROW(subject_of("{window: 4, global_proj: separate}", Form::causal), UsageError);
  Batch batch = random_batch(Form::noncausal, 1, 6, 1, 16, 1);
  batch.segments = Tensor::zeros({1, 6}, DType::i32);
  EXPECT_THROW(subject_of("{window: 4}").run(batch), UsageError);
  EXPECT_NO_THROW(subject_of("{window: 4, global_tokens: 0}").run(batch));
}

// However a sequence is split, every query of the causal form has the same keys in the same places.
TEST(Longformer, CausalListsDoNotDependOnTheCuts) {
  const int64_t T = 9, globals = 2, window = 3;
  for (int64_t cut = 0; cut <= T; ++cut) {
    const int64_t past_globals = std::min(cut, globals);
    const int64_t past_window = std::min(cut - past_globals, window - 1);
    const CausalLists lists{T - cut, globals, window, past_globals, past_window};
    for (int64_t t = cut; t < T; ++t) {
      for (int64_t place = 0; place < lists.length(); ++place) {
        int64_t expected = place < globals ? place : t - (place - globals);
        if (place >= globals && (t < globals || expected < globals)) expected = -1;
        if (expected > t) expected = -1;
        const int64_t key = lists.key(t - cut, place);
        // The token that a key number stands for.
        const int64_t past = past_globals + past_window;
        const int64_t token = key < past_globals ? key
                              : key < past       ? cut - past + key
                                                 : cut + key - past;
        EXPECT_EQ(token, expected) << "cut " << cut << ", query " << t << ", place " << place;
      }
    }
  }
}

// Queries that share a list see the same keys as with a list of their own.
TEST(Longformer, SharedListsHoldWhatTheirQueriesSee) {
  const int64_t T = 23, globals = 3;
  const auto seen = [&](const auto& lists, int64_t query) {
    std::multiset<int32_t> keys;
    for (int64_t place = 0; place < lists.length(); ++place) {
      const int32_t key = lists.key(query / lists.group, place);
      if (key >= 0 && lists.sees(query, place)) keys.insert(key);
    }
    return keys;
  };
  for (const int64_t group : {1, 4, 20}) {
    const WindowLists around{T, globals, 2, group};
    for (int64_t i = 0; i < T - globals; ++i) {
      std::multiset<int32_t> expected{0, 1, 2};
      for (int64_t j = std::max<int64_t>(i - 2, 0); j <= std::min(i + 2, T - globals - 1); ++j) {
        expected.insert(static_cast<int32_t>(globals + j));
      }
      EXPECT_EQ(seen(around, i), expected) << group << " " << i;
    }
    for (int64_t past = 0; past <= globals + 1; ++past) {
      CausalLists each{T, globals, 5, std::min(past, globals), past > globals ? 4 : 0};
      CausalLists shared = each;
      shared.group = group;
      for (int64_t i = 0; i < T; ++i)
        EXPECT_EQ(seen(shared, i), seen(each, i)) << group << " " << i;
    }
  }
}

TEST(Longformer, CallsOfNoTokensLeaveTheStateAsItIs) {
  MixerOptions options;
  options.width = 8;
  options.heads = 1;
  options.form = Form::causal;
  options.max_length = 8;
  const test::MadeMixer mixer("longformer", "{window: 4, global_tokens: 2}", options);
  const auto mixed = [&](int64_t tokens, const MixerState& state) {
    const Variable x(random_tensor({1, tokens, 1, 8}, "x"));
    return mixer.mix(x, x, x, {}, state);
  };
  for (const int64_t before : {0, 1, 5}) {
    const MixerState state = mixed(before, {}).state;
    const auto result = mixed(0, state);
    EXPECT_EQ(result.y.shape(), Shape({1, 0, 1, 8}));
    for (const auto& [name, value] : state) {
      EXPECT_TRUE(close(result.state.at(name).value(), value.value(), 0)) << name << before;
    }
  }
}

TEST(TokenSlices, SplitAndJoinWithTheirGradients) {
  const Tensor x = random_tensor({2, 5, 3}, "x"), y = random_tensor({2, 2, 3}, "y");
  const auto parts = [](const std::vector<Variable>& in) {
    return std::vector<Variable>{
        join_tokens({tokens_of(in[0], 3, 5), in[1], tokens_of(in[0], 0, 4)})};
  };
  const GradCheckResult result = grad_check(parts, {x, y});
  EXPECT_TRUE(result.passed) << result.message;
  const Variable whole = join_tokens(
      {tokens_of(Variable(x), 0, 2), tokens_of(Variable(x), 2, 2), tokens_of(Variable(x), 2, 5)});
  EXPECT_TRUE(test::same_bits(whole.value(), x));
  EXPECT_FALSE(tokens_of(Tensor(), 0, 3).defined());
  EXPECT_THROW(tokens_of(x, 2, 6), Error);
  EXPECT_THROW(join_tokens({Variable(x), Variable(random_tensor({1, 2, 3}, "z"))}), Error);
}

}  // namespace
}  // namespace linnet
