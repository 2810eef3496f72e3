// Skyformer: kernelized attention by the Nystroem method on sampled rows (Chen et al. 2021).
#pragma once

#include <optional>
#include <string>

#include "attention/mechanism.h"
#include "attention/primitives/matrices/matrices.h"

namespace linnet {

struct SkyformerParams {
  std::string preset = "none";
  int64_t rows = 128;
  double gamma = 0.1;
  int64_t steps = 6;
  std::string draws = "per_example";
  InverseNorm norm = InverseNorm::matrix;
  std::optional<int64_t> kernel_width;  // null: K

  static void describe(ConfigDescription<SkyformerParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
};

Mechanism skyformer_mechanism();

}  // namespace linnet
