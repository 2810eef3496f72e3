#include "recipes/engine/device_batch.h"

#include <algorithm>

namespace linnet {

DeviceBatch::DeviceBatch(const Batch& batch, Device device) : form_(batch.form()) {
  batch.for_each_array([&](std::string_view name, const auto& values, const Shape& shape) {
    arrays_.emplace_back(name, values.empty() ? Tensor() : Tensor::from(values, shape, device));
  });
  input.tokens = array("tokens");
  input.source = array("source");
  input.source_mask = array("source_mask");
  input.positions = array("positions");
  input.segments = array("segments");
  input.token_types = array("token_types");
  input.key_mask = array("mask");
  input.token_bands = {batch.token_band_sizes, array("token_band_ids"), array("token_band_rows")};
  input.target_tails = {batch.target_tail_sizes, array("target_tail_ids"),
                        array("target_tail_rows")};
  input.head_targets = array("head_targets");
  input.place.examples = array("example_ids");
  input.rows_per_example = batch.rows_per_example;
}

void DeviceBatch::copy_from(const Batch& batch) {
  require(batch.form() == form_, "a batch has another form than the one before");
  size_t next = 0;
  batch.for_each_array([&](std::string_view, const auto& values, const Shape& shape) {
    const Tensor& to = arrays_[next++].second;
    if (to.defined()) to.copy_from(Tensor::from(values, shape));
  });
}

const Tensor& DeviceBatch::array(std::string_view name) const {
  const auto found = std::find_if(arrays_.begin(), arrays_.end(),
                                  [name](const auto& entry) { return entry.first == name; });
  require(found != arrays_.end(), "a batch has no array ", name);
  return found->second;
}

}  // namespace linnet
