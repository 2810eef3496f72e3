// Longformer: soft-max over a sliding window and a few global tokens (Beltagy et al. 2020).
#pragma once

#include "attention/registry.h"

namespace linnet {

struct LongformerParams {
  std::string preset = "none";
  std::optional<int64_t> window;
  int64_t global_tokens = 1;
  std::string global_proj = "shared";
  std::optional<double> scale;
  std::optional<double> dropout;

  static void describe(ConfigDescription<LongformerParams>& d);
  MixerTraits traits(MixerTraits traits) const;
  bool separate() const { return global_proj == "separate"; }
  // w. Throws UsageError where the noncausal form cannot halve it.
  int64_t width(const MixerOptions& options) const;
};

Mechanism longformer_mechanism();

}  // namespace linnet
