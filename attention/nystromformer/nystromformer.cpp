// Nystroemformer: parameters, mixer, literal definition, registry entry.
#include "attention/nystromformer/nystromformer.h"

#include <cmath>
#include <optional>

#include "attention/common/conv_branch.h"
#include "attention/common/mixer_support.h"
#include "attention/define.h"
#include "attention/nystromformer/nystromformer_definition.h"
#include "autograd/arithmetic.h"
#include "autograd/layout.h"
#include "autograd/products.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"survey",
     "the survey's budget for heads of 64 in the Long Range Arena",
     {{"landmarks", "32"},
      {"conv", "35"},
      {"norm", "batch"},
      {"padding", "row_of_zeros"},
      {"exact", "true"}}},
    {"survey_image",
     "the same for heads of 32 (images, Pathfinder)",
     {{"landmarks", "16"},
      {"conv", "27"},
      {"norm", "batch"},
      {"padding", "row_of_zeros"},
      {"exact", "true"}}},
    {"survey_text",
     "the same for heads of 64 in language models and classifiers",
     {{"landmarks", "32"},
      {"conv", "27"},
      {"norm", "batch"},
      {"padding", "row_of_zeros"},
      {"exact", "true"}}},
    {"survey_vision",
     "the same for heads of 64 in vision transformers",
     {{"landmarks", "32"},
      {"conv", "13"},
      {"norm", "batch"},
      {"padding", "row_of_zeros"},
      {"exact", "true"}}},
    {"skyformer",
     "Skyformer's baseline, whose results LAVO's table 11 repeats: no convolution",
     {{"landmarks", "128"},
      {"conv", "0"},
      {"norm", "batch"},
      {"padding", "row_of_zeros"},
      {"exact", "true"}}},
    {"cab",
     "CAB's code, LAVO's baseline: no convolution, q and k divided by sqrt(K) each",
     {{"landmarks", "16"},
      {"conv", "0"},
      {"norm", "batch"},
      {"padding", "row_of_zeros"},
      {"exact", "true"},
      {"legacy_scale", "true"}}}};

class NystromformerMixer : public AttentionMixer {
 public:
  NystromformerMixer(const NystromformerParams& params, const MixerOptions& options,
                     const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    if (params.conv > 0) conv_.emplace(params.conv, "uniform", options, scope.own);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    require_usage(!context.segments.defined(),
                  "nystromformer has one set of landmarks for each row; do not pack documents into "
                  "rows");
    const Variable y = as_dtype(attention(input, context), input.q.dtype());
    return {conv_ ? add(y, conv_->mix(input.v, context, {}).y) : y, {}};
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const double T = static_cast<double>(shape.queries),
                 width = static_cast<double>(options().width);
    const auto B = static_cast<double>(shape.batch);
    MixerCost cost = conv_ ? conv_->cost(shape) : MixerCost{};
    if (is_exact(shape.queries)) {
      cost.mixing += B * T * T * 2 * width;
      return cost;
    }
    const double p = std::min(static_cast<double>(params_.landmarks), T);
    // Writes of tokens to landmarks and reads from them; the weights between landmarks, by
    // attention to unit vectors; their products with the values; the iterations.
    const auto H = static_cast<double>(options().heads);
    cost.mixing += B * p * (4 * T * width + p * width + H * p * p + p * width);
    cost.mixing += B * H * 4 * static_cast<double>(params_.steps) * p * p * p;
    return cost;
  }

 private:
  bool is_exact(int64_t T) const { return params_.exact && T <= params_.landmarks; }

  // Without the convolution, [B,T,H,V].
  Variable attention(const MixInput& input, const MixerContext& context) const {
    BlockAttentionContext at = block_context(options(), context);
    at.options.scale = params_.scale(options().head_width());
    if (is_exact(input.q.size(1))) {
      return block_attention({input.q, input.k, input.v, {}, {}, {}}, at);
    }
    at.cross = true;
    const DType dtype = sum_dtype(input.q.dtype());
    const Device device = input.q.value().device();
    const int64_t B = input.q.size(0), H = input.q.size(2);
    const LandmarkCut cut = cut_landmarks(context.key_mask, B, input.q.size(1), params_.landmarks,
                                          params_.padding, dtype, device);
    const int64_t p = cut.used.size(1);
    const Variable q = landmark_means(as_dtype(input.q, dtype), cut);
    const Variable k = landmark_means(as_dtype(input.k, dtype), cut);
    const auto read = [&](const Variable& queries, const Tensor& query_mask, const Variable& keys,
                          const Tensor& key_mask, const Variable& values) {
      at.query_mask = query_mask;
      at.key_mask = key_mask;
      return block_attention({queries, keys, values, {}, {}, {}}, at);
    };
    // [B,p,H,.] as matrices of heads, and back.
    const auto matrices = [&](const Variable& x) {
      return reshape(transpose(x, 1, 2), {B * H, p, x.size(3)});
    };
    const Variable written = read(q, cut.used, input.k, context.key_mask, input.v);
    const Variable units(unit_values(B, p, H, dtype, device));
    const Variable inverse = iterated_inverse(matrices(read(q, cut.used, k, cut.used, units)),
                                              params_.steps, params_.norm);
    const Variable values = matmul(inverse, matrices(written));
    return read(input.q, context.key_mask, k, cut.used,
                transpose(reshape(values, {B, H, p, values.size(2)}), 1, 2));
  }

  NystromformerParams params_;
  std::optional<ConvBranch> conv_;
};

}  // namespace

void NystromformerParams::describe(ConfigDescription<NystromformerParams>& d) {
  describe_preset(d, kPresets);
  d.field("landmarks", &NystromformerParams::landmarks, "landmarks p of queries and of keys")
      .range(1, 4096);
  d.field("steps", &NystromformerParams::steps, "iterations that approximate the inverse of A")
      .range(1, 64);
  d.choice("norm", &NystromformerParams::norm,
           {{"matrix", InverseNorm::matrix}, {"batch", InverseNorm::batch}},
           "divisor of the first iterate: the largest column sum of each matrix A, or of all "
           "matrices of a batch, as in the authors' code");
  d.choice("padding", &NystromformerParams::padding,
           {{"valid", LandmarkPadding::valid},
            {"row", LandmarkPadding::row},
            {"row_of_zeros", LandmarkPadding::row_of_zeros}},
           "landmarks split the valid tokens; or the row, as means of their valid tokens; or the "
           "row, with padding as zeros (the authors' code)");
  d.field("exact", &NystromformerParams::exact,
          "rows of at most p tokens, padding included, have softmax attention itself, as in the "
          "authors' code for exactly p");
  d.field("legacy_scale", &NystromformerParams::legacy_scale,
          "divide q and k by sqrt(K) instead of K^(1/4), as CAB's code does: logits are q . k / K");
  d.field("conv", &NystromformerParams::conv,
          "taps of a filter of the values, one per head, that is added; odd; 0: none")
      .range(0, 4095);
}

void NystromformerParams::validate(const ConfigNode& at) const {
  if (conv > 0 && conv % 2 == 0) {
    throw located_error(at.location_of("conv"),
                        "the filter is centred: conv must be odd, or 0 for "
                        "none, found ",
                        conv);
  }
}

double NystromformerParams::scale(int64_t head_width) const {
  const auto K = static_cast<double>(head_width);
  return 1 / (legacy_scale ? K : std::sqrt(K));
}

MixerTraits NystromformerParams::traits(MixerTraits traits) const {
  if (padding != LandmarkPadding::valid || exact) {
    traits.depends_on_length = true;
    traits.exempt.erase("packing");
  }
  if (norm == InverseNorm::batch) {
    traits.couples_heads = true;
    for (const char* check : {"reference", "f32", "bf16", "rows"}) {
      traits.exempt[check] = "norm: batch couples the rows of a batch";
    }
  }
  return traits;
}

Mechanism nystromformer_mechanism() {
  Mechanism facts;
  facts.name = "nystromformer";
  facts.title = "Nystroemformer: softmax attention by the Nystroem method";
  facts.equation =
      "q~_c, k~_c = means of q and k over landmark c; s = 1/sqrt(K)\n"
      "F = softmax(s Q K~^T), A = softmax(s Q~ K~^T), B = softmax(s Q~ K^T)\n"
      "Z_0 = A^T / largest column sum, Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4\n"
      "Y = F (Z (B V)) + conv(V), one filter per head";
  facts.complexity = "time B H (4 T p K + 4 steps p^3), memory B H (T K + steps p^2)";
  facts.sources = "Xiong et al. 2021, Nystroemformer; a survey's X-former code; Skyformer's code";
  facts.traits.noncausal = true;
  facts.traits.growth = std::string("T p");
  facts.traits.exempt["packing"] = "a row has one set of landmarks: packed documents are refused";
  facts.presets = kPresets;
  // Wider heads than those of small models, which run the first variant.
  facts.check_head_width = 10;
  facts.variants = {"{landmarks: 7, steps: 3, conv: 5, legacy_scale: true}",
                    "{landmarks: 6, padding: row, conv: 0}",
                    "{landmarks: 37, padding: row_of_zeros, exact: true, conv: 0}"};
  facts.cost_cases = {"{landmarks: 64}"};
  facts.limits = {{"a converged inverse, with a landmark for every token, gives softmax attention",
                   "{landmarks: 50, steps: 40, conv: 0}",
                   {Form::noncausal},
                   {},
                   softmax_of_all},
                  {"so do rows with at most as many tokens as landmarks, with exact: true",
                   "{landmarks: 50, exact: true, conv: 0}",
                   {Form::noncausal},
                   {},
                   softmax_of_all},
                  {"equal values are returned as they are where the inverse has converged",
                   "{landmarks: 6, steps: 40, conv: 0}",
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
  return define_mechanism<NystromformerParams, NystromformerMixer>(
      std::move(facts), [](const NystromformerParams& params, const auto& sequence) {
        return nystromformer_definition(params, sequence);
      });
}

}  // namespace linnet
