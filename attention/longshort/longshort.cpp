// Long-short attention: parameters, registry entry.
#include "attention/longshort/longshort.h"

#include "attention/define.h"
#include "attention/longshort/longshort_definition.h"
#include "attention/longshort/longshort_mixer.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lavo",
     "LAVO's tables, by CAB's code",
     {{"window", "16"}, {"chunk", "32"}, {"rank", "1"}, {"landmarks", "64"}}},
    {"lavo_summarization",
     "the same for summaries, whose number of parameters gives 16 landmarks",
     {{"window", "16"}, {"landmarks", "16"}}},
    {"enwik8",
     "the authors' language modelling of characters",
     {{"window", "512"}, {"chunk", "16"}, {"rank", "1"}}}};

}  // namespace

void LongshortParams::describe(ConfigDescription<LongshortParams>& d) {
  describe_preset(d, kPresets);
  d.field("window", &LongshortParams::window,
          "causal: tokens that are read exactly, the own one included; noncausal: tokens of a "
          "block, which also reads half as many on each side")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("landmarks", &LongshortParams::landmarks,
          "noncausal: compressed vectors of the row; 0: the window alone")
      .range(0, 4096);
  d.field("chunk", &LongshortParams::chunk, "causal: tokens that are compressed together")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("rank", &LongshortParams::rank, "causal: compressed vectors of a chunk").range(1, 4096);
  d.field("norm", &LongshortParams::norm,
          "layer norms over all heads of the window's and of the compressed keys and values");
  d.field("relative", &LongshortParams::relative,
          "causal: logits have terms of distances, as in Transformer-XL");
  describe_scale(d, "factor of q; null: 1/sqrt(K)");
  describe_dropout(d);
}

MixerTraits LongshortParams::traits(MixerTraits traits) const {
  traits.couples_heads = norm;
  return traits;
}

Mechanism longshort_mechanism() {
  Mechanism facts;
  facts.name = "longshort";
  facts.title = "Long-short attention: a window of tokens and compressed tokens in one softmax";
  facts.equation =
      "K_r = LN_S(sum_j P_jr k_j), V_r likewise, P = softmax_j((W_P x_j + b)_r) over all tokens "
      "(causal: over those of a chunk)\n"
      "y_i = sum_j p_ij v_j + sum_r p_ir V_r, p one softmax over the logits of the window (its "
      "keys and values LN_L(k), LN_L(v))\n"
      "and of all compressed vectors (causal: of earlier chunks); logits are s q . k, causal: "
      "window (s q + u_w) . k + (s q + u_r) . R_(i-j),\n"
      "compressed s q . K + s q . R'_d, d vectors back";
  facts.complexity =
      "time 2 B H T (2 w + m) K (causal: w + T r / l), memory of decoding 2 B H (w + T r / l) K";
  facts.sources = "Zhu et al. 2021, Long-Short Transformer (Transformer-LS); CAB's code";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T^2 / l; noncausal T (w + m)";
  facts.traits.exempt["packing"] =
      "a row of packed documents (causal) leaves no state to continue from: a unit test compares "
      "it";
  facts.presets = kPresets;
  facts.variants = {"{window: 7, landmarks: 5, chunk: 6, rank: 2}",
                    "{window: 6, landmarks: 3, chunk: 5, norm: false, relative: false, scale: 1}"};
  facts.cost_cases = {"{window: 96, landmarks: 64, chunk: 64, rank: 16}"};
  facts.limits = {
      {"without compressed vectors and norms, softmax attention to the window",
       "{window: 6, landmarks: 0, norm: false}",
       {Form::noncausal},
       {},
       [](const ReferenceSequence<double>& s) {
         return softmax_attention_reference(
             s, 1 / std::sqrt(static_cast<double>(s.K)),
             [](int64_t i, int64_t j) { return j >= i / 6 * 6 - 3 && j < i / 6 * 6 + 9; },
             [](int64_t, int64_t, int64_t) { return 0.0; });
       }},
      {"chunks of one token without norms and distances: softmax attention in which earlier "
       "tokens of the window count twice",
       "{window: 4, chunk: 1, norm: false, relative: false}",
       {Form::causal},
       {},
       [](const ReferenceSequence<double>& s) {
         return softmax_attention_reference(
             s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
             [](int64_t, int64_t i, int64_t j) {
               return j < i && j > i - 4 ? std::log(2.0) : 0.0;
             });
       }}};
  return define_mechanism<LongshortParams, LongshortMixer>(
      std::move(facts), [](const LongshortParams& params, const auto& sequence) {
        return longshort_definition::definition(params, sequence);
      });
}

}  // namespace linnet
