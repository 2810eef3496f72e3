// Kernelized attention: a Gaussian kernel of queries and keys (Chen et al. 2021, Skyformer).
#pragma once

#include <optional>
#include <string>

#include "attention/mechanism.h"

namespace linnet {

struct KernelizedParams {
  std::string preset = "none";
  std::optional<double> dropout;

  static void describe(ConfigDescription<KernelizedParams>& d);
};

Mechanism kernelized_mechanism();

}  // namespace linnet
