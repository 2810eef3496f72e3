// LARA: parameters, mixer, literal definition, registry entry.
#include "attention/lara/lara.h"

#include "attention/common/head_map.h"
#include "attention/common/landmarks/landmarks.h"
#include "attention/common/landmarks/noise.h"
#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "attention/lara/lara_definition.h"
#include "attention/lara/optimal.h"
#include "attention/lara/proposals.h"
#include "attention/primitives/linear_attention/linear_attention.h"
#include "attention/primitives/slot_attention/slot_attention.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

using namespace lara_definition;

const std::vector<Preset> kPresets = {
    {"lavo", "LAVO's summarisation and speech, by CAB's code", {{"landmarks", "64"}}},
    {"lavo_series", "LAVO's time series, by CAB's code", {{"landmarks", "16"}}},
    {"original",
     "the authors' code: optimal weighting and learned landmarks",
     {{"landmarks", "49"}, {"weighting", "optimal"}, {"learned", "true"}}},
    {"released",
     "as `original`, with padding as the authors' code has it",
     {{"landmarks", "49"},
      {"weighting", "optimal"},
      {"learned", "true"},
      {"padding", "row_of_zeros"}}},
    {"cab", "CAB's code, with its padding", {{"landmarks", "16"}, {"padding", "counted"}}}};

// Limiting cases. exp(l(k_j, w)) of one head, s = 1/sqrt(K).
double key_weight(const ReferenceSequence<double>& s, int64_t h, int64_t j,
                  const std::vector<double>& w) {
  const double* x = s.key(j, h);
  const double logit = dot_product(x, w.data(), s.K) - dot_product(x, x, s.K) / 2;
  return std::exp(logit / std::sqrt(static_cast<double>(s.K)));
}

std::vector<double> one_landmark(const ReferenceSequence<double>& s) {
  return linear_attention_definition(
      s,
      [&](int64_t h, int64_t, int64_t j) {
        std::vector<double> center(static_cast<size_t>(s.K), 0);
        for (int64_t t = 0; t < s.T; ++t) {
          for (size_t c = 0; c < center.size(); ++c) {
            center[c] += (s.query(t, h)[c] + s.key(t, h)[c]) / static_cast<double>(s.T);
          }
        }
        return key_weight(s, h, j, center);
      },
      [](double x) { return x; });
}

std::vector<double> mean_over_landmarks_at_keys(const ReferenceSequence<double>& s) {
  // The weights of keys [T] under the landmark at key c.
  const auto weights = [&](int64_t h, int64_t c) {
    const std::vector<double> w(s.key(c, h), s.key(c, h) + s.K);
    std::vector<double> found;
    double total = 0;
    for (int64_t j = 0; j < s.T; ++j) total += found.emplace_back(key_weight(s, h, j, w));
    for (double& x : found) x /= total;
    return found;
  };
  std::vector<double> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t h = 0; h < s.H; ++h) {
    std::vector<double> mean(static_cast<size_t>(s.V), 0);
    for (int64_t c = 0; c < s.T; ++c) {
      const std::vector<double> p = weights(h, c);
      for (int64_t j = 0; j < s.T; ++j) {
        for (size_t e = 0; e < mean.size(); ++e) {
          mean[e] += p[static_cast<size_t>(j)] * s.value(j, h)[e] / static_cast<double>(s.T);
        }
      }
    }
    for (int64_t i = 0; i < s.T; ++i) {
      std::copy(mean.begin(), mean.end(), &y[static_cast<size_t>((i * s.H + h) * s.V)]);
    }
  }
  return y;
}

class LaraMixer : public AttentionMixer {
 public:
  LaraMixer(const LaraParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    if (!params.learned) return;
    const auto map = [&](const char* name) {
      return HeadMap(scope.own.child(name), options.head_width(), init_normal(0.02));
    };
    query_map_ = map("query_landmark");
    key_map_ = map("key_landmark");
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    require_usage(!context.segments.defined(),
                  "lara has one set of landmarks for each row; do not pack documents into rows");
    const DType dtype = sum_dtype(input.q.dtype());
    const double logit_scale = params_.exact ? 1 : default_scale(options());
    // Padded tokens that count are zeros, whatever they hold.
    const bool counts = params_.padding != LaraPadding::ignored && context.key_mask.defined();
    const Tensor counted_mask = counts ? Tensor() : context.key_mask;
    const auto scaled = [&](const Variable& x) {
      const Variable wide =
          counts ? linear_attention_features(x, FeatureMap::identity, 1, context.key_mask)
                 : as_dtype(x, dtype);
      return params_.exact ? scale(wide, std::sqrt(default_scale(options()))) : wide;
    };
    const Variable q = scaled(input.q), k = scaled(input.k);
    const int64_t B = q.size(0), T = q.size(1), H = q.size(2);
    SlotAttentionContext at, counted;
    at.query_mask = at.key_mask = context.key_mask;
    counted.key_mask = counted_mask;
    // The means of keys and queries over the landmarks' tokens.
    counted.options.control = SlotControl::given;
    const Tensor members =
        landmark_members(counted_mask, B, T, H, params_.landmarks, dtype, q.value().device());
    const SlotMemory means =
        slot_attention_memory({{}, key_map_(k), query_map_(q), Variable(members)}, counted);
    const Variable center = add(means.keys, means.values);
    const Variable proposal =
        context.training && params_.noise ? add(center, noise(center, context)) : center;
    // The weighted mean of the values under each proposal, and its log-sum-exp. The logits of
    // masked tokens are 0, as those of zeros are.
    at.options.control = counted.options.control = SlotControl::exp;
    const Variable logits =
        landmark_logits(k, proposal, means.mass.value(), context.key_mask, logit_scale);
    const SlotMemory written = slot_attention_memory({{}, k, as_dtype(input.v, dtype), logits}, at);
    const Variable nothing(Tensor::empty({B, T, H, 0}, dtype, q.value().device()));
    const Variable total = counts && params_.padding == LaraPadding::counted
                               ? slot_attention_memory({{}, k, nothing, logits}, counted).mass
                               : written.mass;
    at.options.scale = 1;
    const auto read = [&](const Variable& queries, const Variable& keys) {
      const SlotMemory memory{keys, written.values, written.mass};
      const Variable y = slot_attention_read({queries, {}, {}, {}}, memory, at);
      return MixResult{as_dtype(y, input.q.dtype()), {}};
    };
    if (params_.weighting == LandmarkWeighting::cab) {
      return read(with_one(q), landmark_keys(center, proposal, total, logit_scale));
    }
    const Variable relative = relative_log_normalizer(total, proposal, center, logit_scale);
    if (params_.weighting != LandmarkWeighting::optimal) {
      // Without the landmark's own density; balance: without its product with the query as well.
      const Variable none(Tensor::zeros(center.shape(), dtype, q.value().device()));
      const bool biased = params_.weighting == LandmarkWeighting::biased;
      const Variable product = biased ? add(center, proposal) : proposal;
      return read(with_one(q), landmark_keys(none, product, relative, logit_scale));
    }
    OptimalInputs inputs;
    const Tensor& used = means.mass.value();
    inputs.found = landmark_logits(q, proposal, used, context.key_mask, logit_scale);
    inputs.near = landmark_logits(q, means.values, used, context.key_mask, logit_scale, false);
    inputs.totals = slot_attention_memory({{}, q, nothing, inputs.near}, counted).mass;
    inputs.relative = relative;
    inputs.keys = landmark_keys(center, proposal, total, logit_scale);
    // The logits are read as they are: every landmark's key is a unit vector.
    const int64_t C = params_.landmarks;
    const Tensor units = landmark_members({}, B * H, C, 1, C, dtype, q.value().device());
    return read(optimal_logits(inputs, context.key_mask), reshape(Variable(units), {B, H, C, C}));
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto rows = static_cast<double>(shape.batch * shape.queries * options().heads);
    const auto K = static_cast<double>(options().head_width());
    MixerCost cost;
    const auto C = static_cast<double>(params_.landmarks);
    // Both memories, and the reads of the queries; the logits are element-wise sums.
    cost.mixing = rows * C * (2 * K + 2 * K + K);
    cost.mixing += rows * C * (params_.weighting == LandmarkWeighting::optimal ? K + C : K + 1);
    if (params_.learned) {
      cost.projections = 2 * rows * K * K;
      cost.bytes = 2 * (K * K + 3 * K) * size_of(shape.dtype);
    }
    return cost;
  }

 private:
  // Standard normal values [B,H,C,K], keyed by example.
  Variable noise(const Variable& like, const MixerContext& context) const {
    const auto make = [&] {
      return landmark_noise(draw_key(context).at("noise"), context.place.examples, like.value());
    };
    // Draws that are given or noted pass through the host; others are made on the device.
    if (context.record == nullptr) return Variable(make());
    const Tensor draw = drawn(context, "noise", like.shape(), [&] { return make().to(Device{}); });
    return Variable(draw.to(like.dtype()).to(like.value().device()));
  }

  LaraParams params_;
  // The vectors whose means are landmarks, where they are learned.
  HeadMap query_map_, key_map_;
};

}  // namespace

void LaraParams::describe(ConfigDescription<LaraParams>& d) {
  describe_preset(d, kPresets);
  d.field("landmarks", &LaraParams::landmarks, "proposals C").range(1, 4096);
  d.choice("weighting", &LaraParams::weighting,
           {{"cab", LandmarkWeighting::cab},
            {"biased", LandmarkWeighting::biased},
            {"balance", LandmarkWeighting::balance},
            {"optimal", LandmarkWeighting::optimal}},
           "weights of proposals. cab: by the product of their means with the query, divided by "
           "their own density, as CAB; biased: by that product, divided by the density of all (the "
           "authors' mis-biased); balance: equal, divided by the density of all (balance "
           "heuristic); optimal: balance, corrected by the distance of the query from their means "
           "(the authors' mis-opt)");
  d.field("exact", &LaraParams::exact,
          "K^-1/4 on queries and keys, as in the theory; otherwise 1/sqrt(K) on logits, as in the "
          "code");
  d.field("learned", &LaraParams::learned,
          "landmarks are means of a linear map and norm of the vectors, not of the vectors");
  d.field("noise", &LaraParams::noise, "training draws proposals around the landmarks");
  d.choice("padding", &LaraParams::padding,
           {{"ignored", LaraPadding::ignored},
            {"row_of_zeros", LaraPadding::row_of_zeros},
            {"counted", LaraPadding::counted}},
           "padded tokens are left out; or are zeros in landmarks and among the queries, as in the "
           "authors' code; or are zeros in landmarks and in sums over tokens, as in CAB's");
}

MixerTraits LaraParams::traits(MixerTraits traits) const {
  traits.depends_on_length = padding != LaraPadding::ignored;
  if (traits.depends_on_length) traits.exempt.erase("packing");
  return traits;
}

Mechanism lara_mechanism() {
  Mechanism facts;
  facts.name = "lara";
  facts.title = "LARA: linear randomized attention with landmarks as proposals";
  facts.equation =
      "m_c = mean q + mean k over landmark c, w_c = m_c (training: + noise), l(x, w) = s (w . x - "
      "|x|^2 / 2)\n"
      "b_c = sum_j softmax_j(l(k_j, w_c)) v_j\n"
      "y_i = sum_c softmax_c(s m_c . q_i + l(q_i, w_c) + logsumexp_j l(k_j, w_c) - l(m_c, w_c)) "
      "b_c\n"
      "weighting biased: l(m_c, w_c) is logsumexp_o l(m_o, w_c)\n"
      "weighting balance: so it is, and s m_c . q_i is left out\n"
      "weighting optimal: s m_c . q_i is log max(b_c + t_ic - mean_c t_ic, 1e-8), b_c = exp(l(m_c, "
      "w_c) - logsumexp_o l(m_o, w_c)), t_ic = softmax_i(s (mean q over landmark c) . q_i)";
  facts.complexity = "time 6 B H T C K";
  facts.sources = "Zheng et al. 2022, Linear Complexity Randomized Self-attention; CAB";
  facts.traits.noncausal = true;
  facts.traits.growth = "T C";
  facts.traits.exempt["packing"] = "a row has one set of landmarks: packed documents are refused";
  facts.presets = kPresets;
  facts.check_head_width = 10;
  facts.variants = {"{landmarks: 6, weighting: balance, exact: true, learned: true}",
                    "{landmarks: 4, weighting: optimal, noise: false}",
                    "{landmarks: 7, weighting: optimal, learned: true, padding: row_of_zeros}",
                    "{landmarks: 5, weighting: biased, padding: counted}"};
  facts.cost_cases = {"{landmarks: 128}"};
  facts.limits = {{"one landmark gives a softmax over tokens that no query changes",
                   "{landmarks: 1}",
                   {Form::noncausal},
                   {},
                   one_landmark},
                  {"one landmark has no other to be weighed against, and where nothing is padded, "
                   "padding has nothing to count",
                   "{landmarks: 1, weighting: biased, padding: counted}",
                   {Form::noncausal},
                   {},
                   one_landmark},
                  {"queries of zeros and a landmark for each key: the density of all proposals is "
                   "the keys' sum, and landmarks weigh the same",
                   "{landmarks: 50, weighting: biased}",
                   {Form::noncausal},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name.starts_with("q.")) std::fill(values.begin(), values.end(), 0);
                   },
                   mean_over_landmarks_at_keys},
                  {"equal values are returned as they are",
                   "{landmarks: 4}",
                   {Form::noncausal},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "v.weight") std::fill(values.begin(), values.end(), 0);
                   },
                   [](const ReferenceSequence<double>& s) {
                     std::vector<double> y;
                     for (int64_t i = 0; i < s.T; ++i) {
                       y.insert(y.end(), s.value(0, 0), s.value(0, 0) + s.H * s.V);
                     }
                     return y;
                   }}};
  return define_mechanism<LaraParams, LaraMixer>(
      std::move(facts),
      [](const LaraParams& params, const auto& sequence) { return definition(params, sequence); });
}

}  // namespace linnet
