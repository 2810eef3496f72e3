// ABC with clusters as control: parameters, mixer, literal definition, registry entry.
#include "attention/abc_cluster/abc_cluster.h"

#include "attention/abc_cluster/clusters.h"
#include "attention/abc_cluster/plain_clusters.h"
#include "attention/common/abc/slot_choices.h"
#include "attention/common/slot_support.h"
#include "attention/define.h"

namespace linnet {
namespace {

const std::vector<Preset> kPresets = {
    {"abc", "language modelling: 64 slots (32 in the smaller setting)", {{"slots", "64"}}},
    {"abc_mlm", "masked language modelling: 128 slots", {{"slots", "128"}}}};

class AbcClusterMixer : public AttentionMixer {
 public:
  AbcClusterMixer(const AbcClusterParams& params, const MixerOptions& options,
                  const MixerScope& scope)
      : AttentionMixer(options, scope), params_(params) {
    if (options.form == Form::causal) return;
    planes_ = scope.own.buffer("planes", {params.bits, options.head_width()}, init_normal(1));
  }

  MixResult mix(const MixInput& input, const MixerContext& context,
                const MixerState& state) const override {
    const SlotMixing mixing =
        given_slot_mixing(params_, true, options(), context, draw_key(context));
    return slot_mix(mixing, options(), input, context, state, [&] {
      const Tensor& keys = input.k.value();
      const Tensor clusters =
          chosen(context, "token_clusters", {keys.size(0), keys.size(1), keys.size(2)},
                 keys.device(), [&] { return clusters_of(keys, context, state); });
      return Variable(one_hot_controls(clusters, {}, options().heads, params_.slots, keys.dtype()));
    });
  }

  // The search for clusters is not counted: its results are choices, not values.
  MixerCost mix_cost(const MixerShape& shape) const override {
    MixerCost cost = slot_mix_cost(options(), params_.slots, shape);
    if (options().form == Form::causal) return cost;
    const int64_t planes = params_.bits * options().head_width();
    cost.bytes += static_cast<double>(planes) * size_of(sum_dtype(shape.dtype));
    return cost;
  }

 private:
  Tensor clusters_of(const Tensor& keys, const MixerContext& context,
                     const MixerState& state) const {
    if (options().form == Form::causal) {
      const auto carried = [&](const char* name, DType dtype) {
        return state.empty() ? Tensor() : state.at(name).value().to(dtype);
      };
      return nearest_clusters(keys, context.key_mask, context.segments,
                              carried("K", sum_dtype(keys.dtype())), carried("count", DType::f64),
                              params_.slots);
    }
    const bool cross = options().form == Form::cross;
    return hash_clusters(keys, planes_.value(), cross ? context.source_mask : context.key_mask,
                         cross ? Tensor() : context.segments, params_.slots, params_.iterations);
  }

  AbcClusterParams params_;
  Variable planes_;
};

template <typename Number>
std::vector<Number> definition(const AbcClusterParams& params, const ReferenceSequence<Number>& s) {
  const SlotDefinition d = slot_definition_of(params, s);
  const std::vector<int32_t> clusters = s.choices.contains("token_clusters")
                                            ? recorded_slots(s, s.choices.at("token_clusters"))
                                            : plain_clusters(params, s);
  return slot_definition(s, d, one_slot_each(s, clusters));
}

}  // namespace

void AbcClusterParams::describe(ConfigDescription<AbcClusterParams>& d) {
  describe_preset(d, kPresets);
  d.field("slots", &AbcClusterParams::slots, "memory slots N: clusters").range(1, 4096);
  d.field("bits", &AbcClusterParams::bits, "noncausal and cross: random planes that hash a key")
      .range(1, 63);
  d.field("iterations", &AbcClusterParams::iterations, "noncausal and cross: steps of k-means")
      .range(0, 1000);
  describe_slot_read(d, "clusters without keys");
}

Mechanism abc_cluster_mechanism() {
  Mechanism facts;
  facts.name = "abc_cluster";
  facts.title = "Attention with bounded memory, clusters of keys";
  facts.equation =
      "K~_l = mean of the keys of cluster l, V~_l = mean of their values\n"
      "y_i = sum_l softmax_l(scale q_i . K~_l) V~_l; clusters by k-means over signs of random\n"
      "products (causal: the first N keys begin clusters, later ones join the nearest mean)";
  facts.complexity = "time 4 B H T N K and the search for clusters, memory B H N (K + V + 1)";
  facts.sources = "Peng et al. 2022, ABC; Vyas et al. 2020, clustered attention";
  facts.traits.noncausal = facts.traits.causal = facts.traits.cross = true;
  facts.traits.decode_state = facts.traits.constant_state = true;
  facts.traits.growth = "T N";
  facts.presets = kPresets;
  facts.form_options = {{"bits", {Form::noncausal, Form::cross}},
                        {"iterations", {Form::noncausal, Form::cross}}};
  facts.cost_cases = {"{slots: 256}"};
  facts.variants = {"{slots: 7, bits: 63, iterations: 2, scale: 1}",
                    "{slots: 20, bits: 4, mask_empty: false}"};
  const std::vector<Form> all = {Form::noncausal, Form::causal, Form::cross};
  facts.limits = {
      {"a cluster for every key gives softmax attention",
       "{slots: 50, bits: 63}",
       all,
       {},
       softmax_of_tokens},
      {"one cluster gives the mean of the values", "{slots: 1}", all, {}, mean_of_values}};
  return define_mechanism<AbcClusterParams, AbcClusterMixer>(
      std::move(facts), [](const AbcClusterParams& params, const auto& sequence) {
        return definition(params, sequence);
      });
}

}  // namespace linnet
