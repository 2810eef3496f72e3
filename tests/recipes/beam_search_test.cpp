// Beam search against every text that there is, and against greedy generation.
#include "recipes/engine/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/error_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

class BeamSearch : public test::TinyRun {
 protected:
  // A decoder, or one behind an encoder, with random weights.
  std::unique_ptr<Transformer> model(bool both, int64_t vocabulary, int64_t seed) const {
    std::vector<std::string> changes = {concat("seed=", seed), "data.context=32"};
    if (both) {
      changes.emplace_back(
          "data={kind: copy, vocabulary: 9, train_examples: 40, validation_examples: 20, "
          "test_examples: 10, context: 32}");
      changes.emplace_back(
          "model={kind: encoder_decoder, head: table, layers: 1, width: 16, heads: 2, attention: "
          "{name: softmax}}");
    }
    return build_model(both ? sequences(changes) : recipe(changes), {vocabulary, 32, 0});
  }
  static ReadText read(const Transformer& model) {
    ReadText text;
    read_text(model, std::vector<int32_t>{1, 2, 1}, text);
    return text;
  }
};

struct Best {
  std::vector<int32_t> tokens;
  double score = -INFINITY;
};

// The best of all texts behind one, of `left` tokens at most, by plain recursion.
void try_all(const Transformer& model, const ReadText& text, const std::vector<int32_t>& before,
             double total, int64_t left, int32_t eos, double penalty, Best& best) {
  const NoGrad off;
  const std::vector<float> logits = model.token_head().logits(text.hidden).to_vector<float>();
  for (int32_t token = 0; token < std::ssize(logits); ++token) {
    std::vector<int32_t> tokens = before;
    tokens.push_back(token);
    const double sum = total + log_probability(logits, token);
    if (token == eos || left == 1) {
      const double score = sum / std::pow(static_cast<double>(tokens.size()), penalty);
      if (score > best.score) best = {tokens, score};
      continue;
    }
    ReadText longer = text;
    ModelState* state = &longer.state;
    const Tensor hidden =
        model.encode_rows(Tensor::from(std::vector<int32_t>{token}, {1, 1}), {&state, 1}).value();
    longer.hidden = hidden.reshape({1, hidden.size(2)});
    try_all(model, longer, tokens, sum, left - 1, eos, penalty, best);
  }
}

TEST_F(BeamSearch, WithABeamForEachTextItFindsTheBestOfAll) {
  GenerateOptions options;
  options.tokens = 3;
  options.eos_id = 0;
  int longer = 0;
  for (const bool both : {false, true}) {
    for (int64_t seed = 1; seed <= 4; ++seed) {
      const auto small = model(both, 4, seed);
      const ReadText text = read(*small);
      for (const double penalty : {0.0, 0.6, 1.0, 2.0}) {
        Best best;
        try_all(*small, text, {}, 0, 3, 0, penalty, best);
        const BeamText found = beam_search(*small, text, options, {64, penalty});
        EXPECT_EQ(found.text.tokens, best.tokens) << both << " " << seed << " " << penalty;
        EXPECT_NEAR(found.score, best.score, 1e-5);
        double total = 0;
        for (const double nats : found.text.log_probabilities) total += nats;
        EXPECT_NEAR(total / std::pow(static_cast<double>(found.text.tokens.size()), penalty),
                    found.score, 1e-9);
        longer += found.text.tokens.size() > 1 ? 1 : 0;
        // A narrow search finds none better.
        EXPECT_LE(beam_search(*small, text, options, {2, penalty}).score, best.score + 1e-5);
      }
    }
  }
  EXPECT_GT(longer, 4);
}

TEST_F(BeamSearch, OneBeamIsGreedy) {
  for (const bool both : {false, true}) {
    for (int64_t seed = 1; seed <= 3; ++seed) {
      const auto small = model(both, 12, seed);
      const ReadText text = read(*small);
      GenerateOptions options;
      options.tokens = 14;
      options.sampling.temperature = 0;
      options.log_probabilities = true;
      for (const int32_t eos : {-1, 0, 3, 7, 9}) {
        options.eos_id = eos;
        const Generated greedy = generate(*small, text, options);
        const BeamText found = beam_search(*small, text, options, {1, 1.0});
        EXPECT_EQ(found.text.tokens, greedy.tokens);
        for (size_t i = 0; i < greedy.tokens.size(); ++i) {
          EXPECT_NEAR(found.text.log_probabilities[i], greedy.log_probabilities[i], 1e-6);
        }
      }
    }
  }
}

// By shapes: of the source and of what a beam has read k and v of 16 channels, with a place of 8
// bytes for each of the latter.
TEST_F(BeamSearch, BeamsShareTheSource) {
  const auto small = model(true, 12, 1);
  const ReadText text = read(*small);
  GenerateOptions options;
  options.tokens = 5;
  constexpr size_t kSource = 3 * 2 * 16 * sizeof(float), kBeam = 5 * (2 * 16 * sizeof(float) + 8);
  for (const int64_t beams : {1, 4}) {
    EXPECT_EQ(beam_search(*small, text, options, {beams, 1.0}).text.state_bytes,
              kSource + static_cast<size_t>(beams) * kBeam);
  }
}

TEST_F(BeamSearch, NeighboursChangeNothing) {
  const BeamOptions beam{3, 0.8};
  GenerateOptions options;
  options.tokens = 9;
  options.eos_id = 4;
  for (const bool both : {false, true}) {
    const auto small = model(both, 12, 2);
    std::vector<ReadText> texts(7);
    std::vector<ReadTurn> turns;
    std::vector<BeamText> alone;
    int64_t passes = 0, longest = 0, tokens = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<int32_t> prompt;
      for (size_t t = 0; t < 3 + i; ++t) prompt.push_back(static_cast<int32_t>((t * t + i) % 12));
      read_text(*small, prompt, texts[i]);
      turns.emplace_back([&texts, i] { return texts[i]; });
      const BeamText& found = alone.emplace_back(beam_search(*small, texts[i], options, beam));
      passes += found.passes;
      longest = std::max(longest, found.passes);
      tokens += std::ssize(found.text.tokens);
    }
    for (const int64_t slots : {1, 2, 7}) {
      std::vector<BeamText> together(texts.size());
      const BatchCounts counts =
          beam_search_batch(*small, turns, options, beam, slots,
                            [&](size_t i, BeamText found) { together[i] = std::move(found); });
      for (size_t i = 0; i < texts.size(); ++i) {
        EXPECT_EQ(together[i].text.tokens, alone[i].text.tokens) << slots << " slots, text " << i;
        EXPECT_EQ(together[i].text.log_probabilities, alone[i].text.log_probabilities);
        EXPECT_EQ(together[i].score, alone[i].score);
        EXPECT_EQ(together[i].passes, alone[i].passes);
        EXPECT_EQ(together[i].text.state_bytes, alone[i].text.state_bytes);
      }
      EXPECT_EQ(counts.tokens, tokens);
      if (slots == 2) {
        EXPECT_LT(counts.passes, passes);
        EXPECT_GT(counts.passes, longest);
      } else {
        EXPECT_EQ(counts.passes, slots == 1 ? passes : longest);
      }
    }
  }
}

TEST_F(BeamSearch, APassHasAtMost64Beams) {
  EXPECT_EQ(beam_slots(8, {4, 1.0}), 8);
  EXPECT_EQ(beam_slots(64, {5, 1.0}), 12);
  EXPECT_EQ(beam_slots(8, {33, 1.0}), 1);
  EXPECT_EQ(beam_slots(8, {64, 1.0}), 1);
}

TEST_F(BeamSearch, RefusesWhatIsNoSearch) {
  const auto small = model(false, 12, 1);
  const ReadText text = read(*small);
  const auto cause = [&](const BeamOptions& beam) {
    return test::causes_of<UsageError>([&] { beam_search(*small, text, {}, beam); });
  };
  EXPECT_EQ(cause({0, 1.0}), "out_of_range generate.beam");
  EXPECT_EQ(cause({65, 1.0}), "out_of_range generate.beam");
  EXPECT_EQ(cause({2, std::nan("")}), "out_of_range --length-penalty");
  GenerateOptions options;
  options.tokens = 0;
  EXPECT_TRUE(beam_search(*small, text, options, {2, 1.0}).text.tokens.empty());
}

}  // namespace
}  // namespace linnet
