// LeaPformer: linear attention re-weighted by learned proportions.
#pragma once

#include "attention/common/feature_map_mechanism.h"
#include "attention/leapformer/waiting.h"

namespace linnet {

struct LeapformerParams {
  std::string preset = "none";
  int64_t hidden = 0;  // 0: head dimension / downsample
  int64_t downsample = 4;
  std::string input = "relu";
  std::string training = "linear";
  std::optional<double> scale = 1.0;  // null: 1/sqrt(K)
  double floor = 1e-6;
  Normalizer normalizer = Normalizer::clamp;
  int64_t wait = 0;  // 0: cross-attention reads the whole source
  int64_t read = 1;

  static void describe(ConfigDescription<LeapformerParams>& d);
  // Width of the hidden layer; 1: there is none. Throws UsageError when downsample does not divide.
  int64_t hidden_width(int64_t head_width) const;
  // Rule by which queries of that form see their source.
  WaitPolicy policy(Form form) const { return {form == Form::cross ? wait : 0, read}; }
};

Mechanism leapformer_mechanism();

}  // namespace linnet
