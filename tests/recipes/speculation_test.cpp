// Text by tree speculation is the text without guesses; what heads know is taken, and nothing else.
#include "recipes/engine/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/registry.h"
#include "core/device.h"
#include "core/threads.h"
#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

constexpr int64_t kWords = 40;

class TreeSpeculation : public test::TinyRun {
 protected:
  std::unique_ptr<Transformer> model(const std::vector<std::string>& changes = {},
                                     int64_t words = kWords) const {
    std::vector<std::string> all = changes;
    const bool has_heads = std::any_of(changes.begin(), changes.end(), [](const auto& change) {
      return change.starts_with("model.medusa");
    });
    if (!has_heads) all.emplace_back("model.medusa.heads=4");
    const Recipe small = recipe(all);
    return build_model(small, {words, small.data.context, 0});
  }
  static std::vector<int32_t> ids(int64_t count, int64_t first = 0) {
    std::vector<int32_t> result;
    for (int64_t i = first; i < first + count; ++i) {
      result.push_back(static_cast<int32_t>(i * i * 7 % kWords));
    }
    return result;
  }
  static ReadText read(const Transformer& model, const std::vector<int32_t>& prompt) {
    ReadText text;
    read_text(model, prompt, text);
    return text;
  }
  static GenerateOptions greedy(int64_t tokens) {
    GenerateOptions options;
    options.tokens = tokens;
    options.sampling.temperature = 0;
    return options;
  }

  // Makes the heads guess token `shift` ids behind the right one after every token of `text`, whose
  // continuation is `tokens`: U = G^T (H H^T)^-1 H with the vectors H and the guesses' rows G.
  static void plant(const Transformer& model, const std::vector<int32_t>& prompt,
                    const std::vector<int32_t>& tokens, int32_t shift) {
    const NoGrad off;
    ReadText text = read(model, prompt);
    std::vector<std::vector<double>> vectors;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::vector<float> row = text.hidden.to_vector<float>();
      vectors.emplace_back(row.begin(), row.end());
      read_text(model, std::span(tokens).subspan(i, 1), text);
    }
    const size_t count = vectors.size(), width = vectors[0].size();
    ASSERT_GE(width, count);
    // Gauss-Jordan: [G | H] -> [I | G^-1 H].
    std::vector<std::vector<double>> rows(count);
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < count; ++j) {
        rows[i].push_back(
            std::inner_product(vectors[i].begin(), vectors[i].end(), vectors[j].begin(), 0.0));
      }
      rows[i].insert(rows[i].end(), vectors[i].begin(), vectors[i].end());
    }
    for (size_t p = 0; p < count; ++p) {
      size_t best = p;
      for (size_t i = p; i < count; ++i) {
        if (std::abs(rows[i][p]) > std::abs(rows[best][p])) best = i;
      }
      std::swap(rows[p], rows[best]);
      const double pivot = rows[p][p];
      for (double& value : rows[p]) value /= pivot;
      for (size_t i = 0; i < count; ++i) {
        if (i == p) continue;
        const double factor = rows[i][p];
        for (size_t j = 0; j < rows[i].size(); ++j) rows[i][j] -= factor * rows[p][j];
      }
    }
    const ParameterSet& parameters = model.parameters();
    for (int64_t k = 1; k <= model.medusa()->count(); ++k) {
      const auto& entry = parameters.find(concat("medusa.", k, ".output.weight"));
      std::vector<float> output(static_cast<size_t>(entry.shape.elements()));
      for (size_t i = 0; i + static_cast<size_t>(k) < count; ++i) {
        const auto guess =
            static_cast<size_t>((tokens[i + static_cast<size_t>(k)] + shift) % model.vocabulary());
        for (size_t c = 0; c < width; ++c) {
          output[guess * width + c] += static_cast<float>(rows[i][count + c]);
        }
      }
      parameters.weight_of(entry).copy_from(Tensor::from(output, entry.shape));
    }
    parameters.refresh_values();
  }
};

TokenTree wide() {
  return tree_of_paths({{0}, {1}, {2}, {0, 0}, {0, 1}, {1, 0}, {0, 0, 0}, {0, 0, 0, 0}});
}

// More than 1,000 continuations.
TEST_F(TreeSpeculation, GreedyTextIsThatWithoutGuessesForEveryMechanism) {
  int64_t texts = 0, mechanisms_seen = 0, accepted = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (!traits.causal || !traits.decode_state) continue;
    SCOPED_TRACE(mechanism.name);
    const auto decoder = model({test::small_attention(mechanism), "model.width=16",
                                "data.context=64", "train.tokens_per_update=64"});
    ++mechanisms_seen;
    for (int64_t i = 0; i < 18; ++i) {
      const ReadText text = read(*decoder, ids(1 + i, 3 * i));
      const GenerateOptions options = greedy(5 + 7 * i % 13);
      const Generated plain = generate(*decoder, text, options);
      for (const auto& [tree, states] : {std::pair(wide(), TreeStates::shared),
                                         {chain_tree(4), TreeStates::shared},
                                         {wide(), TreeStates::copied}}) {
        const Speculated guessed = speculate(*decoder, text, options, {tree, {}, states});
        ASSERT_EQ(guessed.text.tokens, plain.tokens) << i;
        for (size_t n = 1; n < guessed.counts.accepted.size(); ++n) {
          accepted += guessed.counts.accepted[n];
        }
        ++texts;
      }
    }
  }
  EXPECT_GE(mechanisms_seen, 20);
  EXPECT_GE(texts, 1000);
  EXPECT_GT(accepted, texts) << "too few guesses are taken for a test of what follows them";
}

TEST_F(TreeSpeculation, MedusasTreeGivesTheSameTextToo) {
  for (const char* attention : {"{name: linear}", "{name: softmax}", "{name: lavo, rank: 4}",
                                "{name: augmented_linear, group: 8}", "{name: local, window: 6}"}) {
    const auto decoder = model({concat("model.attention=", attention), "model.width=16"});
    const ReadText text = read(*decoder, ids(7));
    const Speculation speculation{named_tree("mc_sim_7b_63"), {}, {}};
    EXPECT_EQ(speculate(*decoder, text, greedy(30), speculation).text.tokens,
              generate(*decoder, text, greedy(30)).tokens)
        << attention;
  }
}

// What a tree's pass gives and leaves is what the path does token by token, to the bit: across
// windows and groups, too.
TEST_F(TreeSpeculation, APathOfATreeIsThePathReadTokenByToken) {
  const NoGrad off;
  std::vector<std::string> all = {
      "model.attention={name: abc_mlp, slots: 4}",
      "model.attention={name: abc_mlp, preset: cab, slots: 6}",
      "model.attention={name: abc_mlp, preset: cab_released, slots: 5}",
  };
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (traits.causal && traits.decode_state) all.push_back(test::small_attention(mechanism));
  }
  for (const std::string& attention : all) {
    SCOPED_TRACE(attention);
    const auto decoder =
        model({attention, "model.width=16", "data.context=64", "train.tokens_per_update=64"});
    const TokenTree tree = wide();
    for (int64_t length = 1; length < 14; ++length) {
      const ReadText text = read(*decoder, ids(length));
      const std::vector<int32_t> tokens = ids(tree.size(), 20);
      const SmallStep step(1);
      for (const TreeStates states : {TreeStates::copied, TreeStates::shared}) {
        const TreeReading reading = decoder->encode_tree(Tensor::from(tokens, {tree.size(), 1}),
                                                         tree.parents, text.state, states);
        for (int64_t node = 0; node < tree.size(); ++node) {
          std::vector<int64_t> path{node};
          while (path.back() > 0) path.push_back(tree.parents[static_cast<size_t>(path.back())]);
          std::reverse(path.begin(), path.end());
          ModelState state = text.state;
          std::vector<float> alone;
          for (const int64_t at : path) {
            ModelState* one = &state;
            alone =
                decoder
                    ->encode_rows(
                        Tensor::from(std::vector<int32_t>{tokens[static_cast<size_t>(at)]}, {1, 1}),
                        {&one, 1})
                    .value()
                    .to_vector<float>();
          }
          const std::vector<float> row = reading.hidden.rows(node, node + 1).to_vector<float>();
          const ModelState after = reading.after(path);
          ASSERT_EQ(after.length, state.length);
          ASSERT_EQ(row, alone) << "node " << node;
          for (size_t layer = 0; layer < after.layers.size(); ++layer) {
            for (const auto& [name, value] : state.layers[layer]) {
              const auto expected = value.value().to(DType::f64).to_vector<double>();
              const auto found =
                  after.layers[layer].at(name).value().to(DType::f64).to_vector<double>();
              ASSERT_EQ(found, expected) << name;
            }
          }
        }
      }
    }
  }
}

TEST_F(TreeSpeculation, HeadsThatKnowTheContinuationAreTakenToTheEndAndWrongOnesNever) {
  for (const char* attention :
       {"{name: linear}", "{name: softmax}", "{name: lavo, rank: 4, window: 4}",
        "{name: augmented_linear, group: 8}", "{name: flash, group: 8}",
        "{name: abc_mlp, slots: 8}"}) {
    SCOPED_TRACE(attention);
    const auto decoder = model({concat("model.attention=", attention), "model.width=64",
                                "model.heads=4", "model.layers=1"});
    const std::vector<int32_t> prompt = ids(5);
    const ReadText text = read(*decoder, prompt);
    const GenerateOptions options = greedy(31);
    const Generated plain = generate(*decoder, text, options);
    const GenerateOptions longer = greedy(36);
    const std::vector<int32_t> known = generate(*decoder, text, longer).tokens;
    plant(*decoder, prompt, known, 0);
    for (int64_t depth = 1; depth <= 4; ++depth) {
      const Speculated all = speculate(*decoder, text, options, {chain_tree(depth), {}, {}});
      EXPECT_EQ(all.text.tokens, plain.tokens);
      // The first token is the prompt's, 30 are of passes.
      EXPECT_EQ(all.counts.passes(), (30 + depth) / (depth + 1)) << depth;
    }
    plant(*decoder, prompt, known, 1);
    const Speculated none = speculate(*decoder, text, options, {chain_tree(4), {}, {}});
    EXPECT_EQ(none.text.tokens, plain.tokens);
    EXPECT_EQ(none.counts.accepted, std::vector<int64_t>{30});
    EXPECT_EQ(none.counts.tokens_per_pass(), 1);
  }
}

TEST_F(TreeSpeculation, SampledTextIsThatWithoutGuessesWhereAcceptanceIsExact) {
  const auto decoder = model({"model.width=16"});
  const ReadText text = read(*decoder, ids(6));
  GenerateOptions options;
  options.tokens = 24;
  options.log_probabilities = true;
  options.sampling.temperature = 0.7;
  options.sampling.top_p = 0.95;
  options.sampling.repetition_penalty = 1.1;
  for (options.seed = 1; options.seed < 9; ++options.seed) {
    const Generated plain = generate(*decoder, text, options);
    const Speculated guessed = speculate(*decoder, text, options, {wide(), Acceptance::exact, {}});
    EXPECT_EQ(guessed.text.tokens, plain.tokens);
    EXPECT_EQ(guessed.text.log_probabilities, plain.log_probabilities);
  }
}

// The second token, which guesses decide, against the model's own distribution of it.
TEST_F(TreeSpeculation, SampledTokensHaveTheModelsDistribution) {
  constexpr int64_t kFew = 6;
  const auto decoder = model({"model.width=16"}, kFew);
  const ReadText text = read(*decoder, {1, 4, 2});
  const auto softmax = [&](const Tensor& hidden) {
    std::vector<float> logits = decoder->token_head().logits(hidden).to_vector<float>();
    double total = 0;
    for (const float logit : logits) total += std::exp(logit);
    std::vector<double> p;
    for (const float logit : logits) p.push_back(std::exp(logit) / total);
    return p;
  };
  std::vector<double> expected(kFew);
  const std::vector<double> first = softmax(text.hidden);
  for (int32_t token = 0; token < kFew; ++token) {
    ReadText further = text;
    read_text(*decoder, std::vector<int32_t>{token}, further);
    const std::vector<double> second = softmax(further.hidden);
    for (size_t i = 0; i < kFew; ++i) {
      expected[i] += first[static_cast<size_t>(token)] * second[i];
    }
  }
  std::vector<int64_t> counts(kFew);
  constexpr int64_t kSamples = 3000;
  int64_t accepted = 0;
  GenerateOptions options;
  options.tokens = 3;
  for (int64_t i = 0; i < kSamples; ++i) {
    options.sample = static_cast<uint64_t>(i);
    const Speculated one = speculate(*decoder, text, options,
                                     {tree_of_paths({{0}, {1}, {0, 0}}), Acceptance::exact, {}});
    ++counts[static_cast<size_t>(one.text.tokens[1])];
    if (one.counts.accepted.size() > 1) ++accepted;
  }
  EXPECT_GT(accepted, kSamples / 10);
  EXPECT_LT(accepted, kSamples);
  double chi_squared = 0;
  for (size_t i = 0; i < kFew; ++i) {
    const double mean = expected[i] * kSamples;
    const double difference = static_cast<double>(counts[i]) - mean;
    chi_squared += difference * difference / mean;
  }
  EXPECT_LT(chi_squared, 20.5) << "of 5 degrees of freedom: exceeded once in 1,000";
}

TEST_F(TreeSpeculation, TypicalAcceptanceTakesLikelyGuessesAlone) {
  const auto decoder = model({"model.width=64", "model.heads=4", "model.layers=1"});
  const std::vector<int32_t> prompt = ids(5);
  const ReadText text = read(*decoder, prompt);
  const std::vector<int32_t> known = generate(*decoder, text, greedy(36)).tokens;
  GenerateOptions options;
  options.tokens = 31;
  options.sampling.temperature = 0.01;  // nearly greedy: all else is unlikely
  const Speculation typical{chain_tree(4), Acceptance::typical, {}};
  plant(*decoder, prompt, known, 0);
  const Speculated all = speculate(*decoder, text, options, typical);
  EXPECT_EQ(all.text.tokens, generate(*decoder, text, options).tokens);
  EXPECT_EQ(all.counts.passes(), 6);
  plant(*decoder, prompt, known, 1);
  EXPECT_EQ(speculate(*decoder, text, options, typical).counts.accepted, std::vector<int64_t>{30});
  // At a high temperature every word has more than 0.3 exp(-entropy) of the probability.
  options.sampling.temperature = 1000;
  EXPECT_EQ(speculate(*decoder, text, options, typical).counts.passes(), 6);
  // Of the tokens that may be drawn at all.
  options.sampling.top_k = 1;
  EXPECT_EQ(speculate(*decoder, text, options, typical).text.tokens,
            generate(*decoder, text, options).tokens);
}

TEST_F(TreeSpeculation, EndsWhereTheTextEnds) {
  const auto decoder = model({"model.width=16"});
  const ReadText text = read(*decoder, ids(4));
  const std::vector<int32_t> plain = generate(*decoder, text, greedy(20)).tokens;
  for (size_t stop = 0; stop < plain.size(); ++stop) {
    std::vector<int32_t> seen;
    const Speculated cut =
        speculate(*decoder, text, greedy(20), {wide(), {}, {}}, [&](int32_t token) {
          seen.push_back(token);
          return seen.size() <= stop;
        });
    EXPECT_EQ(cut.text.tokens, std::vector<int32_t>(plain.begin(), plain.begin() + stop + 1));
    EXPECT_EQ(seen, cut.text.tokens);
  }
  EXPECT_TRUE(speculate(*decoder, text, greedy(0), {wide(), {}, {}}).text.tokens.empty());
}

TEST_F(TreeSpeculation, FillsTheTableOfPositions) {
  const auto decoder = model({"model.positions=learned"});
  const ReadText text = read(*decoder, ids(4));
  EXPECT_EQ(speculate(*decoder, text, greedy(13), {wide(), {}, {}}).text.tokens,
            generate(*decoder, text, greedy(13)).tokens);
  EXPECT_EQ(test::causes_of<UsageError>([&] {
              speculate(*decoder, text, greedy(14), {wide(), {}, {}});
            }),
            "out_of_range generate.tokens");
}

TEST_F(TreeSpeculation, ModelsWithoutTheHeadsOfATreeAreRefused) {
  const auto refusal = [&](const std::vector<std::string>& changes, const TokenTree& tree) {
    const auto decoder = model(changes);
    return test::causes_of<UsageError>([&] { require_guesses(*decoder, tree); });
  };
  EXPECT_EQ(refusal({}, wide()), "nothing thrown");
  EXPECT_EQ(refusal({"model.medusa.heads=3"}, wide()), "conflict --speculate");
  EXPECT_EQ(refusal({"model.medusa.heads=0"}, wide()), "conflict --speculate");
  EXPECT_EQ(refusal({}, tree_of_paths({{kWords}})), "out_of_range --speculate");
}

// Shared states take no memory for each guess, copies of a state one each.
TEST_F(TreeSpeculation, CopiedStatesTakeMemoryForEachNode) {
  const NoGrad off;
  const auto decoder = model({"model.width=64", "model.heads=1"});
  const ReadText text = read(*decoder, ids(9));
  const TokenTree tree = named_tree("mc_sim_7b_63");
  const auto held = [&](TreeStates states) {
    reset_peak_memory({});
    const size_t before = allocated_bytes({});
    const TreeReading reading = decoder->encode_tree(
        Tensor::from(std::vector<int32_t>(64, 3), {64, 1}), tree.parents, text.state, states);
    return peak_allocated_bytes({}) - before;
  };
  const size_t state = text.state.bytes();
  EXPECT_GT(held(TreeStates::copied), 60 * state);
  EXPECT_LT(held(TreeStates::shared), 20 * state);
}

}  // namespace
}  // namespace linnet
