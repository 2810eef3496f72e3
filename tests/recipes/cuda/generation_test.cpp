// Text behind an encoder on a device: the tokens of the CPU, greedy, drawn and by beams, alone and
// beside others.
#include "recipes/engine/generator.h"

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

// A graph would read the source where it was. Linear attention's own state keeps its size, so that
// without an encoder the same steps are replays.
TEST_F(CudaSequenceToSequence, StepsAreNotCaptured) {
  const NoGrad off;
  for (const bool encoder : {false, true}) {
    const auto decoder =
        encoder ? model("{name: linear}", kGpu)
                : build_model(recipe({"model.attention={name: linear}"}), {23, 32, 0}, kGpu);
    ReadText text = source_of(*decoder, 1);
    const int64_t before = text.state.length;
    const auto steps = make_device_steps(*decoder);
    for (int32_t token = 0; token < 8; ++token) {
      StepRow row;
      row.state = &text.state;
      row.last = token;
      steps->logits({&row, 1});
    }
    EXPECT_EQ(steps->replays() > 0, !encoder);
    EXPECT_EQ(text.state.length, before + 8);
  }
}

}  // namespace
}  // namespace linnet
