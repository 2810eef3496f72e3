// Keys with ties, and their expected order; for every device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/random.h"
#include "core/sort.h"
#include "tests/tensor_helpers.h"

namespace linnet::test {

// Keys of few different values, so that many are equal; every dtype represents them exactly.
inline Tensor tied_keys(const Shape& shape, DType dtype, Device device) {
  const Tensor keys = Tensor::zeros(shape, DType::f64);
  const RandomKey key = RandomKey{5, 0, 0}.at("keys");
  for (int64_t i = 0; i < keys.elements(); ++i) {
    keys.data<double>()[i] = std::round(4 * key.normal(static_cast<uint64_t>(i)));
  }
  return keys.to(dtype).to(device);
}

// Every sorted row is ascending, sorted[i] = keys[order[i]], equal keys keep their order.
inline void expect_sorted(const Tensor& keys) {
  const Tensor sorted = Tensor::empty(keys.shape(), keys.dtype(), keys.device());
  const Tensor order = Tensor::empty(keys.shape(), DType::i32, keys.device());
  sort_rows(keys, sorted, order);
  const std::vector<double> before = keys.to_vector<double>(), after = sorted.to_vector<double>();
  const std::vector<int32_t> from = order.to_vector<int32_t>();
  const auto columns = static_cast<size_t>(keys.size(-1));
  for (size_t i = 0; i < after.size(); ++i) {
    const size_t row = i / columns * columns;
    ASSERT_TRUE(from[i] >= 0 && static_cast<size_t>(from[i]) < columns) << i;
    EXPECT_EQ(after[i], before[row + static_cast<size_t>(from[i])]) << i;
    if (i == row) continue;
    EXPECT_LE(after[i - 1], after[i]) << i;
    if (after[i - 1] == after[i]) {
      EXPECT_LT(from[i - 1], from[i]) << i;
    }
  }
}

inline void expect_sorts(Device device) {
  for (const DType dtype : {DType::f32, DType::i32, DType::i64}) {
    for (const Shape& shape :
         {Shape{1}, Shape{3000}, Shape{7, 1}, Shape{5, 33}, Shape{2, 3, 700}}) {
      SCOPED_TRACE(concat(name_of(dtype), " ", shape));
      expect_sorted(tied_keys(shape, dtype, device));
    }
    const Tensor none = Tensor::zeros({4, 0}, dtype, device);
    sort_rows(none, none.clone(), Tensor::zeros({4, 0}, DType::i32, device));
  }
}

inline void expect_special_values_sort(Device device) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), far = INFINITY;
  const Tensor keys =
      Tensor::from(std::vector<float>{nan, 0.0f, far, -0.0f, -far, -nan, -1e-40f}, {7}, device);
  const Tensor sorted = Tensor::empty({7}, DType::f32, device);
  const Tensor order = Tensor::empty({7}, DType::i32, device);
  sort_rows(keys, sorted, order);
  EXPECT_EQ(order.to_vector<int32_t>(), (std::vector<int32_t>{5, 4, 6, 1, 3, 2, 0}));
  constexpr int64_t kLow = std::numeric_limits<int64_t>::min(),
                    kHigh = std::numeric_limits<int64_t>::max();
  const Tensor wide = Tensor::from(std::vector<int64_t>{kHigh, -1, kLow, 0}, {4}, device);
  const Tensor wide_sorted = Tensor::empty({4}, DType::i64, device);
  const Tensor wide_order = Tensor::empty({4}, DType::i32, device);
  sort_rows(wide, wide_sorted, wide_order);
  EXPECT_EQ(wide_sorted.to_vector<int64_t>(), (std::vector<int64_t>{kLow, -1, 0, kHigh}));
}

}  // namespace linnet::test
