// Medusa heads in training: their loss and its gradients, their targets, their figures, and
// checkpoints with and without them.
#include "layers/medusa.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/loss.h"
#include "core/hdf5.h"
#include "recipes/engine/evaluate.h"
#include "recipes/engine/given_state.h"
#include "recipes/engine/later_targets.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

class Medusa : public test::TinyRun {
 protected:
  std::map<std::string, Tensor> weights(const std::string& name, int64_t step) const {
    return tensors_from_hdf5(
        load_checkpoint(CheckpointStore(out(name)).path_of(step)).files.at("weights.h5"), name);
  }
};

std::vector<double> values(const Tensor& tensor) {
  return tensor.to(DType::f64).to_vector<double>();
}

TEST(MedusaHeads, LossIsTheWeightedSumOfCrossEntropiesWithItsGradients) {
  constexpr int64_t B = 2, T = 3, E = 4, V = 5, K = 2;
  ParameterSet parameters;
  MedusaConfig config;
  config.heads = K;
  config.weight = 0.7;
  const MedusaHeads heads(config, E, V, ParameterScope(parameters).child("medusa"));
  parameters.materialize(1, DType::f64, DType::f64);
  const RandomKey key{3, 0, 0};
  uint64_t draws = 0;
  const Tensor all = parameters.weights();
  for (int64_t i = 0; i < all.elements(); ++i) all.data<double>()[i] = key.uniform(draws++) - 0.5;
  Variable hidden(Tensor::zeros({B, T, E}, DType::f64), true);
  for (int64_t i = 0; i < B * T * E; ++i) {
    hidden.value().data<double>()[i] = key.uniform(draws++) - 0.5;
  }
  hidden.set_grad(Tensor::zeros({B, T, E}, DType::f64));
  const std::vector<int32_t> targets = {1, 4, -1, 0, 2, -1, 3, -1, -1, 1, -1, -1};
  const Tensor given = Tensor::from(targets, {K, B, T});
  const auto literal = [&] {
    double loss = 0;
    for (int64_t k = 0; k < K; ++k) {
      const std::string name = concat("medusa.", k + 1);
      const auto w = values(parameters.weight_of(parameters.find(name + ".block.weight")));
      const auto b = values(parameters.weight_of(parameters.find(name + ".block.bias")));
      const auto u = values(parameters.weight_of(parameters.find(name + ".output.weight")));
      const std::vector<double> h = values(hidden.value());
      for (int64_t i = 0; i < B * T; ++i) {
        const int32_t target = targets[static_cast<size_t>(k * B * T + i)];
        if (target < 0) continue;
        std::vector<double> z;
        for (int64_t e = 0; e < E; ++e) {
          double x = b[static_cast<size_t>(e)];
          for (int64_t c = 0; c < E; ++c) {
            x += w[static_cast<size_t>(e * E + c)] * h[static_cast<size_t>(i * E + c)];
          }
          z.push_back(h[static_cast<size_t>(i * E + e)] + x / (1 + std::exp(-x)));
        }
        double total = 0, own = 0;
        for (int64_t v = 0; v < V; ++v) {
          double logit = 0;
          for (int64_t e = 0; e < E; ++e) {
            logit += u[static_cast<size_t>(v * E + e)] * z[static_cast<size_t>(e)];
          }
          total += std::exp(logit);
          if (v == target) own = logit;
        }
        loss += std::pow(0.7, static_cast<double>(k + 1)) * (std::log(total) - own);
      }
    }
    return loss;
  };
  const Variable loss = heads.loss(hidden, given);
  EXPECT_NEAR(loss.value().item(), literal(), 1e-12);
  backward(loss);
  const auto check = [&](double* value, double gradient) {
    const double before = *value;
    constexpr double kStep = 1e-5;
    *value = before + kStep;
    const double up = literal();
    *value = before - kStep;
    const double down = literal();
    *value = before;
    EXPECT_NEAR(gradient, (up - down) / (2 * kStep), 1e-8);
  };
  for (int64_t i = 0; i < B * T * E; ++i) {
    check(hidden.value().data<double>() + i, values(hidden.grad())[static_cast<size_t>(i)]);
  }
  for (const ParameterSet::Entry& entry : parameters.entries()) {
    for (int64_t i = entry.begin; i < entry.end; ++i) {
      check(all.data<double>() + i, parameters.gradients().data<double>()[i]);
    }
  }
}

TEST(LaterTargets, AreThoseOfTheRowAndTheDocument) {
  Batch batch;
  batch.B = 2;
  batch.T = 4;
  batch.tokens.resize(8);
  batch.targets = {10, 11, 12, 13, 20, kNotScored, 22, 23};
  add_later_targets(2, batch);
  constexpr int32_t no = kNotScored;
  EXPECT_EQ(batch.later_targets,
            (std::vector<int32_t>{11, 12, 13, no, no, no, 23, no, 12, 13, no, no, 22, no, no, no}));
  batch.segments = {0, 0, 0, 0, 0, 0, 1, 1};
  add_later_targets(2, batch);
  EXPECT_EQ(batch.later_targets,
            (std::vector<int32_t>{11, 12, 13, no, no, no, 23, no, 12, 13, no, no, no, no, no, no}));
  Batch without = batch;
  without.later_targets.clear();
  add_later_targets(0, without);
  EXPECT_TRUE(without.later_targets.empty());
}

TEST_F(Medusa, AModelHasTheParametersOfItsHeads) {
  const Recipe plain = recipe(), with = recipe({"model.medusa={heads: 3}"});
  const int64_t V = 40, E = 8;
  const auto count = [&](const Recipe& one) {
    return build_model(one, {V, one.data.context, 0})->parameters().count();
  };
  EXPECT_EQ(count(with) - count(plain), 3 * (E * E + E + V * E));
  // At first a head's logits are those of the model's own head.
  for (const char* tied : {"true", "false"}) {
    const Recipe one = recipe({"model.medusa={heads: 3}", concat("model.tie_embeddings=", tied)});
    const auto model = build_model(one, {V, one.data.context, 0});
    const Tensor hidden = Tensor::from(std::vector<float>{1, 2, -1, 0.5F, 3, 1, 0, -2}, {1, E});
    EXPECT_EQ(model->medusa()->logits(3, hidden).to_vector<float>(),
              model->token_head().logits(hidden).to_vector<float>());
  }
}

TEST_F(Medusa, HeadsLearnAndTheirGuessesAreCounted) {
  const Recipe one = recipe({"model.medusa={heads: 2}", "train.max_steps=40", "optim.lr=0.02",
                             "evaluate.every_steps=40"});
  run(one, "run");
  const EvaluateReport report = evaluate(out("run"), {});
  const auto& guesses = report.scores.at(0).guesses;
  ASSERT_EQ(guesses.size(), 2U);
  // A document of n tokens has n - 2 and n - 3 such targets at the most; windows cut some off.
  EXPECT_GT(guesses[0].tokens, guesses[1].tokens);
  EXPECT_GT(guesses[1].tokens, 300);
  for (const GuessCounts& head : guesses) {
    EXPECT_GT(head.share(0), 0.12) << "more than a letter's share";
    for (size_t guess = 1; guess < kGuesses; ++guess) {
      EXPECT_LE(head.right[guess], head.right[0] + 20);
    }
  }
  const JsonValue line = report.json().at("scores").elements().at(0);
  ASSERT_EQ(line.at("medusa").size(), 2U);
  EXPECT_EQ(line.at("medusa").elements()[0].size(), kGuesses);
  EXPECT_NE(report.text().find("right guesses of the Medusa heads"), std::string::npos);
  const JsonValue without =
      (run(recipe({}), "plain"), evaluate(out("plain"), {}).json().at("scores").elements().at(0));
  EXPECT_EQ(without.find("medusa"), nullptr);
}

TEST_F(Medusa, HeadsAloneAreTrainedWhereTheRestIsFrozen) {
  run(recipe(), "base");
  const std::string last = CheckpointStore(out("base")).path_of(7);
  const std::vector<std::string> changes = {
      "init.from=" + last, "model.medusa={heads: 2}",
      "optim.groups=[{pattern: '*', lr_scale: 0}, {pattern: 'medusa.*', lr_scale: 1}]"};
  run(recipe(changes), "heads");
  const auto before = weights("heads", 0), after = weights("heads", 7);
  const auto base = weights("base", 7);
  for (const auto& [name, tensor] : after) {
    const bool head = name.starts_with("medusa.");
    EXPECT_EQ(values(tensor) != values(before.at(name)), head) << name;
    if (!head) {
      EXPECT_EQ(values(tensor), values(base.at(name))) << name;
    }
  }
  EXPECT_EQ(values(before.at("medusa.2.output.weight")), values(base.at("embedding.weight")));
  EXPECT_EQ(values(before.at("medusa.1.block.weight")), std::vector<double>(64));
  // The model's own predictions are those of the base; and without its heads it is the base.
  const double nll = evaluate(last, {}).scores[0].nll();
  EXPECT_EQ(evaluate(out("heads"), {}).scores[0].nll(), nll);
  run(recipe({"init.from=" + out("heads"), "train.max_steps=0", "evaluate.at_end=true"}), "bare");
  EXPECT_EQ(evaluate(out("bare"), {}).scores[0].nll(), nll);
}

TEST_F(Medusa, ARunGoesOnBitForBit) {
  const std::vector<std::string> changes = {"model.medusa={heads: 2, weight: 0.5}"};
  run(recipe(changes), "whole");
  std::vector<std::string> half = changes;
  half.emplace_back("train.max_steps=4");
  run(recipe(half), "parts");
  run(recipe(changes), "parts");
  EXPECT_EQ(weights("parts", 7).size(), weights("whole", 7).size());
  for (const auto& [name, tensor] : weights("whole", 7)) {
    EXPECT_EQ(values(weights("parts", 7).at(name)), values(tensor)) << name;
  }
}

TEST_F(Medusa, HeadsThatMeanNothingAreRefused) {
  const auto refusal = [&](const std::vector<std::string>& changes) {
    return test::causes_of<UsageError>([&] { run(recipe(changes), "refused"); }, folder_.path());
  };
  EXPECT_EQ(refusal({"model.medusa={weight: 0.5}"}).substr(0, 28), "conflict model.medusa.weight");
  EXPECT_EQ(
      refusal({"model.medusa={heads: 2}", "model.embedding=adaptive", "model.cutoffs=[5, 12]"})
          .substr(0, 21),
      "conflict model.medusa");
  EXPECT_EQ(
      test::causes_of<UsageError>([&] { run(sequences({"model.medusa={heads: 2}"}), "refused"); }),
      "conflict model.medusa at command line: model.medusa");
}

}  // namespace
}  // namespace linnet
