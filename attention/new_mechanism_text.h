// What `linnet attention new` writes; $NAME stands for the mechanism's name, $TEXT for the files
// that the recipe trains on, $include for #include, which are no includes of this file. The tests
// build it.
#pragma once

namespace linnet {

inline constexpr const char* kNewHeader = R"~(// $NAME: see README.md.
#pragma once

$include "attention/mechanism.h"

namespace linnet {

Mechanism $NAME_mechanism();

}  // namespace linnet
)~";

// The two beginnings of $NAME.cpp.
inline constexpr const char* kNewBegin =
    R"~(// $NAME: linear attention in which older tokens fade; edit it.
$include "attention/$NAME/$NAME.h"

$include <algorithm>
$include <cmath>

$include "attention/common/feature_map_mechanism.h"
$include "attention/registry.h"
$include "autograd/arithmetic.h"
$include "autograd/functions.h"
$include "autograd/layout.h"

namespace linnet {
namespace {
)~";
inline constexpr const char* kNewPluginBegin =
    R"~(// $NAME: linear attention in which older tokens fade; edit it.
$include <algorithm>
$include <cmath>

$include "attention/common/feature_map_mechanism.h"
$include "attention/plugin.h"
$include "attention/registry.h"
$include "autograd/arithmetic.h"
$include "autograd/functions.h"
$include "autograd/layout.h"

namespace {

using namespace linnet;
)~";

inline constexpr const char* kNewBody = R"~(
// 1. Options. A field here is a key of recipes, of `--help` and of the README.
struct Params {
  double decay = 0.9;
  double floor = 1e-3;

  static void describe(ConfigDescription<Params>& d) {
    d.field("decay", &Params::decay,
            "factor by which a token multiplies the weights of the tokens before it, at first")
        .above(0)
        .below(1);
    d.field("floor", &Params::floor, "added to the denominator").above(0);
  }
};

// 2. The mixer. AttentionMixer has the projections q, k, v and out; the learned decay is our own.
class Mixer : public AttentionMixer {
 public:
  Mixer(const Params& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope) {
    // decay = sigmoid(logit) stays between 0 and 1 whatever the optimizer does.
    const double logit = std::log(params.decay / (1 - params.decay));
    logit_ = scope.own.parameter("rates.decay", {options.heads}, init_constant(logit));
    attention_.feature_map = FeatureMap::elu1;
    attention_.normalizer = Normalizer::add;
    attention_.epsilon = params.floor;
  }

  // q, k, v [B,T,H,K] and the state so far -> y [B,T,H,K] and the next state. Compose operations of
  // autograd/ and attention/primitives/, which are differentiable: there is no backward to write.
  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const Tensor& q = input.q.value();
    const Variable logit = as_dtype(logit_, sum_dtype(q.dtype()));     // f32, f64 where q is f64
    const Variable log_decay = scale(softplus(scale(logit, -1)), -1);  // log sigmoid(logit), [H]
    return feature_map_mix(attention_, options(), input, {}, context, state,
                           expand(log_decay, {q.size(0), q.size(1), q.size(2)}));
  }

  // The multiply-adds of mix(), and the bytes of its own parameters and state.
  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = feature_map_cost(options(), options().head_width(), shape);
    cost.bytes += static_cast<double>(options().heads) * size_of(sum_dtype(shape.dtype));
    return cost;
  }

 private:
  Variable logit_;
  LinearAttentionOptions attention_;
};

// 3. The definition: the equation for one sequence in plain loops, which shares nothing with the
// mixer. The suite compares both.
template <typename Number>
std::vector<Number> definition(const Params& params, const ReferenceSequence<Number>& s) {
  const std::vector<Number>& logit = s.parameter("rates.decay");  // [H]
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t i, int64_t j) {
        const Number decay = 1 / (1 + std::exp(-logit[static_cast<size_t>(h)]));
        Number weight = 0;
        for (int64_t c = 0; c < s.K; ++c) {
          weight += reference_feature(FeatureMap::elu1, s.query(i, h)[c]) *
                    reference_feature(FeatureMap::elu1, s.key(j, h)[c]);
        }
        for (int64_t l = j + 1; l <= i; ++l) {
          if (s.key_valid[static_cast<size_t>(l)] != 0) weight *= decay;
        }
        return weight;
      },
      [&](Number total) { return total + static_cast<Number>(params.floor); });
}

// 4. A limiting case: with these values of the parameters the mechanism is something simpler.
void without_decay(const std::string& name, std::vector<double>& values) {
  if (name == "rates.decay") std::fill(values.begin(), values.end(), 1e9);
}
std::vector<double> linear_attention_of(const ReferenceSequence<double>& s) {
  ConfigNode options = ConfigNode::map();
  options.set("normalizer", ConfigNode::scalar("add"));
  options.set("floor", ConfigNode::scalar("0.001"));
  return find_mechanism("linear").reference(options, s);
}
)~";

// The entry; kNewBegin closes its namespace before it, a plugin after it.
inline constexpr const char* kNewEntry = R"~(
// 5. The entry: what it is, its forms and traits, which the suite checks, and option sets for it.
Mechanism $NAME_mechanism() {
  Mechanism facts;
  facts.name = "$NAME";
  facts.title = "Linear attention in which older tokens fade";
  facts.equation =
      "y_i = sum_j A_ij v_j / (sum_j A_ij + floor), j <= i,\n"
      "A_ij = sigmoid(r_h)^(i - j) phi(q_i) . phi(k_j), phi(x) = elu(x) + 1";
  facts.complexity = "time 2 B H T K V, memory of decoding B H K (V + 1)";
  facts.sources = "an example";
  facts.traits.causal = facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T";
  facts.variants = {"{decay: 0.5, floor: 0.1}"};
  facts.limits = {{"without decay it is linear attention",
                   "{}",
                   {Form::causal},
                   without_decay,
                   linear_attention_of}};
  return define_mechanism<Params, Mixer>(
      std::move(facts), [](const Params& params, const auto& s) { return definition(params, s); });
}
)~";
inline constexpr const char* kNewPluginEnd = R"~(
}  // namespace

LINNET_PLUGIN() {
  register_mechanism($NAME_mechanism());
}
)~";

inline constexpr const char* kNewReadme = R"~(# $NAME: linear attention in which older tokens fade

    y_i = sum_j A_ij v_j / (sum_j A_ij + floor), j <= i
    A_ij = sigmoid(r_h)^(i - j) phi(q_i) . phi(k_j),  phi(x) = elu(x) + 1

Source: an example. Form: causal. q, k [B,T,H,K], v [B,T,H,V]. Own parameter: `rates.decay`, r [H], at first with
sigmoid(r) = `decay`; f32 in bf16 models. phi is positive, so the denominator is too; sums are made in fp32. Time
2 B H T K V. Decode state: S [B,H,K,V] and z [B,H,K], of constant size.

| option | default | meaning |
|---|---|---|
| `decay` | 0.9 | factor by which a token multiplies the weights of the tokens before it, at first |
| `floor` | 0.001 | added to the denominator |

Verified limit: without decay it is linear attention.
)~";
inline constexpr const char* kNewPluginReadme = R"~(
Build it, check it, train with it. PREFIX is the folder that linnet is installed in, the one with `bin/linnet`; for a
linnet that was built and not installed, write `-Dlinnet_DIR=BUILD` instead, BUILD being the folder that it was built
in, `build/release` of its source.

    cmake -S . -B build -DCMAKE_PREFIX_PATH=PREFIX -DCMAKE_BUILD_TYPE=Release && cmake --build build
    linnet attention check $NAME --plugin build/lib$NAME.so
    linnet train $NAME.yaml --plugin build/lib$NAME.so

The recipe trains on headers of linnet, which its `data.path` names; add `data.path=FOLDER` to train on your own text.
)~";

inline constexpr const char* kNewCMake = R"~(cmake_minimum_required(VERSION 3.22)
project($NAME LANGUAGES CXX)
find_package(linnet REQUIRED CONFIG)
add_library(plugin MODULE $NAME.cpp)
set_target_properties(plugin PROPERTIES OUTPUT_NAME $NAME)
target_link_libraries(plugin PRIVATE linnet::plugin)
)~";

inline constexpr const char* kNewRecipe =
    R"~(# A small byte-level language model with $NAME in every layer:
#   linnet train $NAME.yaml --plugin build/lib$NAME.so
# Its text is headers of linnet; add data.path=FOLDER to train on the .txt and .md files in FOLDER.
name: $NAME
description: byte-level language model with the plugin $NAME
seed: 1
data:
  kind: text
  path: $TEXT
  tokenizer: {kind: byte}
  context: 128
model: {kind: decoder, layers: 2, width: 64, heads: 2, positions: rotary, attention: {name: $NAME, decay: 0.9}}
optim: {kind: adamw, lr: 3.0e-3, schedule: {kind: inverse_sqrt, warmup_steps: 50}, clip_norm: 1.0}
train: {max_steps: 200, tokens_per_update: 1024, micro_batch: 8}
evaluate: {every_steps: 100, contexts: [128], batch: 8}
checkpoint: {every_steps: 100, keep: 2}
generate: {prompt: "the ", tokens: 100}
)~";

}  // namespace linnet
