// Longformer: softmax over a sliding window and a few global tokens (Beltagy et al. 2020).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct LongformerParams {
  std::string preset = "none";
  std::optional<int64_t> window;
  std::optional<int64_t> global_tokens;
  std::string global_proj = "shared";
  std::optional<double> scale;
  std::optional<double> dropout;

  static void describe(ConfigDescription<LongformerParams>& d);
  MixerTraits traits(MixerTraits traits) const;
  // g: unless set, the first token in the noncausal form.
  int64_t globals(Form form) const { return global_tokens.value_or(form == Form::causal ? 0 : 1); }
  bool separate() const { return global_proj == "separate"; }
  // w. Throws UsageError where the noncausal form cannot halve it.
  int64_t width(const MixerOptions& options) const;
};

Mechanism longformer_mechanism();

}  // namespace linnet
