// How much of attention is dead: rows, one a token and head, whose features have vanished.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "core/tensor.h"

namespace linnet {

// Of one layer. Padding is not counted.
struct DeadRows {
  int64_t rows = 0;
  // Outputs of zeros (no feature of the query is left, or no key's: it gets no gradient), and where
  // a mechanism adds an epsilon to features, those of which nothing else is left.
  int64_t dead = 0;
};

// While one exists, the attention that its thread calls adds to it. From a device this copies to
// the host: for a batch now and then, and never inside a captured graph.
class DeadRowCount {
 public:
  DeadRowCount();
  ~DeadRowCount();
  DeadRowCount(const DeadRowCount&) = delete;
  DeadRowCount& operator=(const DeadRowCount&) = delete;
  // The newest one of this thread; null: nobody asks.
  static DeadRowCount* current();

  // Outputs [B,T,H,V]: every row, and as dead those of zeros, unless the layer's features said
  // which are. The mask, u8 [B,T], may be undefined.
  void add_outputs(int64_t layer, const Tensor& y, const Tensor& mask);
  // As dead, features [B,T,H,m] none of which is above `bound`; before the outputs that they make.
  void add_features(int64_t layer, const Tensor& features, double bound, const Tensor& mask);

  const std::map<int64_t, DeadRows>& layers() const { return layers_; }

 private:
  DeadRowCount* before_;
  std::map<int64_t, DeadRows> layers_;
  std::set<int64_t> by_features_;
};

}  // namespace linnet
