// Every (mechanism, form) of the registry, as parameters of tests.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "attention/registry.h"

namespace linnet::test {

struct MechanismForm {
  std::string mechanism;
  Form form;
  // "lavo_causal_cpu".
  std::string name(const std::string& device) const {
    return mechanism + "_" + std::string(name_of(form)) + "_" + device;
  }
};
inline void PrintTo(const MechanismForm& c, std::ostream* out) {
  *out << c.mechanism << " " << name_of(c.form);
}

inline std::vector<MechanismForm> every_form() {
  std::vector<MechanismForm> list;
  for (const Mechanism& mechanism : mechanisms()) {
    for (const Form form : {Form::noncausal, Form::causal, Form::cross}) {
      if (mechanism.traits.has(form)) list.push_back({mechanism.name, form});
    }
  }
  return list;
}

}  // namespace linnet::test
