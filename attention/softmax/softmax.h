// Softmax attention: the baseline (Vaswani et al. 2017).
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct SoftmaxParams {
  std::string preset = "none";
  std::optional<double> scale;  // null: 1/sqrt(K)
  std::string bias = "none";
  std::optional<double> dropout;  // null: the model's attention_dropout
  static void describe(ConfigDescription<SoftmaxParams>& d);
};

Mechanism softmax_mechanism();

}  // namespace linnet
