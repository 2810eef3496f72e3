// Steps of generation on a device: replays have the bits of steps without a graph, tokens that the
// device chooses are those of the host, and texts are what they are on the CPU.
#include "recipes/engine/device_steps.h"

#include <cmath>
#include <limits>
#include <map>

#include "attention/registry.h"
#include "core/cuda/backend.h"
#include "recipes/engine/cuda/sample_rows.h"
#include "recipes/engine/generator.h"
#include "tests/cuda_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using test::kGpu;

constexpr int64_t kVocabulary = 23;

class CudaSteps : public test::TinyRun {
 protected:
  std::unique_ptr<Transformer> model_of(const std::string& attention, Device device,
                                        const std::string& positions = "sinusoidal") const {
    const Recipe small = recipe({attention, "model.positions=" + positions, "model.width=16",
                                 "data.context=128", "train.tokens_per_update=128"});
    return build_model(small, {kVocabulary, small.data.context, 0}, device);
  }
};

std::vector<int32_t> prompt_of(uint64_t text) {
  std::vector<int32_t> tokens;
  for (uint64_t i = 0; i < 5 + text; ++i) {
    tokens.push_back(static_cast<int32_t>((i * i + 3 * text) % kVocabulary));
  }
  return tokens;
}

constexpr int64_t kSteps = 40;

// Continues two texts step by step; `replays` becomes how many of them were. Without graphs each
// step is one of other texts. `more`: what a step is told of the tokens that follow at most.
std::vector<Tensor> logits_of_steps(const Transformer& model, bool graphs, int64_t& replays,
                                    int64_t more = 0) {
  const NoGrad off;
  std::vector<ReadText> texts(2);
  for (size_t i = 0; i < texts.size(); ++i) read_text(model, prompt_of(i), texts[i]);
  const auto steps = make_device_steps(model);
  std::vector<Tensor> logits;
  for (int64_t step = 0; step < kSteps; ++step) {
    std::vector<StepRow> rows;
    for (size_t i = 0; i < texts.size(); ++i) {
      StepRow row;
      row.text = graphs ? i : i + 2 * static_cast<size_t>(step);
      row.state = &texts[i].state;
      row.last = static_cast<int32_t>((7 * step + static_cast<int64_t>(i)) % kVocabulary);
      row.more = std::min(more, kSteps - step);
      rows.push_back(row);
    }
    logits.push_back(steps->logits(rows).to(Device{}));
  }
  EXPECT_EQ(texts[0].state.length, 45);
  replays = steps->replays();
  return logits;
}

TEST_F(CudaSteps, ReplaysHaveTheBitsOfStepsWithoutAGraph) {
  std::map<std::string, int64_t> replayed;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (!traits.causal || !traits.decode_state || traits.depends_on_length) continue;
    const auto model = model_of(test::small_attention(mechanism), kGpu);
    int64_t replays = 0, none = 0;
    const std::vector<Tensor> with = logits_of_steps(*model, true, replays, kSteps);
    const std::vector<Tensor> without = logits_of_steps(*model, false, none);
    EXPECT_EQ(none, 0);
    for (size_t i = 0; i < with.size(); ++i) {
      ASSERT_TRUE(test::same_bits(with[i], without[i])) << mechanism.name << ", step " << i;
    }
    replayed[mechanism.name] = replays;
    EXPECT_GT(replays, 0) << mechanism.name;
  }
  for (const char* name : {"linear", "lavo", "abc_mlp"}) EXPECT_GE(replayed[name], 20) << name;
  for (const char* name : {"softmax", "yoso", "flash_quad", "sparse_fixed", "synthesizer"}) {
    EXPECT_EQ(replayed[name], kSteps - 1) << name << ": all but the first";
  }
  for (const char* name : {"local", "longformer", "transnormer_diag", "grouped_linear"}) {
    EXPECT_EQ(replayed[name], kSteps - 2) << name << ": its window is full from the first step on";
  }
}

// States that grow in other ways than a cache: summaries of chunks, which end in steps of their
// own, and lists by position.
TEST_F(CudaSteps, ChunksEndInGraphsOfTheirOwn) {
  for (const char* attention :
       {"{name: eva, window: 8, chunk: 4}",
        "{name: eva, window: 6, chunk: 3, overlap: true, distance_bias: true}",
        "{name: eva, window: 1, chunk: 1, norm: false}", "{name: longshort, window: 6, chunk: 4}",
        "{name: longshort, window: 7, chunk: 6, rank: 2, sinusoids: halves}",
        "{name: longshort, window: 1, chunk: 1, norm: false, null_tokens: 3, relative: false}",
        "{name: longshort, window: 4, chunk: 4, rank: 2, null_tokens: 8}"}) {
    SCOPED_TRACE(attention);
    const auto model = model_of(std::string("model.attention=") + attention, kGpu);
    int64_t replays = 0, none = 0;
    const std::vector<Tensor> growing = logits_of_steps(*model, false, none);
    const std::vector<Tensor> whole = logits_of_steps(*model, true, replays, kSteps);
    EXPECT_EQ(none, 0);
    EXPECT_GE(replays, kSteps - 8);
    // The vectors of longshort's distances are products of another number of rows.
    const std::string_view text = attention;
    const bool rounds = text.starts_with("{name: longshort") && !text.ends_with("relative: false}");
    for (size_t i = 0; i < growing.size(); ++i) {
      if (rounds) {
        EXPECT_CLOSE(whole[i], growing[i], 2e-6);
      } else {
        ASSERT_TRUE(test::same_bits(whole[i], growing[i])) << "step " << i;
      }
    }
  }
}

TEST_F(CudaSteps, ChunksEndWhereThereAreMorePlaces) {
  const auto model = model_of("model.attention={name: eva, window: 8, chunk: 4}", kGpu);
  int64_t replays = 0, none = 0;
  const std::vector<Tensor> growing = logits_of_steps(*model, false, none);
  const std::vector<Tensor> parts = logits_of_steps(*model, true, replays, 20);
  EXPECT_GE(replays, kSteps - 16);
  for (size_t i = 0; i < growing.size(); ++i) {
    ASSERT_TRUE(test::same_bits(parts[i], growing[i])) << "step " << i;
  }
}

TEST_F(CudaSteps, PlacesOfOtherForms) {
  for (const char* attention :
       {"{name: yoso, preset: linearized_llm}", "{name: flash_quad, key_width: 8, bias: toeplitz}",
        "{name: flash_quad, key_width: 6, weights: softmax, expansion: 1, token_shift: true}",
        "{name: sparse_fixed, block: 7, columns: 3}",
        "{name: sparse_fixed, block: 8, columns: 2, layout: original, column_sets: 3}",
        "{name: sparse_fixed, block: 5, columns: 2, dup_own_block: true}",
        "{name: longformer, window: 8, global_tokens: 3}",
        "{name: local, window: 4, pattern: block}",
        "{name: linear, augment: {conv: 3, local: 4}}"}) {
    const auto model = model_of(std::string("model.attention=") + attention, kGpu);
    int64_t replays = 0, none = 0;
    const std::vector<Tensor> growing = logits_of_steps(*model, false, none);
    const std::vector<Tensor> whole = logits_of_steps(*model, true, replays, kSteps);
    EXPECT_EQ(none, 0);
    EXPECT_GE(replays, kSteps - 8) << attention;
    for (size_t i = 0; i < growing.size(); ++i) {
      ASSERT_TRUE(test::same_bits(whole[i], growing[i])) << attention << ", step " << i;
    }
  }
  // Beside places, the tokens of a convolution grow until it has all of its taps.
  {
    const auto model = model_of("model.attention={name: softmax, augment: {conv: 31}}", kGpu);
    int64_t replays = 0, none = 0;
    const std::vector<Tensor> growing = logits_of_steps(*model, false, none);
    const std::vector<Tensor> whole = logits_of_steps(*model, true, replays, kSteps);
    EXPECT_GE(replays, kSteps - 18);
    for (size_t i = 0; i < growing.size(); ++i) {
      ASSERT_TRUE(test::same_bits(whole[i], growing[i])) << "augment, step " << i;
    }
  }
  // The table of bias: rope is a product of another number of rows.
  const auto model = model_of("model.attention={name: flash_quad, key_width: 8, bias: rope}", kGpu);
  int64_t replays = 0, none = 0;
  const std::vector<Tensor> growing = logits_of_steps(*model, false, none);
  const std::vector<Tensor> whole = logits_of_steps(*model, true, replays, kSteps);
  EXPECT_EQ(replays, kSteps - 1);
  for (size_t i = 0; i < growing.size(); ++i) EXPECT_CLOSE(whole[i], growing[i], 2e-6);
}

// The keys and values of softmax lie in places that a text is given in advance. Without places, and
// with more of them each time that they are full, steps have the same bits.
TEST_F(CudaSteps, ACacheHasPlacesForTheTokensThatFollow) {
  for (const char* parameters : {"", ", preset: t5"}) {
    const auto model = model_of(concat("model.attention={name: softmax", parameters, "}"), kGpu);
    int64_t replays = 0, in_parts = 0, none = 0;
    const std::vector<Tensor> growing = logits_of_steps(*model, true, none);
    const std::vector<Tensor> whole = logits_of_steps(*model, true, replays, kSteps);
    const std::vector<Tensor> parts = logits_of_steps(*model, true, in_parts, 8);
    EXPECT_EQ(none, 0) << "keys and values grow";
    EXPECT_EQ(replays, kSteps - 1);
    EXPECT_EQ(in_parts, kSteps - kSteps / 8) << "all but the first of every 8";
    for (size_t i = 0; i < growing.size(); ++i) {
      ASSERT_TRUE(test::same_bits(whole[i], growing[i])) << parameters << ", step " << i;
      ASSERT_TRUE(test::same_bits(parts[i], growing[i])) << parameters << ", step " << i;
    }
  }
}

TEST(CudaSampleRows, ADeviceDrawsWhatTheHostDraws) {
  const RandomKey key = RandomKey{5, 2, 0}.at("generate");
  const float infinity = std::numeric_limits<float>::infinity();
  for (const int64_t words : {int64_t{1}, int64_t{7}, int64_t{256}, int64_t{5003}}) {
    const int64_t rows = 24;
    std::vector<float> logits =
        test::random_tensor({rows, words}, "logits", DType::f32).to_vector<float>();
    for (size_t i = 0; i < logits.size(); ++i) {
      const bool tie = i % 3 == 0;
      logits[i] = tie ? std::round(3 * logits[i]) * (i % 2 == 0 ? 1.0F : -1.0F) : 4 * logits[i];
      if (words > 1 && i % 5 == 1) logits[i] = -infinity;
    }
    std::vector<double> temperatures;
    std::vector<int64_t> draws;
    std::vector<int32_t> expected;
    for (int64_t row = 0; row < rows; ++row) {
      SamplingOptions options;
      options.temperature = std::vector<double>{0, 0.3, 1, 5}[static_cast<size_t>(row % 4)];
      temperatures.push_back(options.temperature);
      for (const uint64_t value : {key.seed, key.step, key.site, static_cast<uint64_t>(row)}) {
        draws.push_back(static_cast<int64_t>(value));
      }
      expected.push_back(sample_token(
          std::span(logits).subspan(static_cast<size_t>(row * words), static_cast<size_t>(words)),
          options, key, static_cast<uint64_t>(row)));
    }
    const Tensor device_draws = Tensor::from(draws, {rows, cuda::kDrawValues}, kGpu);
    const Tensor positions = Tensor::zeros({rows, 1}, DType::i32, kGpu);
    const Tensor tokens = Tensor::zeros({rows, 1}, DType::i32, kGpu);
    cuda::sample_rows(Tensor::from(logits, {rows, words}, kGpu),
                      Tensor::from(temperatures, {rows}, kGpu), device_draws,
                      Tensor::empty({rows, words}, DType::f64, kGpu), positions, tokens);
    EXPECT_EQ(tokens.to_vector<int32_t>(), expected) << words << " words";
    EXPECT_EQ(positions.to_vector<int32_t>(), std::vector<int32_t>(rows, 1));
    EXPECT_EQ(device_draws.to_vector<int64_t>()[cuda::kDrawValues - 1], 1);
  }
}

TEST(CudaSampleRows, NoTokenIsChosenOfLogitsThatAreNotNumbers) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto chosen = [](const std::vector<float>& logits, double temperature) {
    const Tensor tokens = Tensor::zeros({1, 1}, DType::i32, kGpu);
    cuda::sample_rows(Tensor::from(logits, {1, std::ssize(logits)}, kGpu),
                      Tensor::from(std::vector<double>{temperature}, {1}, kGpu),
                      Tensor::zeros({1, cuda::kDrawValues}, DType::i64, kGpu),
                      Tensor::empty({1, std::ssize(logits)}, DType::f64, kGpu),
                      Tensor::zeros({1, 1}, DType::i32, kGpu), tokens);
    return tokens.to_vector<int32_t>()[0];
  };
  EXPECT_EQ(chosen({1, nan, 2}, 0), cuda::kLogitIsNan);
  EXPECT_EQ(chosen({1, nan, 2}, 1), cuda::kLogitIsNan);
  EXPECT_EQ(chosen({1, infinity, 2}, 1), cuda::kNothingToDraw);
  EXPECT_EQ(chosen({-infinity, -infinity}, 1), cuda::kNothingToDraw);
  EXPECT_EQ(chosen({1, infinity, 2}, 0), 1);
  EXPECT_EQ(chosen({-infinity, -infinity}, 0), 0);
}

// More texts than slots, of several lengths: rows come and go.
std::vector<std::vector<int32_t>> generated(const Transformer& model,
                                            const SamplingOptions& sampling, int64_t slots) {
  std::vector<Continuation> texts;
  for (uint64_t i = 0; i < 5; ++i) {
    GenerateOptions options;
    options.tokens = 6 + static_cast<int64_t>(11 * i % 17);
    options.sampling = sampling;
    options.sample = i;
    texts.push_back({[&model, i] {
                       ReadText text;
                       const NoGrad off;
                       read_text(model, prompt_of(i), text);
                       return text;
                     },
                     options,
                     {}});
  }
  std::vector<std::vector<int32_t>> results(texts.size());
  generate_batch(model, texts, slots, [&results](size_t text, Generated result) {
    results[text] = std::move(result.tokens);
  });
  return results;
}

TEST_F(CudaSteps, TextsAreThoseOfTheCpu) {
  SamplingOptions greedy, drawn, cut;
  greedy.temperature = 0;
  drawn.temperature = 0.8;
  cut.top_k = 5;
  cut.repetition_penalty = 1.2;
  for (const char* attention : {"{name: linear}", "{name: lavo, rank: 4, window: 3}",
                                "{name: abc_mlp, slots: 4}", "{name: softmax}"}) {
    for (const char* positions : {"rotary", "learned", "sinusoidal"}) {
      const std::string name = std::string("model.attention=") + attention;
      const auto host = model_of(name, {}, positions), device = model_of(name, kGpu, positions);
      for (const SamplingOptions& sampling : {greedy, drawn, cut}) {
        const auto expected = generated(*host, sampling, 2);
        EXPECT_EQ(generated(*device, sampling, 2), expected) << attention << ", " << positions;
        EXPECT_EQ(generated(*device, sampling, 1), expected) << attention << ", " << positions;
      }
    }
  }
}

// Texts of steps that are captured with places, and by two graphs where chunks end.
TEST_F(CudaSteps, TextsWithPlacesAreThoseOfTheCpu) {
  SamplingOptions greedy;
  greedy.temperature = 0;
  for (const char* attention :
       {"{name: yoso}", "{name: flash_quad, key_width: 8}",
        "{name: flash_quad, key_width: 8, bias: rope}",
        "{name: sparse_fixed, block: 7, columns: 3}", "{name: eva, window: 8, chunk: 4}",
        "{name: longshort, window: 6, chunk: 4}", "{name: longformer, window: 8, global_tokens: 3}",
        "{name: synthesizer}"}) {
    const std::string name = std::string("model.attention=") + attention;
    EXPECT_EQ(generated(*model_of(name, kGpu), greedy, 2),
              generated(*model_of(name, {}), greedy, 2))
        << attention;
  }
}

}  // namespace
}  // namespace linnet
