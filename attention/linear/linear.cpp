// Linear attention with elu + 1: presets, limits, registry entry.
#include "attention/linear/linear.h"

namespace linnet {
namespace {

// The mean of the values that query i sees.
std::vector<double> mean_of_values(const ReferenceSequence<double>& s) {
  return linear_attention_definition(
      s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double x) { return std::max(x, 1e-6); });
}

}  // namespace

template <>
const std::vector<Preset>& LinearParams::presets() {
  static const std::vector<Preset> list = {
      {"fast_transformers",
       "the authors' library adds 1e-6 to the denominator",
       {{"normalizer", "add"}, {"floor", "1e-6"}}},
      {"survey", "the survey's tables: the defaults", {}},
      {"leapformer", "LeaPformer's baseline: the defaults", {}},
      {"abc", "ABC's baseline: the defaults", {}}};
  return list;
}

Mechanism linear_mechanism() {
  Mechanism facts;
  facts.name = "linear";
  facts.title = "Linear attention, feature map elu + 1";
  facts.equation =
      "y_i = sum_j A_ij v_j / max(sum_j A_ij, floor), A_ij = phi(scale q_i) . phi(k_j),\n"
      "phi(x) = elu(x) + 1";
  facts.sources = "Katharopoulos et al. 2020, Transformers are RNNs";
  facts.variants = {"{normalizer: add, floor: 0.1, scale: null}"};
  facts.limits = {{"equal keys give the mean of the values",
                   "{}",
                   {Form::noncausal, Form::causal, Form::cross},
                   [](const std::string& name, std::vector<double>& values) {
                     if (name == "k.weight") std::fill(values.begin(), values.end(), 0);
                   },
                   mean_of_values}};
  return define_feature_map<FeatureMap::elu1>(std::move(facts));
}

}  // namespace linnet
