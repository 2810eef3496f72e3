// `linnet evaluate` as a function: what may be changed for a checkpoint, and what is scored.
#include "recipes/engine/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class EvaluateOverrides : public test::TinyRun {
 protected:
  void SetUp() override {
    TinyRun::SetUp();
    run(recipe({"train.max_steps=2"}), "run");
  }
  EvaluateReport with(const std::vector<std::string>& overrides) const {
    EvaluateRequest request;
    request.overrides = overrides;
    return evaluate(out("run"), request);
  }
  std::string refusal(const std::vector<std::string>& overrides) const {
    try {
      with(overrides);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(EvaluateOverrides, ScoresTheSameTokensInEveryMode) {
  // 395 bytes in two documents, the first of each unpredicted.
  EXPECT_EQ(with({}).scores.at(0).tokens, 393);
  EvaluateRequest strided;
  strided.contexts = {8, 16};
  strided.stride = 4;
  for (const Score& score : evaluate(out("run"), strided).scores) EXPECT_EQ(score.tokens, 393);
  EvaluateRequest carried;
  carried.carry_state = true;
  EXPECT_EQ(evaluate(out("run"), carried).scores.at(0).tokens, 393);
  carried.stride = 4;
  EXPECT_THROW(evaluate(out("run"), carried), UsageError);
}

TEST_F(EvaluateOverrides, TakesALimitFromAnOverrideHoweverItIsWritten) {
  EXPECT_EQ(with({"evaluate.max_tokens=50"}).scores.at(0).tokens, 50);
  EXPECT_EQ(with({"evaluate={max_tokens: 50}"}).scores.at(0).tokens, 50);
}

TEST_F(EvaluateOverrides, RefusesOverridesThatWouldChangeNothing) {
  EXPECT_THAT(refusal({"generate.tokens=5"}), HasSubstr("--set: 'generate.tokens' cannot be"));
  EXPECT_EQ(refusal({"data.context=-4"}), "--set: 'data.context' must be 1 to 16777216, found -4");
  EXPECT_EQ(refusal({"context"}), "--set: 'context' is not an override; write key.path=value");
  EXPECT_THAT(refusal({"model.width=16"}), HasSubstr("model.width"));
  EXPECT_THAT(refusal({"data.tokenizer.kind=word"}), HasSubstr("data.tokenizer"));
  EXPECT_THAT(refusal({"data={kind: self, tokenizer: {kind: word}}"}), HasSubstr("tokenizer"));
}

}  // namespace
}  // namespace linnet
