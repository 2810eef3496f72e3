// Linformer: keys and values projected along time onto a few rows (Wang et al. 2020).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct LinformerParams {
  std::string preset = "none";
  int64_t slots = 32;
  int64_t max_length = 0;  // N; 0: the training context
  std::string sharing = "key_value";
  bool one_kv_head = false;
  bool freeze = false;
  std::string init = "normal";
  bool mask_empty = true;
  std::optional<double> scale;
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<LinformerParams>& d);
  MixerTraits traits(MixerTraits traits) const;

  // N, and the rows of E. Throws UsageError where no length is known.
  int64_t length(const MixerOptions& options) const;
  int64_t rows(const MixerOptions& options) const;
  // Whether values have a projection of their own; whether every head has.
  bool separate_values() const { return sharing == "none" || sharing == "headwise"; }
  bool per_head() const { return sharing == "none" || sharing == "key_value_per_head"; }
  // The name of the keys' projection: where layers share it, one per kind of attention.
  std::string key_name(Form form) const;
};

Mechanism linformer_mechanism();

}  // namespace linnet
