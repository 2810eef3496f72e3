// The dropout of one place in a model.
#pragma once

#include <string>

#include "autograd/dropout.h"

namespace linnet {

// `batch` says whether it is trained on, and where it lies in the data; off outside training. A
// site is named as the module that it is in: "layers.0.feed_forward".
template <typename Batch>
DropoutSpec dropout_spec(double probability, const std::string& site, const Batch& batch) {
  if (!batch.training || probability == 0) return {};
  return {probability, batch.random.at(site), batch.place};
}

}  // namespace linnet
