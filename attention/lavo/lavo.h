// LAVO: linear attention via orthogonal memory, with a window of softmax attention ("Linear
// Attention via Orthogonal Memory").
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct LavoParams {
  std::string preset = "none";
  int64_t rank = 64;
  int64_t window = 16;
  std::string basis = "head";
  std::string basis_train = "free";
  std::string code_input = "auto";
  std::string pre_agg = "reuse";
  std::string global_scope = "completed";
  std::string empty_memory = "zeros";
  std::string epe = "head";
  std::string nc_window = "centred";
  std::optional<double> scale;
  std::optional<double> dropout;

  static void describe(ConfigDescription<LavoParams>& d);
  // Throws UsageError for `pre_agg: separate` where no attention output is compressed.
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;

  // Which vectors of a form are compressed: "f_local", "x", "k" or "v".
  std::string code_of(Form form) const;
  // Keys that token i sees in its window: i - left() ... i + right(), or its block of `window`.
  int64_t left(Form form) const;
  int64_t right(Form form) const;
  bool blocks(Form form) const;
  // Distances -reach ... reach have an entry in the position table.
  int64_t reach(Form form) const;
};

Mechanism lavo_mechanism();

}  // namespace linnet
