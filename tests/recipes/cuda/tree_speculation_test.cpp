// Trees of guesses on a device: greedy text is that without guesses, a node's vector is that of its
// path token by token, and a tree is one pass for all nodes or one for each depth.
#include "attention/registry.h"
#include "autograd/arithmetic.h"
#include "core/device.h"
#include "recipes/engine/speculation.h"
#include "tests/cuda_helpers.h"
#include "tests/recipes/tiny_run.h"

namespace linnet {
namespace {

using test::kGpu;

constexpr int32_t kWords = 23;

class CudaTrees : public test::TinyRun {
 protected:
  std::unique_ptr<Transformer> model(const std::string& attention,
                                     const std::string& other = "model.kv_heads=0") const {
    const Recipe small = recipe({attention, "model.width=16", "model.medusa.heads=3",
                                 "data.context=64", "train.tokens_per_update=64", other});
    return build_model(small, {kWords, small.data.context, 0}, kGpu);
  }
};

ReadText read(const Transformer& model, int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back((i * i + 3 * count) % kWords);
  ReadText text;
  read_text(model, tokens, text);
  return text;
}

TokenTree wide() {
  return tree_of_paths({{0}, {1}, {2}, {0, 0}, {0, 1}, {1, 0}, {0, 0, 0}});
}

// The vector of each node, read token by token.
void expect_vectors_of_paths(const Transformer& model, const ReadText& text,
                             const std::string& name) {
  const NoGrad off;
  const TokenTree tree = wide();
  std::vector<int32_t> tokens;
  for (int64_t node = 0; node < tree.size(); ++node) {
    tokens.push_back(static_cast<int32_t>((5 * node + 2) % kWords));
  }
  const TreeReading reading = model.encode_tree(Tensor::from(tokens, {tree.size(), 1}, kGpu),
                                                tree.parents, text.state, TreeStates::shared);
  std::vector<ReadText> after;
  for (int64_t node = 0; node < tree.size(); ++node) {
    const int64_t parent = tree.parents[static_cast<size_t>(node)];
    after.push_back(parent < 0 ? text : after[static_cast<size_t>(parent)]);
    read_text(model, std::span(tokens).subspan(static_cast<size_t>(node), 1), after.back());
    const double error = test::relative_error(reading.hidden.rows(node, node + 1).to(Device{}),
                                              after.back().hidden.to(Device{}));
    EXPECT_TRUE(error <= 1e-5) << name << ", node " << node << ": " << error;
  }
  // The state behind a path goes on as the one that read it.
  const int64_t last = tree.size() - 1;
  std::vector<int64_t> path;
  for (int64_t node = last; node >= 0; node = tree.parents[static_cast<size_t>(node)]) {
    path.insert(path.begin(), node);
  }
  ReadText taken = text;
  taken.state = reading.after(path);
  read_text(model, std::vector<int32_t>{7}, taken);
  read_text(model, std::vector<int32_t>{7}, after.back());
  const double error =
      test::relative_error(taken.hidden.to(Device{}), after.back().hidden.to(Device{}));
  EXPECT_TRUE(error <= 1e-5) << name << ", behind a path: " << error;
}

TEST_F(CudaTrees, GreedyTextIsThatWithoutGuesses) {
  int64_t seen = 0, taken = 0;
  const auto check = [&](const std::string& attention) {
    const auto decoder = model(attention);
    const ReadText text = read(*decoder, 5);
    expect_vectors_of_paths(*decoder, text, attention);
    GenerateOptions options;
    options.tokens = 9;
    options.sampling.temperature = 0;
    const Speculated guessed = speculate(*decoder, text, options, {wide(), {}, {}});
    EXPECT_EQ(guessed.text.tokens, generate(*decoder, text, options).tokens) << attention;
    for (size_t n = 1; n < guessed.counts.accepted.size(); ++n) {
      taken += guessed.counts.accepted[n];
    }
    ++seen;
  };
  for (const Mechanism& mechanism : mechanisms()) {
    const MixerTraits traits = test::small_traits(mechanism);
    if (traits.causal && traits.decode_state) check(test::small_attention(mechanism));
  }
  for (const char* other : {"{name: softmax, preset: t5}", "{name: local, window: 3}",
                            "{name: local, window: 4, pattern: block}",
                            "{name: linear, augment: {conv: 3, local: 4}}"}) {
    check(std::string("model.attention=") + other);
  }
  EXPECT_GE(seen, 30);
  EXPECT_GT(taken, 0);
}

TEST_F(CudaTrees, QueriesMayShareKeys) {
  for (const char* attention : {"{name: softmax}", "{name: softmax, preset: t5}",
                                "{name: local, window: 3}", "{name: linear}"}) {
    const auto decoder = model(std::string("model.attention=") + attention, "model.kv_heads=1");
    expect_vectors_of_paths(*decoder, read(*decoder, 5), attention);
  }
}

// Adds up what it reads, and counts its calls and their rows.
class SumMixer final : public TokenMixer {
 public:
  MixerResult forward(const Variable& x, const MixerContext&,
                      const MixerState& state) const override {
    rows.push_back(x.size(0));
    const auto before = state.find("sum");
    const Variable y = before == state.end() ? x : add(x, before->second);
    return {y, y, {{"sum", y}}};
  }
  MixerResult forward_cross(const Variable&, const Variable&, const MixerContext&,
                            const MixerState&) const override {
    throw Error("no cross form");
  }
  MixerCost cost(const MixerShape&) const override { return {}; }
  mutable std::vector<int64_t> rows;
};

TEST(CudaTree, NodesOfOneDepthAreRowsOfOneCall) {
  const NoGrad off;
  // Not in the order of their depths.
  const std::vector<int64_t> parents{-1, 0, 1, 0, 3, 1};
  const Tensor x = Tensor::from(std::vector<float>{1, 10, 100, 1000, 10000, 100000}, {6, 1, 1});
  std::vector<MixerNode> nodes;
  for (const int64_t parent : parents) nodes.push_back({{}, parent});
  const SumMixer mixer;
  const MixerState state{{"sum", Variable(Tensor::full({1, 1, 1}, 5, DType::f32, kGpu))}};
  const TreeMix mixed =
      mixer.forward_tree(Variable(x.to(kGpu)), {}, nodes, state, TreeStates::copied);
  EXPECT_EQ(mixer.rows, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(mixed.y.value().to_vector<float>(),
            (std::vector<float>{6, 16, 116, 1006, 11006, 100016}));
  const std::vector<int64_t> path{0, 3, 4};
  EXPECT_EQ(mixed.state_after(path).at("sum").value().to_vector<float>(),
            std::vector<float>{11006});
}

}  // namespace
}  // namespace linnet
