#include "recipes/engine/named_state.h"

#include <algorithm>

namespace linnet {
namespace {

constexpr char kBetween = '/';

bool is_named(const StateTensors& saved) {
  return std::any_of(saved.begin(), saved.end(), [](const auto& tensor) {
    return tensor.first.find(kBetween) != std::string::npos;
  });
}

// Whether it has an element for each of the weights, padding included; counters have one.
bool is_flat(const Tensor& tensor, const ParameterSet& parameters) {
  return tensor.shape() == parameters.weights().shape();
}

}  // namespace

StateTensors named_state(const StateTensors& state, const ParameterSet& parameters) {
  StateTensors named;
  for (const auto& [name, tensor] : state) {
    if (!is_flat(tensor, parameters)) {
      named[name] = tensor;
      continue;
    }
    for (const ParameterSet::Entry& entry : parameters.entries()) {
      named[concat(name, kBetween, entry.name)] = tensor.slice(entry.begin, entry.shape);
    }
  }
  return named;
}

void restore_named_state(const std::string& owner, const StateTensors& state,
                         const ParameterSet& parameters, const StateTensors& saved) {
  restore_state(owner, is_named(saved) ? named_state(state, parameters) : state, saved);
}

std::map<std::string, Tensor> averaged_weights(const StateTensors& saved,
                                               const ParameterSet& parameters,
                                               const std::string& label) {
  std::map<std::string, Tensor> weights;
  const auto flat = saved.find("average");
  for (const ParameterSet::Entry& entry : parameters.entries()) {
    if (flat != saved.end()) {
      weights[entry.name] = flat->second.slice(entry.begin, entry.shape);
      continue;
    }
    const std::string name = concat("average", kBetween, entry.name);
    const auto found = saved.find(name);
    require(found != saved.end(), Cause{ErrorCode::malformed, name, label}, label, " holds no ",
            name);
    weights[entry.name] = found->second;
  }
  return weights;
}

}  // namespace linnet
