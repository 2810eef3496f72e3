// Skyformer: kernelized attention by the Nystroem method on sampled rows (Chen et al. 2021).
#pragma once

#include <string>

#include "attention/mechanism.h"

namespace linnet {

struct SkyformerParams {
  std::string preset = "none";
  int64_t rows = 128;
  double gamma = 0.1;
  int64_t steps = 6;
  std::string draws = "per_example";

  static void describe(ConfigDescription<SkyformerParams>& d);
  void validate(const ConfigNode& at) const;
};

Mechanism skyformer_mechanism();

}  // namespace linnet
