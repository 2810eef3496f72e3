// A batch on a device.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "data/batch.h"
#include "layers/model.h"

namespace linnet {

// A batch as models and losses on a device see it. Copies of it share its tensors.
class DeviceBatch {
 public:
  // Shares nothing with `batch`.
  DeviceBatch(const Batch& batch, Device device);
  // Overwrites the tensors. Throws Error where `batch` has another form.
  void copy_from(const Batch& batch);
  // The array of that name (Batch::for_each_array); undefined where the batch has none. Throws
  // Error for a name that no array has.
  const Tensor& array(std::string_view name) const;

  ModelInput input;  // of these tensors

 private:
  std::vector<int64_t> form_;
  std::vector<std::pair<std::string_view, Tensor>> arrays_;
};

}  // namespace linnet
