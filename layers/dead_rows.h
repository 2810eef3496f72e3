// How much of attention is dead: rows, one per token and head, whose features have vanished.
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "core/tensor.h"

namespace linnet {

// Counts of one layer. Padding is not counted.
struct DeadRows {
  int64_t rows = 0;
  // Rows whose output is zero (no feature of the query, or of any key, is left: no gradient
  // passes); where a mechanism adds an epsilon to its features, rows in which only the epsilon is
  // left.
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
  // The newest one of this thread; null: none.
  static DeadRowCount* current();

  // Outputs [B,T,H,V]: counts every row, and as dead the rows of zeros, unless the layer's features
  // were counted already. The mask, u8 [B,T], may be undefined.
  void add_outputs(int64_t layer, const Tensor& y, const Tensor& mask);
  // Counts as dead the rows of features [B,T,H,m] none of which is above `bound`. Call it before
  // the outputs of these features.
  void add_features(int64_t layer, const Tensor& features, double bound, const Tensor& mask);

  const std::map<int64_t, DeadRows>& layers() const { return layers_; }

 private:
  DeadRowCount* before_;
  std::map<int64_t, DeadRows> layers_;
  std::set<int64_t> by_features_;
};

}  // namespace linnet
