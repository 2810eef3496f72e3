// What the conformance suite says of mechanisms that are wrong.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "attention/conformance/conformance.h"
#include "attention/registry.h"

namespace linnet {

// What the suite says of a failed check with these parameters; "" where it passed.
inline std::string refusal_of(const Mechanism& mechanism, Form form, const std::string& check,
                              const ConfigNode& parameters = ConfigNode::map()) {
  for (const CheckResult& result : run_conformance(mechanism, form, parameters)) {
    if (result.check == check && !result.passed) return result.message;
  }
  return "";
}

// The mechanism with other traits.
inline Mechanism declared(const char* name, const std::function<void(MixerTraits&)>& change) {
  Mechanism mechanism = find_mechanism(name);
  mechanism.traits_of = [before = mechanism.traits_of, change](const ConfigNode& parameters) {
    MixerTraits traits = before(parameters);
    change(traits);
    return traits;
  };
  return mechanism;
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::count(names.begin(), names.end(), name) > 0;
}

}  // namespace linnet
