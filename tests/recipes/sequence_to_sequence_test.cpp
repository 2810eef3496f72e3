// An encoder and a decoder that predicts tokens: pairs of generated sequences, decoding from a
// state with the source in it, what a trained one writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "attention/registry.h"
#include "data/sequences.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/make_task.h"
#include "recipes/engine/packed_model.h"
#include "recipes/engine/recipe_check.h"
#include "recipes/engine/run_state.h"
#include "recipes/engine/saved_state.h"
#include "recipes/engine/scoring.h"
#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

constexpr const char* kPairs =
    "data={kind: copy, min_symbols: 1, vocabulary: 9, train_examples: 4000, "
    "validation_examples: 20, test_examples: 10, context: 12}";
constexpr const char* kModel =
    "model={kind: encoder_decoder, head: table, layers: 2, width: 16, heads: 2, "
    "attention: {name: softmax}}";

class SequenceToSequence : public test::TinyRun {
 protected:
  static constexpr int64_t kVocabulary = 40;

  Recipe pairs(std::vector<std::string> changes = {}) const {
    changes.insert(changes.begin(), {kPairs, kModel});
    return sequences(changes);
  }
  std::unique_ptr<Transformer> model(const std::vector<std::string>& changes = {}) const {
    return build_model(pairs(changes), {kVocabulary, 32, 0});
  }
  static std::vector<int32_t> ids(int64_t count, int64_t seed = 0) {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < count; ++i) {
      result.push_back(static_cast<int32_t>(1 + (i * i * 7 + 11 * seed) % (kVocabulary - 1)));
    }
    return result;
  }
  static Tensor row(const std::vector<int32_t>& tokens) {
    return Tensor::from(tokens, {1, std::ssize(tokens)});
  }
};

std::string of(const Mechanism& mechanism) {
  return test::small_attention(mechanism).substr(std::string("model.attention").size());
}

// Token by token, and in rows beside another source, what one pass over the whole makes.
TEST_F(SequenceToSequence, TheStateStandsForSourceAndPrefix) {
  const NoGrad off;
  int selves = 0, crosses = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    const bool self = traits.causal && traits.decode_state && !traits.depends_on_length;
    const bool cross = traits.cross && !traits.exempt.contains("chunks");
    if (!self && !cross) continue;
    selves += self ? 1 : 0;
    crosses += cross ? 1 : 0;
    std::vector<std::string> changes;
    if (self) changes.push_back("model.decoder_attention" + of(mechanism));
    if (cross) changes.push_back("model.cross_attention" + of(mechanism));
    const auto both = model(changes);
    const std::vector<int32_t> source = ids(13), tokens = ids(20, 3);
    ModelInput whole;
    whole.source = row(source);
    whole.tokens = row(tokens);
    const std::vector<float> expected = both->encode(whole, nullptr).value().to_vector<float>();
    ModelState state, other;
    ModelInput first = whole;
    first.tokens = row({tokens[0]});
    std::vector<float> stepped = both->encode(first, &state).value().to_vector<float>();
    first.source = row(ids(7, 5));
    both->encode(first, &other);
    const size_t source_bytes = [&] {
      ModelState encoded;
      encoded.cross = state.cross;
      return encoded.bytes();
    }();
    EXPECT_GT(source_bytes, 0U) << mechanism.name;
    for (size_t t = 1; t < tokens.size(); ++t) {
      std::vector<float> next;
      if (t < 10) {
        ModelInput one;
        one.tokens = row({tokens[t]});
        next = both->encode(one, &state).value().to_vector<float>();
      } else {
        std::vector<ModelState*> states{&other, &state};
        next = both->encode_rows(Tensor::from(std::vector<int32_t>{3, tokens[t]}, {2, 1}), states)
                   .value()
                   .rows(1, 2)
                   .to_vector<float>();
      }
      stepped.insert(stepped.end(), next.begin(), next.end());
    }
    EXPECT_EQ(state.length, 20);
    ASSERT_EQ(stepped.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(stepped[i], expected[i], 5e-4) << mechanism.name << " at token " << i / 16;
    }
  }
  EXPECT_GE(selves, 20);
  EXPECT_GE(crosses, 15);
}

TEST_F(SequenceToSequence, TheLikeliestTokensFollowFromSourceAndPrefix) {
  const auto both = model();
  GenerateOptions options;
  options.tokens = 8;
  options.sampling.temperature = 0;
  const std::vector<int32_t> source = ids(5);
  const Generated result = generate(*both, source, options);
  const NoGrad off;
  std::vector<int32_t> text{0};
  for (const int32_t token : result.tokens) {
    ModelInput input;
    input.source = row(source);
    input.tokens = row(text);
    const Tensor hidden = both->encode(input, nullptr).value();
    const std::vector<float> logits = both->token_head()
                                          .logits(hidden.slice((hidden.size(1) - 1) * 16, {1, 16}))
                                          .to_vector<float>();
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), token);
    text.push_back(token);
  }
}

TEST_F(SequenceToSequence, ThePenaltyCountsNoTokensOfTheSource) {
  const auto both = model();
  GenerateOptions plain, penalized;
  plain.tokens = penalized.tokens = 1;
  plain.sampling.temperature = penalized.sampling.temperature = 0;
  penalized.sampling.repetition_penalty = 1e6;
  int64_t of_source = 0;
  for (int64_t first = 0; first < kVocabulary; ++first) {
    std::vector<int32_t> source;
    for (int64_t i = 0; i < kVocabulary / 2; ++i) {
      source.push_back(static_cast<int32_t>((first + i) % kVocabulary));
    }
    const std::vector<int32_t> likeliest = generate(*both, source, plain).tokens;
    EXPECT_EQ(generate(*both, source, penalized).tokens, likeliest) << first;
    of_source += std::count(source.begin(), source.end(), likeliest[0]);
  }
  EXPECT_GT(of_source, 0);
}

TEST_F(SequenceToSequence, NeighboursChangeNothing) {
  const auto both = model();
  GenerateOptions options;
  options.tokens = 9;
  options.log_probabilities = true;
  std::vector<Continuation> texts;
  for (int64_t i = 0; i < 5; ++i) {
    texts.push_back({[&both, i] {
                       ReadText text;
                       read_text(*both, ids(3 + 2 * i, i), text);
                       return text;
                     },
                     options,
                     {}});
  }
  std::vector<Generated> together(5);
  generate_batch(*both, texts, 3,
                 [&](size_t i, Generated result) { together[i] = std::move(result); });
  for (int64_t i = 0; i < 5; ++i) {
    const Generated alone = generate(*both, ids(3 + 2 * i, i), options);
    EXPECT_EQ(together[static_cast<size_t>(i)].tokens, alone.tokens);
    EXPECT_EQ(together[static_cast<size_t>(i)].log_probabilities, alone.log_probabilities);
  }
}

TEST_F(SequenceToSequence, AStateInAFileHasTheSource) {
  const auto both = model({"model.decoder_layers=1"});
  ReadText text;
  read_text(*both, ids(6), text);
  save_state(out("state"), *both, text);
  const ReadText loaded = load_state(out("state"), *both);
  GenerateOptions options;
  options.tokens = 6;
  EXPECT_EQ(generate(*both, loaded, options).tokens, generate(*both, text, options).tokens);
  ReadText more = loaded;
  EXPECT_EQ(test::causes_of<UsageError>([&] { read_text(*both, ids(2), more); }),
            "conflict generate.prompt");
}

TEST_F(SequenceToSequence, PairsAreTheHalvesOfASequence) {
  const Recipe recipe = pairs();
  const std::unique_ptr<Task> task = make_task(recipe);
  EXPECT_EQ(task->kind(), TaskKind::token_prediction);
  const Batch batch = task->train_batch(0, 8);
  EXPECT_EQ(batch.T, 6);
  ASSERT_EQ(batch.source.size(), 48U);
  int64_t scored = 0;
  std::set<size_t> lengths;
  for (size_t i = 0; i < 8; ++i) {
    size_t length = 0;
    while (length < 6 && batch.source[6 * i + length] != 0) ++length;
    lengths.insert(length);
    ASSERT_GE(length, 1U);
    ASSERT_LE(length, 5U);
    scored += static_cast<int64_t>(length) + 1;
    EXPECT_EQ(batch.tokens[6 * i], 0);
    for (size_t t = 0; t < 6; ++t) {
      EXPECT_EQ(batch.source_mask[6 * i + t], t < length ? 1 : 0);
      EXPECT_EQ(batch.targets[6 * i + t], t < length    ? batch.source[6 * i + t]
                                          : t == length ? 0
                                                        : kNotScored);
      if (t + 1 < 6) {
        EXPECT_EQ(batch.tokens[6 * i + t + 1], t < length ? batch.source[6 * i + t] : 0);
      }
    }
  }
  EXPECT_GT(lengths.size(), 2U);
  EXPECT_EQ(batch.target_count, scored);
  // What is behind the end of a source is not read.
  const NoGrad off;
  const auto both = build_model(recipe, task->sizes());
  Batch changed = batch;
  for (size_t i = 0; i < 48; ++i) {
    if (batch.source_mask[i] == 0) changed.source[i] = 3;
  }
  EXPECT_EQ(task->loss(*both, DeviceBatch(changed, {})).value().item(),
            task->loss(*both, DeviceBatch(batch, {})).value().item());
}

TEST_F(SequenceToSequence, ATrainedModelWritesTheCopyAndEndsIt) {
  const Recipe recipe =
      pairs({"model.layers=1", "model.width=32", "model.positions=learned", "optim.lr=0.005",
             "train={max_steps: 400, examples_per_update: 32, micro_batch: 32}",
             "evaluate.every_steps=0", "evaluate.at_end=true"});
  run(recipe, "run");
  const LoadedModel loaded = load_model(out("run"));
  GenerateOptions options;
  options.tokens = 6;
  options.sampling.temperature = 0;
  options.eos_id = 0;
  const SequenceDataset data = make_sequences(recipe.data);
  const Batch test = with_source(data, batch_in_order(data, Split::test, 0, 10));
  int right = 0;
  for (size_t i = 0; i < 10; ++i) {
    std::vector<int32_t> source(test.source.begin() + static_cast<std::ptrdiff_t>(6 * i),
                                test.source.begin() + static_cast<std::ptrdiff_t>(6 * i + 6));
    std::erase(source, 0);
    const std::vector<int32_t> written = generate(*loaded.model, source, options).tokens;
    source.push_back(0);
    right += written == source ? 1 : 0;
  }
  EXPECT_GE(right, 9);
}

TEST_F(SequenceToSequence, AStepReadsNoWeightsOfTheEncoder) {
  const auto both = model();
  size_t decoder = 0;
  for (const ParameterSet::Entry& entry : both->parameters().entries()) {
    const bool source = entry.name.starts_with("encoder.") ||
                        entry.name.find("cross_attention.k.") != std::string::npos ||
                        entry.name.find("cross_attention.v.") != std::string::npos;
    if (!source) decoder += entry.variable.value().bytes();
  }
  EXPECT_EQ(bytes_of_step(*both, nullptr), decoder);
  EXPECT_LT(decoder, static_cast<size_t>(4 * both->parameters().count()));
}

TEST_F(SequenceToSequence, WhatItCannotDoIsRefused) {
  const auto refusal = [](const Recipe& recipe) {
    return test::causes_of<UsageError>([&] { check_run(recipe); });
  };
  EXPECT_EQ(refusal(pairs()), "nothing thrown");
  EXPECT_EQ(refusal(pairs({"model.head=auto"})), "conflict model.kind");
  EXPECT_EQ(refusal(pairs({"model.decoder_start=1"})), "conflict model.decoder_start");
  EXPECT_EQ(refusal(sequences({kModel})), "conflict data.kind");
  EXPECT_THAT(test::causes_of<UsageError>([&] { pairs({"model.head=masked_lm"}); }),
              testing::StartsWith("conflict model.head"));
  EXPECT_THAT(test::causes_of<UsageError>([&] { pairs({"data.min_symbols=6"}); }),
              testing::StartsWith("out_of_range data.min_symbols"));
  GenerateOptions options;
  const auto ranked = model({"model.cross_attention={name: probsparse}"});
  EXPECT_EQ(test::causes_of<UsageError>([&] { generate(*ranked, ids(4), options); }),
            "conflict model.cross_attention");
}

}  // namespace
}  // namespace linnet
