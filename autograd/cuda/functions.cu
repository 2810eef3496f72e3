// Functions of single elements; masked filling.
#include "autograd/cuda/functions.h"

#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {

void element_values(ElementFunction function, const Tensor& x, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  for_each("element_values", x.elements(),
           [=] __device__(int64_t i) { to.put(i, element_value(function, from.at(i))); });
}

void element_gradients(ElementFunction function, const Tensor& x, const Tensor& dy,
                       const Tensor& dx) {
  const StoredValues from = stored_values(x), d = stored_values(dy);
  const StoredResults to = stored_results(dx);
  for_each("element_gradients", x.elements(),
           [=] __device__(int64_t i) { to.put(i, d.at(i) * element_slope(function, from.at(i))); });
}

void masked_fill(const Tensor& x, const Tensor& mask, const Views<1>& view, double value,
                 const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  const uint8_t* valid = pointer<const uint8_t>(mask);
  const auto fill = static_cast<float>(value);
  for_each("masked_fill", x.elements(), [=] __device__(int64_t i) {
    to.put(i, valid[view.offset(0, i)] != 0 ? from.at(i) : fill);
  });
}

void fill_above_diagonal(const Tensor& x, double value, const Tensor& y) {
  const StoredValues from = stored_values(x);
  const StoredResults to = stored_results(y);
  const int64_t rows = x.size(-2), columns = x.size(-1);
  const auto fill = static_cast<float>(value);
  for_each("fill_above_diagonal", x.elements(), [=] __device__(int64_t i) {
    to.put(i, i % columns > i / columns % rows ? fill : from.at(i));
  });
}

}  // namespace linnet::cuda
