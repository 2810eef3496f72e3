#include "layers/dead_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace linnet {
namespace {

// Ambient because counting is a diagnosis that an evaluation switches on for one batch: passed as a
// parameter it would be part of every mechanism's mix(), which has no other use for it.
thread_local DeadRowCount* newest = nullptr;

// Counts the valid rows of x [B,T,H,n] all of whose elements are within `bound` of 0.
DeadRows rows_within(const Tensor& x, double bound, const Tensor& mask) {
  const int64_t tokens = x.size(0) * x.size(1), heads = x.size(2), width = x.size(3);
  const std::vector<float> values = x.to_vector<float>();
  const std::vector<uint8_t> valid =
      mask.defined() ? mask.to_vector<uint8_t>() : std::vector<uint8_t>();
  const auto largest = static_cast<float>(bound);
  DeadRows found;
  for (int64_t row = 0; row < tokens * heads; ++row) {
    if (!valid.empty() && valid[static_cast<size_t>(row / heads)] == 0) continue;
    const float* first = values.data() + row * width;
    ++found.rows;
    if (std::all_of(first, first + width, [=](float a) { return std::abs(a) <= largest; })) {
      ++found.dead;
    }
  }
  return found;
}

}  // namespace

DeadRowCount::DeadRowCount() : before_(newest) {
  newest = this;
}

DeadRowCount::~DeadRowCount() {
  newest = before_;
}

DeadRowCount* DeadRowCount::current() {
  return newest;
}

void DeadRowCount::add_outputs(int64_t layer, const Tensor& y, const Tensor& mask) {
  const DeadRows found = rows_within(y, 0, mask);
  layers_[layer].rows += found.rows;
  if (!by_features_.contains(layer)) layers_[layer].dead += found.dead;
}

void DeadRowCount::add_features(int64_t layer, const Tensor& features, double bound,
                                const Tensor& mask) {
  layers_[layer].dead += rows_within(features, bound, mask).dead;
  by_features_.insert(layer);
}

}  // namespace linnet
