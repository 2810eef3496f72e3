// A mixer with its own parameters, to be called with q, k and v.
#pragma once

#include <memory>
#include <string>

#include "attention/registry.h"
#include "core/yaml.h"
#include "tests/tensor_helpers.h"

namespace linnet::test {

class MadeMixer {
 public:
  // Parameters are drawn from a fixed seed in f64 and rounded to `rounded`, then to `dtype`.
  MadeMixer(const char* mechanism, const std::string& parameters, const MixerOptions& options,
            DType dtype = DType::f64, Device device = {}, DType rounded = DType::f64) {
    const ParameterScope root(set_);
    mixer_ = find_mechanism(mechanism).make(parse_yaml(parameters, "test"), options,
                                            {root.child("own"), root.child("tied")});
    set_.materialize(3, dtype == DType::f64 ? DType::f64 : DType::f32, dtype, device);
    for (const auto& entry : set_.entries()) {
      const Tensor values = Tensor::empty(entry.shape, DType::f64);
      entry.initializer(values, RandomKey{3, 0, 0}.at(entry.name));
      set_.weight_of(entry).copy_from(values.to(rounded).to(DType::f64));
    }
    set_.refresh_values();
  }
  // Gives the mixer's own parameter of that name these values.
  void set(const std::string& name, const std::vector<double>& values) {
    const auto& entry = set_.find("own." + name);
    set_.weight_of(entry).copy_from(Tensor::from(values, entry.shape));
    set_.refresh_values();
  }
  std::vector<double> parameter(const std::string& name) const {
    return set_.find("own." + name).variable.value().to_vector<double>();
  }
  AttentionMixer::MixResult mix(const Variable& q, const Variable& k, const Variable& v,
                                const MixerContext& context, const MixerState& state = {},
                                const Variable& x = {}) const {
    return dynamic_cast<const AttentionMixer&>(*mixer_).mix({q, k, v, x, {}}, context, state);
  }

 private:
  ParameterSet set_;
  std::unique_ptr<TokenMixer> mixer_;
};

}  // namespace linnet::test
