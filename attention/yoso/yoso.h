// YOSO: attention by the probability that hashes collide (Zeng et al. 2021).
#pragma once

#include <optional>

#include "attention/mechanism.h"

namespace linnet {

struct YosoParams {
  std::string preset = "none";
  std::string estimate = "expectation";
  int64_t bits = 8;
  double cosine = 1;
  std::string gradient = "surrogate";
  int64_t hashes = 32;
  int64_t redraw_steps = 1;
  std::optional<double> dropout;  // null: the model's attention_dropout

  static void describe(ConfigDescription<YosoParams>& d);
  void validate(const ConfigNode& at) const;
  MixerTraits traits(MixerTraits traits) const;
  bool exact() const { return gradient == "exact"; }
  bool sampled() const { return estimate == "sampled"; }
};

Mechanism yoso_mechanism();

}  // namespace linnet
