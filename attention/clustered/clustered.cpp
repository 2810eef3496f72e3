// Clustered attention: parameters, mixer, registry entry.
#include "attention/clustered/clustered.h"

#include "attention/clustered/cluster_blend.h"
#include "attention/clustered/clustered_definition.h"
#include "attention/clustered/hamming_clusters.h"
#include "attention/common/mixer_support.h"
#include "attention/common/random_matrix.h"
#include "attention/define.h"
#include "attention/primitives/listed_attention/listed_attention.h"
#include "autograd/embedding.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"survey",
     "the survey's tasks with heads of 64 channels: clusters and top keys are twice that many",
     {{"clusters", "100"}, {"top_keys", "16"}, {"bits", "32"}}},
    {"survey_image",
     "the survey's tasks with heads of 32 channels (Image, Pathfinder)",
     {{"clusters", "50"}, {"top_keys", "16"}, {"bits", "16"}}}};

class ClusteredMixer : public AttentionMixer {
 public:
  ClusteredMixer(const ClusteredParams& params, const MixerOptions& options,
                 const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    const auto normals = [&](const char* name, int64_t rows, int64_t width) {
      const auto draw = [=](const RandomKey& key) { return gaussian_rows(rows, width, key); };
      return RandomMatrix(scope.own, name, {rows, width}, draw, draw, params.redraw_steps);
    };
    planes_ = normals("planes", params.bits, options.head_width() + 1);
    spares_ = normals("spares", params.clusters, params.bits);
    const auto uniform = [count = params.clusters](const RandomKey& key) {
      std::vector<double> uniform;
      for (int64_t i = 0; i < count; ++i) uniform.push_back(key.uniform(static_cast<uint64_t>(i)));
      return uniform;
    };
    starts_ =
        RandomMatrix(scope.own, "starts", {params.clusters}, uniform, uniform, params.redraw_steps);
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState&) const override {
    require_usage(
        !context.segments.defined(),
        "clustered has one set of clusters for each row; do not pack documents into rows");
    const DType dtype = input.q.dtype(), wide = sum_dtype(dtype);
    const int64_t B = input.q.size(0), T = input.q.size(1), H = input.q.size(2);
    const int64_t C = clusters(T);
    const Device device = input.q.value().device();
    const Tensor found = chosen(context, "token_query_clusters", {B, T, H}, device,
                                [&] { return search(input.q.value(), context); });
    const Tensor places = cluster_places(found, C);
    const Variable means = as_dtype(cluster_means(as_dtype(input.q, wide), places, C), dtype);
    ClusterBlendInputs read;
    // All clusters read one list of all keys.
    const Tensor keys = counted_positions(1, T, 0, device).reshape({1, 1, 1, T});
    if (!params_.improved()) {
      read.bottom = attend(means, input, keys, {}, context, {}, "bottom").y;
      return blend(read, places, dtype);
    }
    const int64_t count = std::min(params_.top_keys, T);
    const Tensor top = chosen(context, "top_keys", {B, H, C, count}, device, [&] {
      return top_keys(means.value(), input.k.value(), context.key_mask, count);
    });
    const ListedAttentionResult others =
        attend(means, input, keys, top_keys_hidden(top, T), context, {}, "bottom");
    read.bottom = others.y;
    read.log_bottom = others.log_sum_exp;
    // Only the log-sum-exp of this call is used.
    read.log_top = attend(means, input, top, {}, context, {}, "sum").log_sum_exp;
    read.top = attend(input.q, input, top_keys_of_queries(top, found), {}, context,
                      context.key_mask, "top")
                   .y;
    return blend(read, places, dtype);
  }

  MixerCost mix_cost(const MixerShape& shape) const override {
    const auto rows = static_cast<double>(shape.batch),
               width = static_cast<double>(options().width);
    const int64_t T = shape.queries, C = clusters(T);
    const int64_t count = params_.improved() ? std::min(params_.top_keys, T) : 0;
    // Hashes, and both products of the means with all keys and values; then the search for the top
    // keys, and both products of the queries with them.
    int64_t products = T * params_.bits + 2 * C * T;
    if (params_.improved()) products += C * T + 2 * T * count;
    MixerCost cost;
    cost.mixing = rows * width * static_cast<double>(products);
    const int64_t elements =
        params_.bits * (options().head_width() + 1) + params_.clusters * (params_.bits + 1);
    cost.bytes =
        static_cast<double>(elements) * static_cast<double>(size_of(sum_dtype(shape.dtype)));
    return cost;
  }

 private:
  // At most as many clusters as tokens.
  int64_t clusters(int64_t T) const { return std::min(params_.clusters, T); }

  Tensor search(const Tensor& q, const MixerContext& context) const {
    const RandomKey key = draw_key(context);
    const DType dtype = sum_dtype(q.dtype());
    const auto of = [&](const RandomMatrix& matrix) {
      return matrix.at(context, key, dtype).value();
    };
    return hamming_clusters(q, context.key_mask, {of(planes_), of(starts_), of(spares_)},
                            clusters(q.size(1)), params_.iterations);
  }

  ListedAttentionResult attend(const Variable& q, const MixInput& input, const Tensor& index,
                               const Tensor& bias, const MixerContext& context,
                               const Tensor& query_mask, const char* site) const {
    ListedAttentionContext at;
    at.options.scale = default_scale(options());
    at.options.group = index.size(2) == 1 ? q.size(1) : 1;
    if (context.training) {
      at.options.dropout = params_.dropout.value_or(options().dropout);
      at.options.dropout_key = draw_key(context).at(site);
    }
    at.index = index;
    at.query_mask = query_mask;
    at.key_mask = context.key_mask;
    at.place = context.place;
    return listed_attention({q, input.k, input.v, bias.defined() ? Variable(bias) : Variable()},
                            at);
  }

  MixResult blend(ClusterBlendInputs read, const Tensor& places, DType dtype) const {
    read.bottom = as_dtype(read.bottom, sum_dtype(dtype));
    if (read.top.defined()) read.top = as_dtype(read.top, sum_dtype(dtype));
    return {as_dtype(cluster_blend(read, places, params_.compat == "detached_beta"), dtype), {}};
  }

  ClusteredParams params_;
  RandomMatrix planes_, starts_, spares_;
};

}  // namespace

void ClusteredParams::describe(ConfigDescription<ClusteredParams>& d) {
  describe_preset(d, kPresets);
  d.choice("kind", &ClusteredParams::kind, {"improved", "plain"},
           "improved: queries weigh the best keys of their cluster themselves; plain: they share "
           "the read of their cluster's mean");
  d.field("clusters", &ClusteredParams::clusters, "clusters of queries C").range(1, 4096);
  d.field("top_keys", &ClusteredParams::top_keys, "improved: best keys of a cluster")
      .range(1, 4096);
  d.field("bits", &ClusteredParams::bits, "random planes that hash a query")
      .range(1, kMaxClusterBits);
  d.field("iterations", &ClusteredParams::iterations, "steps of k-means").range(1, 1000);
  d.field("redraw_steps", &ClusteredParams::redraw_steps,
          "training redraws the search's random values after so many updates; 0: never")
      .at_least(0);
  d.choice("compat", &ClusteredParams::compat, {"none", "detached_beta"},
           "detached_beta: the share of the best keys is a constant in backward, as in the "
           "authors' code");
  describe_dropout(d);
}

Mechanism clustered_mechanism() {
  Mechanism facts;
  facts.name = "clustered";
  facts.title = "Clustered attention: queries of a cluster share the read of their mean";
  facts.equation =
      "m_c = mean q over cluster c, A_cj = softmax_j(m_c . k_j / sqrt(K)), T_c = the k keys of "
      "largest A_cj\n"
      "beta_c = sum_{j not in T_c} A_cj, P_ij = softmax_{j in T_c}(q_i . k_j / sqrt(K))\n"
      "y_i = (1 - beta_c) sum_{j in T_c} P_ij v_j + sum_{j not in T_c} A_cj v_j, c the cluster of "
      "i\n"
      "plain: y_i = sum_j A_cj v_j; clusters by k-means over signs of random products";
  facts.complexity = "time B H T (3 C K + 2 k K + C iterations), memory B H C T";
  facts.sources =
      "Vyas et al. 2020, Fast Transformers with Clustered Attention; fast-transformers' code, as "
      "run by a survey";
  facts.traits.noncausal = true;
  facts.traits.growth = "T (C + k)";
  facts.traits.exempt["packing"] = "a row has one set of clusters: packed documents are refused";
  facts.presets = kPresets;
  facts.variants = {"{clusters: 6, top_keys: 5, bits: 16}",
                    "{kind: plain, clusters: 7, bits: 63, iterations: 2}"};
  facts.check_head_width = 10;
  const auto softmax = [](const ReferenceSequence<double>& s) {
    return softmax_attention_reference(
        s, 1 / std::sqrt(static_cast<double>(s.K)), [](int64_t, int64_t) { return true; },
        [](int64_t, int64_t, int64_t) { return 0.0; });
  };
  facts.limits = {{"all keys among the best give softmax attention",
                   "{clusters: 3, top_keys: 50}",
                   {Form::noncausal},
                   {},
                   softmax},
                  {"a cluster for every query gives softmax attention",
                   "{kind: plain, clusters: 50, bits: 63}",
                   {Form::noncausal},
                   {},
                   softmax},
                  {"equal values are returned as they are",
                   "{clusters: 5, top_keys: 4}",
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
  return define_mechanism<ClusteredParams, ClusteredMixer>(
      std::move(facts), [](const ClusteredParams& params, const auto& sequence) {
        return clustered_definition::definition(params, sequence);
      });
}

}  // namespace linnet
