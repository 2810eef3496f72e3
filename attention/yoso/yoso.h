// YOSO: attention by the probability that hashes collide (Zeng et al. 2021).
#pragma once

#include <optional>

#include "attention/registry.h"

namespace linnet {

struct YosoParams {
  std::string preset = "none";
  int64_t bits = 8;
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<YosoParams>& d);
};

Mechanism yoso_mechanism();

}  // namespace linnet
