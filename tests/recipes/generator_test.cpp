// Text from a decoder: the decode state stands for the prefix; sampling keeps its limits.
#include "recipes/engine/generator.h"
#include "attention/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/device.h"
#include "core/gemm.h"
#include "data/word_tokenizer.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class Generator : public test::TinyRun {
 protected:
  std::unique_ptr<Transformer> model(const std::vector<std::string>& changes = {}) const {
    const Recipe small = recipe(changes);
    return build_model(small, {40, small.data.context, 0});
  }
  static std::vector<int32_t> ids(int64_t count) {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(i * i * 7 % 40));
    return result;
  }
  // Logits [T,V] of a whole text, or continued in pieces.
  static std::vector<float> logits(const Transformer& model, const std::vector<int32_t>& tokens,
                                   ModelState* state = nullptr) {
    const NoGrad off;
    ModelInput input;
    input.tokens = Tensor::from(tokens, {1, static_cast<int64_t>(tokens.size())});
    const Variable hidden = model.encode(input, state);
    const auto length = static_cast<int64_t>(tokens.size());
    if (model.config().embedding == "adaptive") {
      return model.token_head()
          .logits(hidden.value().reshape({length, hidden.size(2)}))
          .to_vector<float>();
    }
    const Tensor out = Tensor::empty({length, model.vocabulary()}, DType::f32);
    gemm(hidden.value(), Transpose::no, model.parameters().tensors().at("embedding.weight"),
         Transpose::yes, out);
    return out.to_vector<float>();
  }
};

TEST_F(Generator, TheDecodeStateStandsForThePrefix) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (!traits.causal || !traits.decode_state || traits.depends_on_length) continue;
    const auto decoder = model({test::small_attention(mechanism), "model.width=16",
                                "data.context=64", "train.tokens_per_update=64"});
    const std::vector<int32_t> tokens = ids(50);
    const std::vector<float> whole = logits(*decoder, tokens);
    ModelState state;
    std::vector<float> stepped =
        logits(*decoder, std::vector<int32_t>(tokens.begin(), tokens.begin() + 9), &state);
    for (size_t t = 9; t < tokens.size(); ++t) {
      const std::vector<float> next = logits(*decoder, {tokens[t]}, &state);
      stepped.insert(stepped.end(), next.begin(), next.end());
    }
    ASSERT_EQ(stepped.size(), whole.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      ASSERT_NEAR(stepped[i], whole[i], 1e-5) << mechanism.name << " at token " << i / 40;
    }
    ++checked;
  }
  EXPECT_GE(checked, 20);
}

TEST_F(Generator, TheMostLikelyTokensFollowFromTheWholePrefix) {
  const std::vector<std::vector<std::string>> models = {
      {},
      {"model.attention={name: softmax}", "model.kv_heads=1"},
      {"model.embedding=adaptive", "model.cutoffs=[5, 12]", "model.cutoff_factor=2"}};
  for (std::vector<std::string> changes : models) {
    changes.emplace_back("data.context=64");
    const auto decoder = model(changes);
    std::vector<int32_t> text = ids(5);
    GenerateOptions options;
    options.tokens = 20;
    options.sampling.temperature = 0;
    const Generated result = generate(*decoder, text, options);
    EXPECT_EQ(generate(*decoder, text, options).tokens, result.tokens);
    for (const int32_t token : result.tokens) {
      const std::vector<float> all = logits(*decoder, text);
      const auto last = all.end() - 40;
      EXPECT_EQ(std::max_element(last, all.end()) - last, token);
      text.push_back(token);
    }
  }
}

TEST_F(Generator, SharedHeadsOfKeysMakeTheStateSmaller) {
  const auto bytes = [&](const std::string& heads) {
    const auto decoder = model({"model.attention={name: local, window: 4}", heads});
    GenerateOptions options;
    options.tokens = 8;
    return generate(*decoder, ids(2), options).state_bytes;
  };
  // Two layers, three tokens: keys and values of 2 heads of 4 channels or of one, and the mask.
  EXPECT_EQ(bytes("model.kv_heads=2"), 2U * 3 * (2 * 2 * 4 * 4 + 8));
  EXPECT_EQ(bytes("model.kv_heads=1"), 2U * 3 * (2 * 4 * 4 + 8));
}

TEST_F(Generator, TheSameSeedGivesTheSameText) {
  for (const std::string precision : {"f32", "bf16"}) {
    const auto decoder = model({"train.precision=" + precision});
    GenerateOptions options;
    options.tokens = 12;
    const std::vector<int32_t> prompt = ids(3);
    const auto text = [&](uint64_t seed) {
      options.seed = seed;
      return generate(*decoder, prompt, options).tokens;
    };
    EXPECT_EQ(text(1), text(1));
    EXPECT_NE(text(1), text(2));
    EXPECT_EQ(text(1).size(), 12U);
  }
}

TEST_F(Generator, TheStateOfLinearAttentionStaysThatLarge) {
  const auto state_bytes = [&](const Transformer& decoder, int64_t tokens) {
    GenerateOptions options;
    options.tokens = tokens;
    return generate(decoder, ids(2), options).state_bytes;
  };
  const auto linear = model();
  EXPECT_GT(state_bytes(*linear, 3), 0U);
  EXPECT_EQ(state_bytes(*linear, 3), state_bytes(*linear, 60));
  const auto softmax = model({"model.attention={name: softmax}"});
  EXPECT_LT(state_bytes(*softmax, 3), state_bytes(*softmax, 60));
}

TEST_F(Generator, StopsAtTheEndOfTextAndShowsEachToken) {
  const auto decoder = model();
  GenerateOptions options;
  options.tokens = 30;
  std::vector<int32_t> seen;
  const Generated all = generate(*decoder, ids(2), options, [&seen](int32_t token) {
    seen.push_back(token);
    return true;
  });
  EXPECT_EQ(seen, all.tokens);
  options.eos_id = all.tokens[10];
  const std::vector<int32_t> cut = generate(*decoder, ids(2), options).tokens;
  ASSERT_LE(cut.size(), 11U);
  EXPECT_EQ(cut.back(), options.eos_id);
  EXPECT_TRUE(std::equal(cut.begin(), cut.end(), all.tokens.begin()));
}

TEST_F(Generator, AReadTextHasAnyNumberOfContinuations) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (!traits.causal || !traits.decode_state) continue;
    SCOPED_TRACE(mechanism.name);
    const auto decoder = model({test::small_attention(mechanism), "model.width=16",
                                "data.context=64", "train.tokens_per_update=64"});
    GenerateOptions options;
    options.tokens = 6;
    ReadText text;
    read_text(*decoder, ids(9), text);
    EXPECT_EQ(text.state.length, 9);
    EXPECT_EQ(text.last, ids(9).back());
    const std::vector<int32_t> alone = generate(*decoder, ids(9), options).tokens;
    EXPECT_EQ(generate(*decoder, text, options).tokens, alone);
    EXPECT_EQ(generate(*decoder, text, options).tokens, alone) << "the state was changed";
    ++checked;
  }
  EXPECT_GE(checked, 20);
}

// Slots are refilled, texts are of different lengths and end at different times: each is to the bit
// what it is alone.
TEST_F(Generator, ABatchGivesEachTextWhatItGetsAlone) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (!traits.causal || !traits.decode_state) continue;
    SCOPED_TRACE(mechanism.name);
    const auto decoder = model({test::small_attention(mechanism), "model.width=16",
                                "data.context=64", "train.tokens_per_update=64"});
    std::vector<Generated> alone, together(6);
    std::vector<Continuation> texts;
    int64_t longest = 0, tokens = 0;
    for (int64_t i = 0; i < 6; ++i) {
      Continuation text;
      text.options.tokens = 3 + 5 * i % 11;
      text.options.sample = static_cast<uint64_t>(i);
      text.options.log_probabilities = true;
      text.read = [&decoder, i] {
        ReadText read;
        read_text(*decoder, ids(4 + 3 * i), read);
        return read;
      };
      alone.push_back(generate(*decoder, ids(4 + 3 * i), text.options));
      longest = std::max(longest, text.options.tokens);
      tokens += text.options.tokens;
      texts.push_back(std::move(text));
    }
    const BatchCounts counts = generate_batch(
        *decoder, texts, 4,
        [&together](size_t text, Generated result) { together[text] = std::move(result); });
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
      EXPECT_EQ(together[i].log_probabilities, alone[i].log_probabilities) << i;
      EXPECT_EQ(together[i].state_bytes, alone[i].state_bytes) << i;
    }
    EXPECT_EQ(counts.tokens, tokens);
    EXPECT_GE(counts.passes, longest - 1);
    EXPECT_LT(counts.passes, tokens / 2);
    ++checked;
  }
  EXPECT_GE(checked, 20);
}

TEST_F(Generator, SamplesHaveDrawsOfTheirOwn) {
  const auto decoder = model();
  GenerateOptions options;
  options.tokens = 12;
  const std::vector<int32_t> first = generate(*decoder, ids(3), options).tokens;
  options.sample = 1;
  const std::vector<int32_t> second = generate(*decoder, ids(3), options).tokens;
  EXPECT_NE(first, second);
  EXPECT_EQ(generate(*decoder, ids(3), options).tokens, second);
}

TEST_F(Generator, ReadsALongPromptInParts) {
  const auto decoder = model();
  std::vector<int32_t> prompt;
  for (int64_t i = 0; i < 2 * kPromptPart + 7; ++i) {
    prompt.push_back(static_cast<int32_t>(i * i * 7 % 40));
  }
  ReadText text;
  std::vector<int64_t> parts;
  read_text(*decoder, prompt, text, [&](int64_t read) { parts.push_back(read); });
  EXPECT_EQ(parts, (std::vector<int64_t>{kPromptPart, 2 * kPromptPart, 2 * kPromptPart + 7}));
  const std::vector<float> whole = logits(*decoder, prompt);
  const std::vector<float> last = decoder->token_head().logits(text.hidden).to_vector<float>();
  for (size_t i = 0; i < last.size(); ++i) {
    EXPECT_NEAR(last[i], whole[whole.size() - last.size() + i], 1e-5);
  }
}

TEST_F(Generator, ALongPromptTakesTheMemoryOfItsParts) {
  for (const char* attention : {"{name: linear}", "{name: lavo, rank: 4, window: 4}"}) {
    const auto decoder = model({concat("model.attention=", attention)});
    const auto held = [&](int64_t parts) {
      const std::vector<int32_t> prompt(static_cast<size_t>(parts * kPromptPart), 3);
      reset_peak_memory({});
      const size_t before = allocated_bytes({});
      ReadText text;
      read_text(*decoder, prompt, text);
      return peak_allocated_bytes({}) - before;
    };
    const size_t two = held(2);
    EXPECT_GT(two, 0U);
    EXPECT_LE(held(8), two + two / 20) << attention;
  }
}

TEST_F(Generator, ProbabilitiesAreTheModelsOwn) {
  const auto decoder = model();
  GenerateOptions options;
  options.tokens = 5;
  options.log_probabilities = true;
  options.sampling.temperature = 0;
  options.sampling.repetition_penalty = 1.7;
  const std::vector<int32_t> prompt = ids(4);
  const Generated result = generate(*decoder, prompt, options);
  ASSERT_EQ(result.log_probabilities.size(), 5U);
  std::vector<int32_t> text = prompt;
  text.insert(text.end(), result.tokens.begin(), result.tokens.end());
  const std::vector<float> all = logits(*decoder, text);
  for (size_t i = 0; i < 5; ++i) {
    const auto row = all.begin() + static_cast<std::ptrdiff_t>((prompt.size() + i - 1) * 40);
    double total = 0;
    for (auto each = row; each != row + 40; ++each) total += std::exp(*each);
    EXPECT_NEAR(result.log_probabilities[i], row[result.tokens[i]] - std::log(total), 1e-5);
  }
}

TEST_F(Generator, PositionsEndWithTheTable) {
  const auto decoder = model({"model.positions=learned"});
  GenerateOptions options;
  EXPECT_EQ(longest_continuation(*decoder, 4), 13);
  EXPECT_EQ(longest_continuation(*model(), 4), std::numeric_limits<int64_t>::max());
  options.tokens = 13;
  EXPECT_EQ(generate(*decoder, ids(4), options).tokens.size(), 13U);
  options.tokens = 14;
  const auto refusal = [&](const std::vector<int32_t>& prompt) {
    return test::causes_of<UsageError>([&] { generate(*decoder, prompt, options); });
  };
  EXPECT_EQ(refusal(ids(4)), "out_of_range generate.tokens");
  options.tokens = 0;
  EXPECT_TRUE(generate(*decoder, ids(4), options).tokens.empty());
  EXPECT_EQ(refusal(ids(17)), "out_of_range generate.tokens");
  EXPECT_EQ(refusal({}), "out_of_range generate.prompt");
}

TEST(Sampling, KeepsItsLimits) {
  const std::vector<float> logits = {1, 3, -2, 2.5F, 0, 3};  // most likely: 1, 5, 3, 0, 4, 2
  const RandomKey key{9, 0, 0};
  const auto drawn = [&](const SamplingOptions& options) {
    std::vector<int> counts(logits.size());
    for (uint64_t i = 0; i < 4000; ++i) {
      ++counts[static_cast<size_t>(sample_token(logits, options, key, i))];
    }
    return counts;
  };
  EXPECT_EQ(drawn({0, 0, 1})[1], 4000);
  EXPECT_EQ(drawn({1, 1, 1})[1], 4000);
  const std::vector<int> three = drawn({1, 3, 1});
  EXPECT_EQ(three[1] + three[3] + three[5], 4000);
  EXPECT_GT(three[3], 500);
  // Probabilities of 1 and 5 are 0.35 each, of 3 0.21: 0.5 needs two of them, 0.8 three.
  const std::vector<int> half = drawn({1, 0, 0.5});
  EXPECT_EQ(half[1] + half[5], 4000);
  EXPECT_NEAR(half[1], 2000, 200);
  const std::vector<int> most = drawn({1, 0, 0.8});
  EXPECT_EQ(most[1] + most[3] + most[5], 4000);
  EXPECT_GT(most[3], 500);
  const std::vector<int> all = drawn({1, 0, 1});
  double total = 0;
  for (const float logit : logits) total += std::exp(logit);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double expected = 4000 * std::exp(logits[i]) / total;
    EXPECT_NEAR(all[i], expected, 5 * std::sqrt(expected) + 1) << i;
  }
  EXPECT_EQ(drawn({1e-6, 0, 1})[2], 0);
}

TEST(Sampling, KeepsTokensNearTheMostLikelyOne) {
  const std::vector<float> logits = {0, std::log(0.5F), std::log(0.24F), std::log(0.26F)};
  SamplingOptions options;
  options.min_p = 0.25;
  std::vector<int> counts(4);
  for (uint64_t i = 0; i < 4000; ++i) {
    ++counts[static_cast<size_t>(sample_token(logits, options, {9, 0, 0}, i))];
  }
  EXPECT_EQ(counts[2], 0);
  EXPECT_NEAR(counts[3], 4000 * 0.26 / 1.76, 150);
  EXPECT_NEAR(counts[0], 4000 / 1.76, 200);
  options.min_p = 1;
  for (uint64_t i = 0; i < 50; ++i) EXPECT_EQ(sample_token(logits, options, {9, 0, 0}, i), 0);
}

TEST(Sampling, MakesWhatTheTextHasLessLikely) {
  std::vector<float> logits = {2, -2, 3, 0};
  penalize(logits, {true, true, false, true}, 2);
  EXPECT_EQ(logits, (std::vector<float>{1, -4, 3, 0}));
  penalize(logits, {true, true, true, true}, 1);
  EXPECT_EQ(logits, (std::vector<float>{1, -4, 3, 0}));
  EXPECT_NEAR(log_probability(std::vector<float>{0, std::log(3.0F)}, 1), std::log(0.75), 1e-6);
  EXPECT_NEAR(log_probability(std::vector<float>{1000, 0}, 1), -1000, 1e-9);
}

TEST(Sampling, RefusesWhatMakesNoSense) {
  const auto refusal = [](const SamplingOptions& options) {
    return test::causes_of<UsageError>([&] { options.validate(); });
  };
  EXPECT_EQ(refusal({-1, 0, 1}), "out_of_range generate.temperature");
  EXPECT_EQ(refusal({std::nan(""), 0, 1}), "out_of_range generate.temperature");
  EXPECT_EQ(refusal({1, -1, 1}), "out_of_range generate.top_k");
  EXPECT_EQ(refusal({1, 0, 0}), "out_of_range generate.top_p");
  EXPECT_EQ(refusal({1, 0, 1, -0.1}), "out_of_range generate.min_p");
  EXPECT_EQ(refusal({1, 0, 1, 1.1}), "out_of_range generate.min_p");
  EXPECT_EQ(refusal({1, 0, 1, 0, 0}), "out_of_range generate.repetition_penalty");
  EXPECT_EQ(refusal({1, 0, 1, 0, std::nan("")}), "out_of_range generate.repetition_penalty");
  const RandomKey key{1, 0, 0};
  const std::vector<float> broken = {0, NAN};
  EXPECT_THAT(test::message_of([&] { sample_token(broken, {}, key, 0); }), HasSubstr("NaN"));
  EXPECT_THAT(test::message_of([&] { sample_token(broken, {0, 0, 1}, key, 0); }), HasSubstr("NaN"));
}

TEST(Prompt, BecomesTokensAndGoesOnInWords) {
  WordVocabularyBuilder builder;
  builder.add("one two three\nfour\n");
  const std::unique_ptr<Tokenizer> words = builder.build(0);
  const std::vector<int32_t> prompt = encode_prompt(*words, "one two");
  const auto text = [&](std::string_view more) {
    return continuation(*words, prompt, words->encode(more));
  };
  EXPECT_EQ(text("three"), " three");
  EXPECT_EQ(continuation(*words, prompt, {}), "");
  // A model never saw the meaning of unknown words; <unk> is a word like any other.
  EXPECT_EQ(test::causes_of<UsageError>([&] { encode_prompt(*words, "one five six"); }),
            "unknown_name generate.prompt");
  EXPECT_THAT(test::message_of<UsageError>([&] { encode_prompt(*words, "one five six"); }),
              HasSubstr("lacks 2 words of the prompt (the first is 'five')"));
  EXPECT_EQ(encode_prompt(*words, "one <unk>").size(), 2U);
  EXPECT_EQ(encode_prompt(*words, "").size(), 1U);
  // A vocabulary without <unk> has no way out.
  test::TemporaryFolder folder;
  const std::unique_ptr<Tokenizer> closed =
      load_word_tokenizer(folder.write("vocabulary.txt", "one\ntwo\n<eos>\n"));
  EXPECT_EQ(test::causes_of([&] { encode_prompt(*closed, "one five"); }), "unknown_name five");
  TokenizerConfig bytes;
  const std::unique_ptr<Tokenizer> byte = make_tokenizer(bytes);
  EXPECT_EQ(encode_prompt(*byte, "").size(), 1U);
  EXPECT_EQ(continuation(*byte, encode_prompt(*byte, "ab"), byte->encode("cd")), "cd");
}

}  // namespace
}  // namespace linnet
