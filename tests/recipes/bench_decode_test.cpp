// bench decode: figures of steps of generation, and work that does not grow with the text.
#include "recipes/engine/bench/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/registry.h"
#include "core/gemm.h"
#include "core/memory_bandwidth.h"
#include "recipes/engine/bench/model.h"
#include "recipes/engine/generator.h"
#include "recipes/engine/packed_model.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::ElementsAre;

class BenchDecode : public test::TinyRun {
 protected:
  static constexpr int64_t kVocabulary = 40;

  std::vector<ModelBench> bench(const std::string& attention, DecodeBenchOptions options) const {
    const Recipe small = recipe({"model.attention={name: " + attention + "}"});
    const auto model = build_model(small, {kVocabulary, options.lengths.back(), 0});
    return bench_decode(*model, name_bench(small, ""), options);
  }
};

TEST_F(BenchDecode, TellsOfEachLengthAndBatch) {
  DecodeBenchOptions options;
  options.prompt = 8;
  options.lengths = {16, 64};
  options.batches = {1, 3};
  for (const std::string attention : {"softmax", "linear"}) {
    const std::vector<ModelBench> results = bench(attention, options);
    ASSERT_EQ(results.size(), 4U);
    for (const ModelBench& result : results) {
      EXPECT_EQ(result.attention, attention);
      EXPECT_EQ(result.recipe, "tiny");
      ASSERT_TRUE(result.decode);
      EXPECT_GT(result.seconds, 0);
      EXPECT_GE(result.decode->p95_seconds, result.seconds);
      EXPECT_GT(result.decode->tokens_per_s, 0);
      EXPECT_EQ(result.decode->prompt, 8);
      EXPECT_EQ(result.decode->steps, result.length == 16 ? 7 : 48);  // the first one warms up
      EXPECT_GT(result.peak_bytes,
                static_cast<size_t>(4 * result.parameters) + result.decode->state_bytes);
    }
    EXPECT_EQ(results[1].batch, 1);
    EXPECT_EQ(results[2].batch, 3);
    EXPECT_EQ(results[2].length, 16);
    EXPECT_EQ(results[3].decode->state_bytes, 3 * results[1].decode->state_bytes);
    const size_t first = results[0].decode->state_bytes, last = results[1].decode->state_bytes;
    if (attention == "softmax") {
      EXPECT_EQ(last, 4 * first) << "as many keys and values as tokens";
    } else {
      EXPECT_EQ(last, first);
    }
    EXPECT_EQ(growth_of({results[0], results[1]}), results[1].seconds / results[0].seconds);
  }
}

TEST_F(BenchDecode, WithoutTheStateEachTokenReadsTheText) {
  DecodeBenchOptions options;
  options.lengths = {64, 1024};
  options.batches = {2};
  options.with_state = false;
  const std::vector<ModelBench> results = bench("softmax", options);
  ASSERT_EQ(results.size(), 2U);
  EXPECT_FALSE(results[0].decode);
  EXPECT_GT(results[1].seconds, 2 * results[0].seconds);
  EXPECT_GT(results[1].peak_bytes, results[0].peak_bytes);
}

TEST_F(BenchDecode, LengthsDoubleUpToTheEnd) {
  EXPECT_THAT(doubled_lengths(1, 63), ElementsAre(16, 32, 64));
  EXPECT_THAT(doubled_lengths(100, 20), ElementsAre(120));
  EXPECT_THAT(doubled_lengths(1, 65535),
              ElementsAre(16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536));
}

TEST_F(BenchDecode, RefusesWhatThereIsNoRoomFor) {
  DecodeBenchOptions options;
  const Recipe learned = recipe({"model.positions=learned"});
  const auto model = build_model(learned, {kVocabulary, 16, 0});
  options.lengths = {17};
  EXPECT_THROW(bench_decode(*model, {}, options), UsageError);
  options.lengths = {16};
  EXPECT_NO_THROW(bench_decode(*model, {}, options));
  options.lengths = {2};
  EXPECT_THROW(bench_decode(*model, {}, options), Error);
}

TEST_F(BenchDecode, ASourceTakesNoPositionsOfTheText) {
  const Recipe pairs = sequences({"data={kind: copy, vocabulary: 9, context: 12}",
                                  "model={kind: encoder_decoder, head: table, layers: 1, width: "
                                  "16, heads: 2, attention: {name: softmax}, positions: learned}"});
  const auto model = build_model(pairs, {kVocabulary, 16, 0});
  DecodeBenchOptions options;
  options.prompt = 10;
  options.lengths = {25};
  EXPECT_EQ(bench_decode(*model, {}, options).at(0).decode->steps, 14);
  options.lengths = {26};
  EXPECT_THAT([&] { bench_decode(*model, {}, options); },
              testing::ThrowsMessage<UsageError>(testing::StartsWith(
                  "bench decode: model.decoder_start and 16 to follow do not fit into the 16 ")));
}

TEST_F(BenchDecode, CountsTheBytesOfAStep) {
  const Recipe small = recipe({"model.width=32", "model.tie_embeddings=false"});
  const auto model = build_model(small, {kVocabulary, 16, 0});
  const auto count = static_cast<size_t>(model->parameters().count());
  const size_t read = count - 32 * kVocabulary;  // all but the table of the embedding
  EXPECT_EQ(bytes_of_step(*model, nullptr), 4 * read);
  const auto packed = pack_weights(*model, WeightFormat::bf16);
  size_t vectors = 0;
  for (const auto& entry : model->parameters().entries()) {
    if (entry.shape.rank() != 2) vectors += static_cast<size_t>(entry.shape.elements());
  }
  EXPECT_EQ(bytes_of_step(*model, packed.get()), 2 * (read - vectors) + 4 * vectors);
  EXPECT_GT(read_bandwidth(1 << 20), 1e8);
}

// What a step does and holds where the text has so many tokens.
struct Work {
  double product_operations = 0;
  size_t state_bytes = 0, held_bytes = 0;
};

Work work_of_step(const Transformer& model, int64_t length) {
  ReadText text;
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(i * 7 % 40));
  read_text(model, tokens, text);
  GenerateOptions options;
  options.tokens = 4;
  Work work;
  double before = 0;
  const Continuation one{[&text] { return std::move(text); }, options, {}};
  generate_batch(
      model, {&one, 1}, 1, [](size_t, const Generated&) {},
      [&](size_t state_bytes) {
        work.product_operations = gemm_flop_count() - before;
        before = gemm_flop_count();
        work.state_bytes = state_bytes;
        work.held_bytes = peak_allocated_bytes({});
        reset_peak_memory({});
      });
  return work;
}

// Clocks are for the bench; this counts.
TEST_F(BenchDecode, StepsOfConstantStatesDoTheSameAt1kAnd64kTokens) {
  constexpr int64_t kShort = 1 << 10, kLong = 1 << 16;
  int constant = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (!traits.decode_state || !traits.constant_state) continue;
    ++constant;
    const Recipe small =
        recipe({test::small_attention(mechanism), "model.layers=1", "model.width=16"});
    const auto model = build_model(small, {kVocabulary, kLong + 8, 0});
    const Work early = work_of_step(*model, kShort), late = work_of_step(*model, kLong);
    EXPECT_EQ(early.product_operations, late.product_operations) << mechanism.name;
    EXPECT_EQ(early.state_bytes, late.state_bytes) << mechanism.name;
    EXPECT_EQ(early.held_bytes, late.held_bytes) << mechanism.name;
  }
  EXPECT_GT(constant, 20);
}

}  // namespace
}  // namespace linnet
