// `linnet evaluate` as a function: what may be changed for a checkpoint, and what is scored.
#include "recipes/engine/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

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
    return test::causes_of<UsageError>([&] { with(overrides); });
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
  EXPECT_EQ(test::causes_of<UsageError>([&] { evaluate(out("run"), carried); }),
            "conflict evaluate.stride");
}

TEST_F(EvaluateOverrides, TakesALimitFromAnOverrideHoweverItIsWritten) {
  EXPECT_EQ(with({"evaluate.max_tokens=50"}).scores.at(0).tokens, 50);
  EXPECT_EQ(with({"evaluate={max_tokens: 50}"}).scores.at(0).tokens, 50);
}

TEST_F(EvaluateOverrides, RefusesOverridesThatWouldChangeNothing) {
  EXPECT_EQ(refusal({"generate.tokens=5"}), "conflict generate.tokens at --set");
  EXPECT_EQ(refusal({"data.context=-4"}), "out_of_range data.context at --set: data.context");
  EXPECT_EQ(refusal({"context"}), "malformed at --set");
  EXPECT_EQ(refusal({"model.width=16"}), "conflict model.width at --set");
  EXPECT_EQ(refusal({"data.tokenizer.kind=word"}), "conflict data.tokenizer.kind at --set");
  EXPECT_EQ(refusal({"data={kind: self, tokenizer: {kind: word}}"}), "conflict data at --set");
}

}  // namespace
}  // namespace linnet
