// How the figures of mechanisms grow with the length, beside what they state.
#pragma once

#include <string>
#include <vector>

#include "recipes/engine/bench/operation.h"

namespace linnet {

// With which power of the length T a mechanism's figures grow: the slope of the line through their
// logarithms, by least squares; of times through the least ones (RunTime).
struct AttentionGrowth {
  std::string mechanism;
  Form form = Form::causal;
  StatedGrowth stated = {};
  double forward = 0, forward_backward = 0, memory = 0;
  // The slope of what the traits state, through the same lengths: 1 for T, 2 for T^2, 1.11 for
  // T ln T from 2,048 to 32,768.
  double declared = 0;
};
// Of every mechanism with two lengths or more, in the order of the points.
std::vector<AttentionGrowth> attention_growth(const std::vector<OperationBench>& points);
// Throws Error naming those that declare work of T, or T ln T, and take time that grows faster than
// with the power `limit`, or with as much more than T ln T as `limit` is more than 1.
void require_growth(const std::vector<AttentionGrowth>& growth, double limit);

}  // namespace linnet
