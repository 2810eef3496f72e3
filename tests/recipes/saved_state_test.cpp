// Decode states in files: what was read once is continued by any later program.
#include "recipes/engine/saved_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attention/registry.h"
#include "core/files.h"
#include "core/safetensors.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using testing::HasSubstr;

class SavedState : public test::TinyRun {
 protected:
  std::unique_ptr<Transformer> model(std::vector<std::string> changes) const {
    for (const char* each : {"model.width=16", "data.context=64", "train.tokens_per_update=64"}) {
      changes.emplace_back(each);
    }
    const Recipe small = recipe(changes);
    return build_model(small, {40, small.data.context, 0});
  }
  static std::vector<int32_t> ids(int64_t count) {
    std::vector<int32_t> result;
    for (int64_t i = 0; i < count; ++i) result.push_back(static_cast<int32_t>(i * i * 7 % 40));
    return result;
  }
  std::string file() const { return folder_ / "state.safetensors"; }
};

TEST_F(SavedState, ContinuesWithTheSameTokensWhateverTheMechanism) {
  int checked = 0;
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (!traits.causal || !traits.decode_state) continue;
    SCOPED_TRACE(mechanism.name);
    const auto decoder = model({test::small_attention(mechanism)});
    ReadText text;
    read_text(*decoder, ids(9), text);
    save_state(file(), *decoder, text);
    ReadText read;
    ASSERT_NO_THROW(read = load_state(file(), *decoder));
    EXPECT_EQ(read.state.length, 9);
    EXPECT_EQ(read.last, text.last);
    EXPECT_TRUE(read.seen.empty());
    GenerateOptions options;
    options.tokens = 7;
    options.log_probabilities = true;
    const Generated before = generate(*decoder, text, options);
    const Generated after = generate(*decoder, read, options);
    EXPECT_EQ(after.tokens, before.tokens);
    EXPECT_EQ(after.log_probabilities, before.log_probabilities);
    // More of the text may follow, too.
    read_text(*decoder, ids(3), text);
    read_text(*decoder, ids(3), read);
    EXPECT_EQ(read.hidden.to_vector<float>(), text.hidden.to_vector<float>());
    ++checked;
  }
  EXPECT_GE(checked, 20);
}

// Where a chunk ends a mechanism may hold fewer tensors than after one token.
TEST_F(SavedState, EndsAnywhereInAChunk) {
  for (const char* attention : {"{name: eva}", "{name: eva, window: 16}", "{name: longshort}"}) {
    const auto decoder = model({concat("model.attention=", attention)});
    ReadText text;
    for (int64_t length = 1; length <= 140; ++length) {
      SCOPED_TRACE(concat(attention, " after ", length));
      read_text(*decoder, std::vector<int32_t>{static_cast<int32_t>(length % 40)}, text);
      save_state(file(), *decoder, text);
      ReadText read;
      ASSERT_NO_THROW(read = load_state(file(), *decoder));
      read_text(*decoder, ids(1), read);
      ReadText next = text;
      read_text(*decoder, ids(1), next);
      EXPECT_EQ(read.hidden.to_vector<float>(), next.hidden.to_vector<float>());
    }
    const auto other = model({"model.attention={name: softmax}"});
    EXPECT_THROW(load_state(file(), *other), Error);
  }
}

TEST_F(SavedState, IsAsLargeAsTheMechanismPromises) {
  const auto bytes = [&](const std::string& attention, int64_t tokens) {
    const auto decoder = model({"model.attention={name: " + attention + "}"});
    ReadText text;
    read_text(*decoder, ids(tokens), text);
    save_state(file(), *decoder, text);
    return file_bytes(file());
  };
  EXPECT_EQ(bytes("linear", 10), bytes("linear", 60));
  EXPECT_LT(bytes("softmax", 10), bytes("softmax", 60));
}

TEST_F(SavedState, OfOtherWeightsOrDamagedIsRefused) {
  const auto decoder = model({});
  ReadText text;
  read_text(*decoder, ids(9), text);
  save_state(file(), *decoder, text);
  const std::string whole = read_file(file());
  const auto refusal = [&](const Transformer& with) {
    return test::message_of([&] { load_state(file(), with); });
  };
  EXPECT_THAT(refusal(*model({"seed=77"})), HasSubstr("was made with other weights"));
  std::string changed = whole;
  changed[changed.size() - 3] ^= 1;
  write_file(file(), changed);
  EXPECT_THAT(refusal(*decoder), HasSubstr("is damaged"));
  changed = whole;
  const size_t tokens = changed.find(R"("tokens": "9")");
  ASSERT_NE(tokens, std::string::npos);
  changed[tokens + 11] = '8';
  write_file(file(), changed);
  EXPECT_THAT(refusal(*decoder), HasSubstr("is damaged"));
  for (size_t bytes = 0; bytes < whole.size(); bytes += 97) {
    write_file(file(), whole.substr(0, bytes));
    EXPECT_THAT(refusal(*decoder), HasSubstr(file())) << bytes;
  }
  // Sealed by somebody else, with tensors of other shapes.
  ReadText odd = text;
  MixerState& layer = odd.state.layers[0];
  const MixerState whole_layer = layer;
  const auto refused_layer = [&] {
    save_state(file(), *decoder, odd);
    EXPECT_THAT(refusal(*decoder), HasSubstr("the tensors of layer 0 are not those"));
    layer = whole_layer;
  };
  layer.erase(layer.begin());
  refused_layer();
  layer.begin()->second = Variable(Tensor::zeros({1, 2, 3}, DType::f32));
  refused_layer();
  layer.begin()->second =
      Variable(Tensor::zeros(layer.begin()->second.value().shape(), DType::i64));
  refused_layer();
  odd.last = 40;
  save_state(file(), *decoder, odd);
  EXPECT_THAT(refusal(*decoder), HasSubstr("are not a vector and a token of this model"));
  write_safetensors(file(), {{"hidden", text.hidden}});
  EXPECT_THAT(refusal(*decoder), HasSubstr("is no decode state: its header has no 'format'"));
  write_safetensors(file(), {{"hidden", text.hidden}}, {{"format", "linnet decode state 9"}});
  EXPECT_THAT(refusal(*decoder), HasSubstr("this version reads 'linnet decode state 1'"));
}

}  // namespace
}  // namespace linnet
