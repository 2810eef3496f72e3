#include "layers/first_non_finite.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace linnet {
namespace {

// Ambient as DeadRowCount is: a diagnosis that no layer has another use for.
thread_local FirstNonFinite* newest = nullptr;

bool all_finite(const Tensor& x) {
  const std::vector<float> values = x.to_vector<float>();
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

}  // namespace

FirstNonFinite::FirstNonFinite() : before_(newest) {
  newest = this;
}

FirstNonFinite::~FirstNonFinite() {
  newest = before_;
}

bool FirstNonFinite::looks() {
  return newest != nullptr;
}

void FirstNonFinite::look(std::string_view scope, std::string_view part, const Tensor& x) {
  if (newest == nullptr || !newest->layer_.empty() || all_finite(x)) return;
  newest->layer_ = concat(scope, part.empty() ? "" : ".", part);
}

}  // namespace linnet
