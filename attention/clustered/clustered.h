// Clustered attention: queries of a cluster share the read of their mean (Vyas et al. 2020).
#pragma once

#include <optional>

#include "attention/mechanism.h"

namespace linnet {

struct ClusteredParams {
  std::string preset = "none";
  std::string kind = "improved";
  int64_t clusters = 100;
  int64_t top_keys = 16;
  int64_t bits = 32;
  int64_t iterations = 10;
  int64_t redraw_steps = 1;
  std::string compat = "none";
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<ClusteredParams>& d);
  bool improved() const { return kind == "improved"; }
};

Mechanism clustered_mechanism();

}  // namespace linnet
