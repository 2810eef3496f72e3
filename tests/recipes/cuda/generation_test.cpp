// Text behind an encoder on a device: the tokens of the CPU, greedy, drawn and by beams, alone and
// beside others.
#include "recipes/engine/generator.h"

#include <cstring>
#include <set>

#include "attention/registry.h"
#include "recipes/engine/beam_search.h"
#include "recipes/engine/device_steps.h"
#include "tests/cuda_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using test::kGpu;

class CudaSequenceToSequence : public test::TinyRun {
 protected:
  std::unique_ptr<Transformer> model(const std::string& attention, Device device) const {
    return build_model(
        sequences({"data={kind: copy, min_symbols: 1, vocabulary: 23, train_examples: 40, "
                   "validation_examples: 20, test_examples: 10, context: 32}",
                   "model={kind: encoder_decoder, head: table, layers: 2, width: 16, heads: 2, "
                   "attention: " +
                       attention + "}"}),
        {23, 32, 0}, device);
  }
};

ReadText source_of(const Transformer& model, size_t text) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < 4 + 2 * text; ++i) {
    tokens.push_back(static_cast<int32_t>((i * i + 5 * text + 1) % 23));
  }
  ReadText read;
  read_text(model, tokens, read);
  return read;
}

std::vector<std::vector<int32_t>> generated(const Transformer& model, double temperature) {
  std::vector<Continuation> texts;
  for (size_t i = 0; i < 4; ++i) {
    GenerateOptions options;
    options.tokens = 9;
    options.sampling.temperature = temperature;
    options.sample = i;
    texts.push_back({[&model, i] { return source_of(model, i); }, options, {}});
  }
  std::vector<std::vector<int32_t>> results(texts.size());
  generate_batch(model, texts, 3, [&results](size_t text, Generated result) {
    results[text] = std::move(result.tokens);
  });
  return results;
}

std::vector<std::vector<int32_t>> searched(const Transformer& model) {
  std::vector<ReadTurn> turns;
  for (size_t i = 0; i < 4; ++i) turns.emplace_back([&model, i] { return source_of(model, i); });
  GenerateOptions options;
  options.tokens = 9;
  options.eos_id = 3;
  std::vector<std::vector<int32_t>> results(turns.size());
  beam_search_batch(model, turns, options, {4, 1.0}, 3, [&results](size_t text, BeamText found) {
    results[text] = std::move(found.text.tokens);
  });
  return results;
}

TEST_F(CudaSequenceToSequence, TextsAreThoseOfTheCpu) {
  for (const std::string attention : {"{name: softmax}", "{name: linear}"}) {
    const auto host = model(attention, Device{}), device = model(attention, kGpu);
    EXPECT_EQ(generated(*device, 0), generated(*host, 0)) << attention;
    EXPECT_EQ(generated(*device, 0.8), generated(*host, 0.8)) << attention;
    EXPECT_EQ(searched(*device), searched(*host)) << attention;
  }
}

// Two texts step by step, with graphs or as other texts in each step.
std::vector<Tensor> logits_of_steps(const Transformer& model, bool graphs, int64_t& replays) {
  constexpr int32_t kSteps = 9;
  const NoGrad off;
  std::vector<ReadText> texts;
  for (size_t i = 0; i < 2; ++i) texts.push_back(source_of(model, i));
  const auto steps = make_device_steps(model);
  std::vector<Tensor> logits;
  for (int32_t step = 0; step < kSteps; ++step) {
    std::vector<StepRow> rows(2);
    for (size_t i = 0; i < 2; ++i) {
      rows[i].text = graphs ? i : i + 2 * static_cast<size_t>(step);
      rows[i].state = &texts[i].state;
      rows[i].last = (5 * step + static_cast<int32_t>(i)) % 23;
      rows[i].more = graphs ? kSteps - step : 0;
    }
    logits.push_back(steps->logits(rows).to(Device{}));
  }
  EXPECT_EQ(texts[0].state.length, 1 + kSteps);
  replays = steps->replays();
  return logits;
}

// A graph reads the encoded source where it is; its steps have the bits of those without one, or
// are refused where the host chooses a part of the source by the number of the step.
TEST_F(CudaSequenceToSequence, ReplaysHaveTheBitsOfStepsWithoutAGraph) {
  std::vector<std::string> cross;
  for (const Mechanism& mechanism : mechanisms()) {
    // Queries of a call that are ranked together are no steps.
    if (!mechanism.traits.cross || mechanism.name == "probsparse") continue;
    cross.push_back(test::small_attention(mechanism).substr(std::strlen("model.attention=")));
  }
  EXPECT_GE(cross.size(), 15U);
  const std::set<std::string> refused{"{name: grouped_linear, group: 4, cross: paired}",
                                      "{name: leapformer, wait: 2, read: 2}"};
  cross.insert(cross.end(), refused.begin(), refused.end());
  for (const std::string& attention : cross) {
    const auto decoder = model("{name: softmax}, cross_attention: " + attention, kGpu);
    int64_t replays = 0, none = 0;
    const std::vector<Tensor> with = logits_of_steps(*decoder, true, replays);
    const std::vector<Tensor> without = logits_of_steps(*decoder, false, none);
    EXPECT_EQ(none, 0);
    EXPECT_EQ(replays > 0, !refused.contains(attention)) << attention;
    for (size_t i = 0; i < with.size(); ++i) {
      ASSERT_TRUE(test::same_bits(with[i], without[i])) << attention << ", step " << i;
    }
  }
}

}  // namespace
}  // namespace linnet
