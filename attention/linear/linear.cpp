// Linear attention with elu + 1: presets, limits, registry entry.
#include "attention/linear/linear.h"

namespace linnet {
namespace {

// The mean of the values that query i sees.
std::vector<double> mean_of_values(const ReferenceSequence<double>& s) {
  return linear_attention_definition(
      s, [](int64_t, int64_t, int64_t) { return 1.0; }, [](double x) { return std::max(x, 1e-6); });
}

// Their sum, times the sum of the query's features.
std::vector<double> weighted_sum_of_values(const ReferenceSequence<double>& s) {
  return linear_attention_definition(
      s,
      [&s](int64_t h, int64_t i, int64_t) {
        double sum = 0;
        for (int64_t c = 0; c < s.K; ++c) {
          sum += reference_feature(FeatureMap::elu1, s.query(i, h)[c]);
        }
        return sum;
      },
      [](double) { return 1.0; });
}

void zero_keys(const std::string& name, std::vector<double>& values) {
  if (name.starts_with("k.")) std::fill(values.begin(), values.end(), 0);
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
  facts.variants = {"{normalizer: add, floor: 0.1, scale: null}", "{normalizer: none}"};
  const std::vector<Form> every{Form::noncausal, Form::causal, Form::cross};
  facts.limits = {
      {"equal keys give the mean of the values", "{}", every, zero_keys, mean_of_values},
      {"without denominators keys of 0 give their sum times that of the query's features",
       "{normalizer: none}", every, zero_keys, weighted_sum_of_values}};
  return define_feature_map<FeatureMap::elu1>(std::move(facts));
}

}  // namespace linnet
