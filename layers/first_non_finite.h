// Where in a model's forward pass the first NaN or infinity arises.
#pragma once

#include <string>
#include <string_view>

#include "core/tensor.h"

namespace linnet {

// While one exists, the models that its thread calls report the outputs of their layers to it. From
// a device this copies to the host: for a pass now and then, and never inside a captured graph.
class FirstNonFinite {
 public:
  FirstNonFinite();
  ~FirstNonFinite();
  FirstNonFinite(const FirstNonFinite&) = delete;
  FirstNonFinite& operator=(const FirstNonFinite&) = delete;
  static bool looks();  // whether this thread has one
  // The newest one of this thread looks at `x`, the output of layer "<scope>.<part>" (of the scope
  // itself where there is no part); without one, nothing happens.
  static void look(std::string_view scope, std::string_view part, const Tensor& x);

  // The prefix of the layer's parameters, such as "layers.2.attention"; "" while all are finite.
  const std::string& layer() const { return layer_; }

 private:
  FirstNonFinite* before_;
  std::string layer_;
};

}  // namespace linnet
