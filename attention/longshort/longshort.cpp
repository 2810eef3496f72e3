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
     {{"window", "512"}, {"chunk", "16"}, {"rank", "1"}}},
    {"cab",
     "CAB's code: as lavo, with its layout of sinusoids and its null tokens",
     {{"window", "16"},
      {"chunk", "32"},
      {"rank", "1"},
      {"landmarks", "64"},
      {"sinusoids", "halves"},
      {"null_tokens", "1024"}}}};

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
  d.choice("sinusoids", &LongshortParams::sinusoids, {"interleaved", "halves"},
           "channels of a distance's vector: sines and cosines in turn, or first all sines (the "
           "released codes)");
  d.field("null_tokens", &LongshortParams::null_tokens,
          "causal: tokens of zeros before the beginning, which take weight; whole chunks")
      .range(0, 1 << 20)
      .unit("tokens");
  describe_scale(d, "factor of q; null: 1/sqrt(K)");
  describe_dropout(d);
}

void LongshortParams::validate(const ConfigNode& at) const {
  if (!relative && sinusoids != "interleaved") {
    throw located_error(at.location_of("sinusoids"), Cause{ErrorCode::conflict, "sinusoids"},
                        "sinusoids has no effect with relative: false, which has no distances");
  }
  if (null_tokens % chunk == 0) return;
  throw located_error(at.location_of("null_tokens"), Cause{ErrorCode::conflict, "null_tokens"},
                      "null tokens are whole chunks of ", chunk, ", but null_tokens is ",
                      null_tokens);
}

MixerTraits LongshortParams::traits(MixerTraits traits) const {
  traits.couples_heads = norm;
  if (null_tokens > 0) {
    traits.exempt["packing"] =
        "null tokens stand before the first token of a row: packed documents are refused";
  }
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
  facts.variants = {"{window: 7, landmarks: 5, chunk: 6, rank: 2, sinusoids: halves}",
                    "{window: 6, landmarks: 3, chunk: 5, norm: false, relative: false, scale: 1}",
                    "{window: 4, landmarks: 3, chunk: 4, rank: 2, null_tokens: 8}"};
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
  facts.limits.push_back({"null tokens without norms and distances add 1 each to the denominator",
                          "{window: 1, chunk: 1, norm: false, relative: false, null_tokens: 3}",
                          {Form::causal},
                          {},
                          [](const ReferenceSequence<double>& s) {
                            return linear_attention_definition(
                                s,
                                [&](int64_t h, int64_t i, int64_t j) {
                                  const double product =
                                      dot_product(s.query(i, h), s.key(j, h), s.K);
                                  return std::exp(product / std::sqrt(static_cast<double>(s.K)));
                                },
                                [](double total) { return total + 3; });
                          }});
  return define_mechanism<LongshortParams, LongshortMixer>(
      std::move(facts), [](const LongshortParams& params, const auto& sequence) {
        return longshort_definition::definition(params, sequence);
      });
}

}  // namespace linnet
