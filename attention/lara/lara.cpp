// LARA: parameters, mixer, literal definition, registry entry.
#include "attention/lara/lara.h"

#include "attention/define.h"
#include "attention/lara/landmarks.h"
#include "attention/lara/noise.h"
#include "attention/mixer_support.h"
#include "attention/primitives/slot_attention.h"
#include "autograd/arithmetic.h"

namespace linnet {
namespace {

class LaraMixer : public AttentionMixer {
 public:
  LaraMixer(const LaraParams& params, const MixerOptions& options, const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {}

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    require_usage(!context.segments.defined(),
                  "lara has one set of landmarks for each row; do not pack documents into rows");
    const DType dtype = sum_dtype(input.q.dtype());
    const Variable q = as_dtype(input.q, dtype), k = as_dtype(input.k, dtype);
    const int64_t B = q.size(0), T = q.size(1), H = q.size(2);
    const double scale = default_scale(options());
    SlotAttentionContext at;
    at.query_mask = at.key_mask = context.key_mask;
    // The means of keys and queries over the landmarks' tokens.
    at.options.control = SlotControl::given;
    const Tensor members =
        landmark_members(context.key_mask, B, T, H, params_.landmarks, dtype, q.value().device());
    const SlotMemory means = slot_attention_memory({{}, k, q, Variable(members)}, at);
    const Variable center = add(means.keys, means.values);
    const Variable proposal =
        context.training && params_.noise ? add(center, noise(center, context)) : center;
    // What each proposal makes of all values, and its log-sum-exp.
    at.options.control = SlotControl::exp;
    const Variable logits =
        landmark_logits(k, proposal, means.mass.value(), context.key_mask, scale);
    const SlotMemory written = slot_attention_memory({{}, k, as_dtype(input.v, dtype), logits}, at);
    const SlotMemory memory{landmark_keys(center, proposal, written.mass, scale), written.values,
                            written.mass};
    at.options.scale = 1;
    const Variable y = slot_attention_read({with_one(q, context.key_mask), {}, {}, {}}, memory, at);
    return {as_dtype(y, input.q.dtype()), {}};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto pairs =
        static_cast<double>(shape.batch * shape.queries * options().heads * params_.landmarks);
    const auto K = static_cast<double>(options().head_width());
    // Both memories, and what the queries read; the logits are element-wise sums.
    return {.mixing = pairs * (2 * K + 2 * K + 2 * K + 1)};
  }

 private:
  // Standard normal numbers [B,H,C,K] of each example.
  Variable noise(const Variable& like, const MixerContext& context) const {
    const auto make = [&] {
      return landmark_noise(draw_key(context).at("noise"), context.place.examples, like.value());
    };
    // Draws that are given or noted pass through the host, others are made where they are needed.
    if (context.record == nullptr) return Variable(make());
    const Tensor draw = drawn(context, "noise", like.shape(), [&] { return make().to(Device{}); });
    return Variable(draw.to(like.dtype()).to(like.value().device()));
  }

  LaraParams params_;
};

// Tokens [first, last) of valid ones, a landmark each.
struct Run {
  int64_t first, last;
};

std::vector<Run> runs_of(int64_t valid, int64_t landmarks) {
  std::vector<Run> runs;
  const int64_t count = std::min(valid, landmarks);
  int64_t at = 0;
  for (int64_t c = 0; c < count; ++c) {
    const int64_t length = valid / count + (c >= count - valid % count ? 1 : 0);
    runs.push_back({at, at + length});
    at += length;
  }
  return runs;
}

// log of the weight exp(s (w . x - |x|^2 / 2)).
template <typename Number>
Number log_weight(const std::vector<Number>& w, const Number* x, Number s) {
  const auto K = static_cast<int64_t>(w.size());
  return s * (dot_product(w.data(), x, K) - dot_product(x, x, K) / 2);
}

template <typename Number>
std::vector<Number> definition(const LaraParams& params, const ReferenceSequence<Number>& s) {
  const Number scale = 1 / std::sqrt(static_cast<Number>(s.K));
  std::vector<int64_t> valid;
  for (int64_t j = 0; j < s.S; ++j) {
    if (s.key_valid[static_cast<size_t>(j)] != 0) valid.push_back(j);
  }
  const std::vector<Run> runs = runs_of(static_cast<int64_t>(valid.size()), params.landmarks);
  std::vector<Number> y(static_cast<size_t>(s.T * s.H * s.V), 0);
  for (int64_t h = 0; h < s.H; ++h) {
    std::vector<std::vector<Number>> centers, reads;
    std::vector<Number> shifts;
    for (const Run& run : runs) {
      std::vector<Number> center(static_cast<size_t>(s.K), 0), logits,
          read(static_cast<size_t>(s.V), 0);
      for (int64_t r = run.first; r < run.last; ++r) {
        const int64_t j = valid[static_cast<size_t>(r)];
        for (int64_t c = 0; c < s.K; ++c) {
          center[static_cast<size_t>(c)] +=
              (s.query(j, h)[c] + s.key(j, h)[c]) / static_cast<Number>(run.last - run.first);
        }
      }
      Number largest = -std::numeric_limits<Number>::infinity(), total = 0;
      for (const int64_t j : valid) {
        logits.push_back(log_weight(center, s.key(j, h), scale));
        largest = std::max(largest, logits.back());
      }
      for (const Number logit : logits) total += std::exp(logit - largest);
      const std::vector<Number> weights = softmax_of(logits);
      for (size_t r = 0; r < valid.size(); ++r) {
        for (int64_t c = 0; c < s.V; ++c) {
          read[static_cast<size_t>(c)] += weights[r] * s.value(valid[r], h)[c];
        }
      }
      shifts.push_back(largest + std::log(total) - log_weight(center, center.data(), scale));
      centers.push_back(std::move(center));
      reads.push_back(std::move(read));
    }
    for (int64_t i = 0; i < s.T; ++i) {
      std::vector<Number> logits;
      for (size_t c = 0; c < centers.size(); ++c) {
        logits.push_back(scale * dot_product(centers[c].data(), s.query(i, h), s.K) +
                         log_weight(centers[c], s.query(i, h), scale) + shifts[c]);
      }
      const std::vector<Number> weights = softmax_of(std::move(logits));
      for (size_t l = 0; l < weights.size(); ++l) {
        for (int64_t c = 0; c < s.V; ++c) {
          y[static_cast<size_t>((i * s.H + h) * s.V + c)] +=
              weights[l] * reads[l][static_cast<size_t>(c)];
        }
      }
    }
  }
  return y;
}

}  // namespace

void LaraParams::describe(ConfigDescription<LaraParams>& d) {
  d.field("landmarks", &LaraParams::landmarks, "proposals C").range(1, 4096);
  d.field("noise", &LaraParams::noise, "training draws proposals around the landmarks");
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
      "b_c";
  facts.complexity = "time 6 B H T C K";
  facts.sources = "Zheng et al. 2022, Linear Complexity Randomized Self-attention; CAB";
  facts.traits.noncausal = true;
  facts.traits.growth = "T C";
  facts.traits.exempt["packing"] = "a row has one set of landmarks: packed documents are refused";
  facts.variants = {"{landmarks: 5, noise: false}"};
  facts.cost_cases = {"{landmarks: 128}"};
  facts.limits = {{"one landmark gives a soft-max over tokens that no query changes",
                   "{landmarks: 1}",
                   {Form::noncausal},
                   {},
                   [](const ReferenceSequence<double>& s) {
                     return linear_attention_definition(
                         s,
                         [&](int64_t h, int64_t, int64_t j) {
                           double logit = 0;
                           for (int64_t c = 0; c < s.K; ++c) {
                             double center = 0;
                             for (int64_t t = 0; t < s.T; ++t) {
                               center +=
                                   (s.query(t, h)[c] + s.key(t, h)[c]) / static_cast<double>(s.T);
                             }
                             const double x = s.key(j, h)[c];
                             logit += x * (center - x / 2);
                           }
                           return std::exp(logit / std::sqrt(static_cast<double>(s.K)));
                         },
                         [](double x) { return x; });
                   }},
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
