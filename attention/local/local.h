// Local attention: softmax over a band or a block of neighbours.
#pragma once

#include "attention/mechanism.h"

namespace linnet {

struct LocalParams {
  std::string preset = "none";
  std::string pattern = "band";
  int64_t window = 16;
  std::string sides = "two_sided";
  std::optional<double> scale;
  std::optional<double> dropout;

  static void describe(ConfigDescription<LocalParams>& d);
  // Keys that token i sees in a band: i - left() ... i + right().
  int64_t left(Form form) const;
  int64_t right(Form form) const;
};

Mechanism local_mechanism();

}  // namespace linnet
