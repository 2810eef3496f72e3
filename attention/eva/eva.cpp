// EVA: parameters, mixer, registry entry.
#include "attention/eva/eva.h"

#include "attention/define.h"
#include "attention/eva/eva_definition.h"
#include "attention/eva/eva_mixer.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"lm", "the paper's language modelling", {{"window", "128"}, {"chunk", "8"}}}};

// A limiting case: attention to the window's tokens and, for each of the chunks, to the summary of
// the whole sequence.
std::vector<double> one_summary(const ReferenceSequence<double>& s, int64_t window, int64_t chunk) {
  const auto T = static_cast<double>(s.T), scale = 1 / std::sqrt(static_cast<double>(s.K));
  const int64_t chunks = (s.T + chunk - 1) / chunk;
  std::vector<double> y;
  for (int64_t i = 0; i < s.T; ++i) {
    for (int64_t h = 0; h < s.H; ++h) {
      std::vector<double> key(static_cast<size_t>(s.K), 0), proposal = key, logits;
      for (int64_t j = 0; j < s.T; ++j) {
        for (size_t c = 0; c < key.size(); ++c) {
          key[c] += s.key(j, h)[c] / T;
          proposal[c] += (s.key(j, h)[c] + s.query(j, h)[c]) / (2 * T);
        }
      }
      for (int64_t j = 0; j < s.T; ++j) {
        const double* k = s.key(j, h);
        const double square = dot_product(k, k, s.K);
        logits.push_back(scale * (dot_product(proposal.data(), k, s.K) - square / 2));
      }
      const std::vector<double> shares = softmax_of(logits);
      const double each = scale * dot_product(s.query(i, h), key.data(), s.K);
      const double summary = each + std::log(static_cast<double>(chunks));
      logits.assign(static_cast<size_t>(s.T), -std::numeric_limits<double>::infinity());
      for (int64_t j = i / window * window; j < std::min(s.T, (i / window + 1) * window); ++j) {
        logits[static_cast<size_t>(j)] = scale * dot_product(s.query(i, h), s.key(j, h), s.K);
      }
      logits.push_back(summary);
      const std::vector<double> weights = softmax_of(logits);
      for (int64_t e = 0; e < s.V; ++e) {
        double read = 0;
        for (size_t j = 0; j < shares.size(); ++j) {
          const double value = s.value(static_cast<int64_t>(j), h)[e];
          read += (weights[j] + weights.back() * shares[j]) * value;
        }
        y.push_back(read);
      }
    }
  }
  return y;
}

}  // namespace

int64_t EvaParams::before(Form form) const {
  if (!overlap) return 0;
  return form == Form::causal ? window : std::max<int64_t>(window / 2, 1);
}
int64_t EvaParams::behind(Form form) const {
  return form == Form::causal ? 0 : before(form);
}
int64_t EvaParams::buckets(Form form) const {
  return std::max<int64_t>(std::min<int64_t>((window + before(form)) / 2, 64), 16);
}
int64_t EvaParams::bucket(Form form, int64_t distance) const {
  // The released code counts places from the beginning of the extended window.
  const int64_t counted = compat ? distance + before(form) : distance;
  return t5_bucket(counted, form == Form::causal, buckets(form), window + before(form));
}

void EvaParams::describe(ConfigDescription<EvaParams>& d) {
  describe_preset(d, kPresets);
  d.field("window", &EvaParams::window, "tokens of a block whose keys are read exactly")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("chunk", &EvaParams::chunk, "tokens of a chunk that is summarised; divides the window")
      .range(1, 1 << 20)
      .unit("tokens");
  d.field("overlap", &EvaParams::overlap,
          "a block reads the block before it as well (causal), or half a block on each side");
  d.field("chunk_overlap", &EvaParams::chunk_overlap,
          "tokens on either side of a chunk that its summary reads as well (noncausal only)")
      .range(0, 1 << 20)
      .unit("tokens");
  d.field("norm", &EvaParams::norm, "a layer norm after the maps of the chunks' means");
  d.field("noise", &EvaParams::noise, "training draws proposals around the chunks' means");
  d.field("distance_bias", &EvaParams::distance_bias,
          "logits in the window have a bias per T5 bucket of distances, times the scale");
  d.field("compat", &EvaParams::compat,
          "means are divided by the places of the chunk, padded ones included, chunks of padding "
          "stay in the softmax, and distances are counted from the window's extension, as in the "
          "released code");
  describe_scale(d, "factor of q . k and of the proposals' logits; null: 1/sqrt(K)");
  describe_dropout(d);
}

void EvaParams::validate(const ConfigNode& at) const {
  if (window % chunk == 0) return;
  throw located_error(at.location_of("chunk"), "a window is made of whole chunks, but ", chunk,
                      " does not divide the window of ", window, " tokens; take a divisor of it");
}

MixerTraits EvaParams::traits(MixerTraits traits) const {
  traits.depends_on_length = compat || chunk_overlap > 0;
  if (chunk_overlap > 0) {
    traits.causal = traits.decode_state = false;
    traits.exempt.erase("packing");
  }
  return traits;
}

Mechanism eva_mechanism() {
  Mechanism facts;
  facts.name = "eva";
  facts.title = "EVA: a window of tokens and summaries of chunks in one softmax";
  facts.equation =
      "K_c = LN(W mean k), Q_c = LN(W' mean q) over chunk c, w_c = (Q_c + K_c) / 2 (causal: Q_c + "
      "K_c; training: + noise)\n"
      "b_c = sum_j softmax_j(s (w_c . k_j - |k_j|^2 / 2)) v_j over the tokens of chunk c (and the "
      "chunk_overlap tokens on either side)\n"
      "y_i = sum p v_j + sum p b_c, p one softmax over s q_i . k_j of the block that holds i "
      "(causal: j <= i)\n"
      "and s q_i . K_c of all chunks (causal: those before that of i)";
  facts.complexity = "time 2 B H T (w + T / l) K, memory of decoding 2 B H (w + T / l) K";
  facts.sources = "Zheng et al. 2023, Efficient Attention via Control Variates";
  facts.traits.noncausal = facts.traits.causal = true;
  facts.traits.decode_state = true;
  facts.traits.growth = "T^2 / l";
  facts.traits.exempt["packing"] =
      "a row of packed documents (causal) leaves no state to continue from: a unit test compares "
      "it";
  facts.presets = kPresets;
  facts.variants = {"{window: 12, chunk: 4, overlap: true, distance_bias: true}",
                    "{window: 6, chunk: 3, compat: true, noise: false, scale: 1}",
                    "{window: 8, chunk: 4, chunk_overlap: 3}",
                    "{window: 6, chunk: 3, overlap: true, chunk_overlap: 4, compat: true}"};
  facts.cost_cases = {"{window: 128, chunk: 32}", "{window: 128, chunk: 32, chunk_overlap: 32}"};
  const auto identity = [](const std::string& name, std::vector<double>& values) {
    if (!name.ends_with("_map.weight") && !name.ends_with("_map.bias")) return;
    std::fill(values.begin(), values.end(), 0);
    const auto width = static_cast<size_t>(std::sqrt(static_cast<double>(values.size())));
    if (name.ends_with("_map.bias")) return;
    for (size_t i = 0; i < width; ++i) values[i * (width + 1)] = 1;
  };
  facts.limits = {{"chunks and windows of one token without a norm and with maps that change "
                   "nothing give softmax attention",
                   "{window: 1, chunk: 1, norm: false}",
                   {Form::causal},
                   identity,
                   [](const ReferenceSequence<double>& s) {
                     return softmax_attention_reference(
                         s, 1 / std::sqrt(static_cast<double>(s.K)),
                         [](int64_t, int64_t) { return true; },
                         [](int64_t, int64_t, int64_t) { return 0.0; });
                   }},
                  {"chunks that reach over the whole sequence have one summary, of its means "
                   "where maps change nothing, and each counts it",
                   "{window: 8, chunk: 4, norm: false, chunk_overlap: 50}",
                   {Form::noncausal},
                   identity,
                   [](const ReferenceSequence<double>& s) { return one_summary(s, 8, 4); }},
                  {"equal values are returned as they are",
                   "{window: 8, chunk: 4}",
                   {Form::noncausal, Form::causal},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "v.weight") std::fill(values.begin(), values.end(), 0);
                   },
                   [](const ReferenceSequence<double>& s) { return s.v; }}};
  return define_mechanism<EvaParams, EvaMixer>(
      std::move(facts), [](const EvaParams& params, const auto& sequence) {
        return eva_definition::definition(params, sequence);
      });
}

}  // namespace linnet
