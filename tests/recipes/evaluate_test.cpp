// Scoring a checkpoint: windows, overlap, carried state; memory; what is refused.
#include "recipes/engine/evaluate.h"
#include "attention/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/device.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class Evaluate : public test::TinyRun {
 protected:
  static Score score(const std::string& path, const EvaluateRequest& request) {
    const EvaluateReport report = evaluate(path, request);
    EXPECT_EQ(report.scores.size(), 1U);
    return report.scores.at(0);
  }
  // One update, saved.
  std::string trained(const std::string& name, const Recipe& recipe) {
    Recipe once = recipe;
    once.train.max_steps = 1;
    run(once, name);
    return out(name);
  }
  static EvaluateRequest windows(int64_t context) {
    EvaluateRequest request;
    request.contexts = {context};
    return request;
  }
  static EvaluateRequest streaming(int64_t chunk) {
    EvaluateRequest request = windows(chunk);
    request.carry_state = true;
    return request;
  }
};

TEST_F(Evaluate, EveryModeScoresTheSameTokens) {
  const std::string path = trained("run", recipe());
  EvaluateRequest overlapping = windows(16);
  overlapping.stride = 5;
  const Score plain = score(path, windows(16));
  EXPECT_EQ(plain.tokens, 299 + 94);  // all but the first byte of each document
  EXPECT_EQ(plain.bytes, plain.tokens);
  EXPECT_EQ(plain.mode, "windows");
  for (const Score& other : {score(path, overlapping), score(path, streaming(16)),
                             score(path, windows(7)), score(path, streaming(50))}) {
    EXPECT_EQ(other.tokens, plain.tokens) << other.mode;
    EXPECT_EQ(other.bytes, plain.bytes) << other.mode;
    EXPECT_EQ(other.words, plain.words) << other.mode;
    EXPECT_TRUE(std::isfinite(other.nll())) << other.mode;
  }
  EXPECT_GT(score(path, streaming(16)).state_bytes, 0U);
}

TEST_F(Evaluate, DeadRowsAreNamed) {
  // One feature a head, which about half of all tokens do not have.
  const std::string path =
      trained("t2r", recipe({"model.attention={name: t2r, features: 1}", "model.layers=1"}));
  EvaluateRequest request = windows(16);
  request.batch = 4;
  const Score t2r = score(path, request);
  const DeadRows& rows = t2r.dead_rows.at(0);
  EXPECT_EQ(rows.rows, 4 * 16 * 2);  // of the first batch
  EXPECT_GT(rows.dead, 0);
  EXPECT_LT(rows.dead, rows.rows);
  EXPECT_EQ(to_json(t2r.metrics(1)).at("dead_rows").number(), t2r.dead_share());
  EXPECT_THAT(t2r.text(), HasSubstr("% of attention's rows are dead (layer 0: "));
  EvaluateRequest whole;
  const Score relu =
      score(trained("relu", classifier({"model.attention={name: relu}", "model.heads=8"})), whole);
  EXPECT_GT(relu.dead_share(), 0);
  EXPECT_THAT(relu.text(), HasSubstr("dead"));
  // Softmax never has any, and says nothing.
  const Score softmax = score(trained("softmax", classifier()), whole);
  EXPECT_GT(softmax.dead_rows.at(0).rows, 0);
  EXPECT_EQ(to_json(softmax.metrics(1)).find("dead_rows"), nullptr);
  EXPECT_EQ(softmax.text().find("dead"), std::string::npos);
}

TEST_F(Evaluate, TheBatchSizeDoesNotMatter) {
  for (const std::string precision : {"f32", "bf16"}) {
    const std::string path = trained(precision, recipe({"train.precision=" + precision}));
    EvaluateRequest request = windows(16);
    request.batch = 1;
    const double alone = score(path, request).nll();
    for (const int64_t batch : {2, 7, 64}) {
      request.batch = batch;
      EXPECT_NEAR(score(path, request).nll(), alone, 1e-6 * alone) << precision << batch;
    }
  }
  const std::string path = trained("listops", classifier());
  EvaluateRequest request;
  request.batch = 1;
  const Score alone = score(path, request);
  request.batch = 7;
  EXPECT_NEAR(score(path, request).nll(), alone.nll(), 1e-6 * alone.nll());
  EXPECT_EQ(score(path, request).correct, alone.correct);
  EXPECT_EQ(alone.tokens, 20);
}

TEST_F(Evaluate, CarriedStateEqualsOneLongWindow) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (!traits.causal || !traits.decode_state) continue;
    // The two sides differ in length, so that mechanisms that depend on it may differ.
    if (traits.depends_on_length) continue;
    const Recipe long_window = recipe({test::small_attention(mechanism), "data.context=300",
                                       "train.tokens_per_update=300", "model.width=16"});
    const std::string path = trained(mechanism.name, long_window);
    const double whole = score(path, windows(300)).nll();
    for (const int64_t chunk : {1, 33, 128}) {
      EvaluateRequest request = streaming(chunk);
      if (chunk == 1) request.max_tokens = 60;
      EvaluateRequest same = windows(300);
      same.max_tokens = request.max_tokens;
      const double expected = chunk == 1 ? score(path, same).nll() : whole;
      EXPECT_NEAR(score(path, request).nll(), expected, 2e-5 * expected)
          << mechanism.name << " in chunks of " << chunk;
    }
    ++checked;
  }
  EXPECT_GE(checked, 3);
}

TEST_F(Evaluate, CarriedStateNeedsTheSameMemoryForAnyLength) {
  folder_.write("short.txt", test::some_text(1000, 7));
  folder_.write("long.txt", test::some_text(8000, 8));
  const auto peak = [&](const std::string& path, const std::string& file) {
    EvaluateRequest request = streaming(100);
    request.overrides = {concat("data.validation=[", folder_ / file, "]")};
    reset_peak_memory({});
    const size_t before = allocated_bytes({});
    const Score result = score(path, request);
    return std::pair(static_cast<double>(peak_allocated_bytes({}) - before), result.state_bytes);
  };
  const std::string linear = trained("linear", recipe());
  const auto [short_peak, short_state] = peak(linear, "short.txt");
  const auto [long_peak, long_state] = peak(linear, "long.txt");
  EXPECT_EQ(short_state, long_state);
  EXPECT_LE(long_peak, 1.02 * short_peak);
  // The measurement sees memory that grows: softmax keeps all keys.
  const std::string softmax = trained("softmax", recipe({"model.attention={name: softmax}"}));
  EXPECT_GT(peak(softmax, "long.txt").first, 2 * peak(softmax, "short.txt").first);
}

TEST_F(Evaluate, PositionsBeyondATableAreRefused) {
  const std::string path = trained("learned", recipe({"model.positions=learned"}));
  EXPECT_THAT(test::message_of<UsageError>([&] { score(path, windows(17)); }),
              AllOf(HasSubstr("context 17 is longer than the model can process: ask for at most 16 "
                              "in evaluate.contexts or --context"),
                    HasSubstr("its table of learned positions has 16 rows"),
                    HasSubstr("model.max_positions")));
  EXPECT_THAT(test::message_of<UsageError>([&] { score(path, streaming(16)); }),
              AllOf(HasSubstr("the model has only 16 positions: its table of learned positions"),
                    HasSubstr("score windows instead")));
  EXPECT_EQ(score(path, windows(16)).tokens, 299 + 94);
  EvaluateRequest longer;
  longer.overrides = {"data.context=17"};
  EXPECT_THAT(test::message_of<UsageError>([&] { score(path, longer); }),
              HasSubstr("at most 16 in data.context or --context"));
  const std::string fixed = trained("fixed", recipe({"model.attention={name: cosformer}"}));
  EXPECT_THAT(test::message_of<UsageError>([&] { score(fixed, windows(17)); }),
              AllOf(HasSubstr("the attention of layer 0 was made for 16 tokens"),
                    HasSubstr("a longer data.context")));
  for (const char* positions : {"sinusoidal", "rotary", "none"}) {
    const std::string other = trained(positions, recipe({concat("model.positions=", positions)}));
    EXPECT_EQ(score(other, windows(64)).tokens, 299 + 94) << positions;
  }
}

TEST_F(Evaluate, RefusesOptionsOutOfRange) {
  const std::string path = trained("run", recipe());
  const auto refusal = [&](auto change) {
    EvaluateRequest request = windows(16);
    change(request);
    return test::causes_of<UsageError>([&] { evaluate(path, request); });
  };
  EXPECT_EQ(refusal([](auto& r) { r.contexts = {0}; }), "out_of_range evaluate.contexts");
  for (const int64_t stride : {17, -1, 0}) {
    EXPECT_EQ(refusal([stride](auto& r) { r.stride = stride; }), "out_of_range evaluate.stride");
  }
  EXPECT_EQ(refusal([](auto& r) { r.batch = 0; }), "out_of_range evaluate.batch");
  EXPECT_EQ(refusal([](auto& r) { r.max_tokens = 0; }), "out_of_range evaluate.max_tokens");
  EXPECT_EQ(refusal([](auto& r) { r.split = "tst"; }), "unknown_name evaluate.split");
  EXPECT_EQ(refusal([](auto& r) { r.overrides = {"model.width=16"}; }),
            "conflict model.width at --set");
  EXPECT_EQ(refusal([](auto& r) { r.overrides = {"data.pth=x"}; }),
            "unknown_key data.pth at --set: data.pth");
  EXPECT_EQ(refusal([](auto& r) {
              r.carry_state = true;
              r.stride = 4;
            }),
            "conflict evaluate.stride");
  EXPECT_EQ(test::causes_of<UsageError>([&] { evaluate(out("none"), {}); }),
            concat("not_found at ", out("none")));
  const std::string listops = trained("listops", classifier());
  EXPECT_EQ(test::causes_of<UsageError>([&] { evaluate(listops, windows(16)); }),
            "conflict evaluate.contexts");
  EvaluateRequest baselines;
  baselines.baselines = true;
  EXPECT_EQ(test::causes_of<UsageError>([&] { evaluate(listops, baselines); }),
            "conflict --baselines");
}

TEST_F(Evaluate, WhatIsNotAskedForIsAsTheRecipeSays) {
  const std::string path =
      trained("run", recipe({"evaluate.contexts=[8]", "evaluate.carry_state=true",
                             "evaluate.split=test", "evaluate.max_tokens=50"}));
  const Score by_recipe = score(path, {});
  EXPECT_EQ(by_recipe.mode, "streaming");
  EXPECT_EQ(by_recipe.scored.text(), "chunks of 8");
  EXPECT_EQ(by_recipe.split, "test");
  EXPECT_EQ(by_recipe.tokens, 199);  // all of it
  EvaluateRequest changed;
  changed.overrides = {"evaluate.carry_state=false", "evaluate.max_tokens=30"};
  EXPECT_EQ(score(path, changed).mode, "windows");
  EXPECT_EQ(score(path, changed).tokens, 30);
  changed.max_tokens = 20;
  changed.split = "validation";
  changed.stride = 2;
  EXPECT_EQ(score(path, changed).tokens, 20);
  EXPECT_EQ(score(path, changed).mode, "overlapping");
}

TEST_F(Evaluate, AveragedWeightsAreWhatIsScored) {
  Recipe averaged = recipe({"optim.ema={decay: 0.9}", "evaluate.at_end=true"});
  const TrainOutcome outcome = run(averaged, "run");
  ASSERT_TRUE(outcome.last_score.has_value());
  EvaluateRequest request;
  const std::string newest = CheckpointStore(out("run")).path_of(7);
  EXPECT_NEAR(score(newest, request).nll(), outcome.last_score->nll(), 1e-6);
  run(recipe({"evaluate.at_end=true"}), "plain");
  EXPECT_GT(std::abs(score(CheckpointStore(out("plain")).path_of(7), request).nll() -
                     outcome.last_score->nll()),
            1e-4);
}

TEST_F(Evaluate, NamesStrideChunkMechanismAndRecipe) {
  const Recipe layered = recipe({"model.layers=3", "model.positions=rotary",
                                 "model.attention=[{layers: 1, name: softmax}, {layers: [0, 2], "
                                 "name: local, window: 4}]"});
  const std::string path = trained("run", layered);
  EvaluateRequest overlapping = windows(16);
  overlapping.stride = 5;
  const EvaluateReport strided = evaluate(path, overlapping);
  const JsonValue json = parse_json(strided.json().dump(), "report");
  EXPECT_EQ(json.at("recipe").text(), layered.name);
  EXPECT_EQ(json.at("mechanism").text(), "local, softmax");
  EXPECT_THAT(json.at("attention").text(), HasSubstr("{layers: 1, name: softmax"));
  EXPECT_EQ(json.at("positions").text(), "rotary");
  EXPECT_EQ(json.at("parameters").integer(), load_model(path).model->parameters().count());
  const JsonValue& line = json.at("scores").elements().at(0);
  EXPECT_EQ(line.at("stride").integer(), 5);
  EXPECT_EQ(line.at("context").integer(), 16);
  EXPECT_THAT(strided.text(),
              AllOf(HasSubstr("at context 16, stride 5 (overlapping)"),
                    HasSubstr(concat("recipe ", layered.name, ", attention [{")),
                    HasSubstr(concat(json.at("parameters").integer(), " parameters\n"))));
  const EvaluateReport streamed = evaluate(path, streaming(8));
  const JsonValue chunk = streamed.json().at("scores").elements().at(0);
  EXPECT_EQ(chunk.at("chunk").integer(), 8);
  EXPECT_EQ(chunk.find("context"), nullptr);
  EXPECT_EQ(chunk.find("stride"), nullptr);
  EXPECT_THAT(streamed.text(), HasSubstr("validation in chunks of 8 (streaming)"));
}

TEST_F(Evaluate, SaysHowMuchOfALongContextTheDocumentsFill) {
  const std::string path = trained("run", recipe());
  const EvaluateReport report = evaluate(path, windows(1'000'000));
  const int64_t longest =
      report.json().at("scores").elements().at(0).at("longest_window").integer();
  EXPECT_GE(longest, 299) << "the longest document";
  EXPECT_LE(longest, 301);
  EXPECT_THAT(report.text(), HasSubstr(concat("at context 1000000, stride 1000000 (windows, of at "
                                              "most ",
                                              longest, " tokens)")));
  EXPECT_EQ(evaluate(path, windows(16)).json().dump().find("longest_window"), std::string::npos);
}

TEST_F(Evaluate, ReportsAsJsonAndText) {
  const std::string path = trained("run", recipe());
  EvaluateRequest request = windows(16);
  request.contexts = {8, 16};
  request.baselines = true;
  const EvaluateReport report = evaluate(path, request);
  const JsonValue json = parse_json(report.json().dump(), "report");
  EXPECT_EQ(json.at("step").integer(), 1);
  ASSERT_EQ(json.at("scores").elements().size(), 2U);
  for (const JsonValue& line : json.at("scores").elements()) {
    EXPECT_NEAR(line.at("perplexity").number(), std::exp(line.at("nll").number()), 1e-9);
    EXPECT_NEAR(line.at("bits_per_byte").number(), line.at("nll").number() / std::log(2.0), 1e-9);
  }
  // A unigram model of letters knows less than a bigram model.
  const double unigram = json.at("baselines").at("unigram").at("perplexity").number();
  const double bigram = json.at("baselines").at("bigram").at("perplexity").number();
  EXPECT_GT(unigram, bigram);
  EXPECT_GT(bigram, 1);
  for (const char* text : {"validation at context 8, stride 8 (windows)", "unigram",
                           "bits per byte", "this model, context 8 "}) {
    EXPECT_THAT(report.text(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace linnet
