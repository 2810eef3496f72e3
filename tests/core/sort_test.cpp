#include "tests/core/sort_cases.h"

namespace linnet {
namespace {

TEST(Sort, RowsAreSortedStably) {
  test::expect_sorts({});
}

TEST(Sort, SpecialValuesHaveTheirPlace) {
  test::expect_special_values_sort({});
}

TEST(Sort, WhatDoesNotFitIsNamed) {
  const Tensor keys = Tensor::zeros({2, 3}), order = Tensor::zeros({2, 3}, DType::i32);
  const auto message = [&](const Tensor& k, const Tensor& s, const Tensor& o) {
    return test::message_of<Error>([&] { sort_rows(k, s, o); });
  };
  EXPECT_NE(message(keys.to(DType::bf16), keys.to(DType::bf16), order)
                .find("keys must be f32, i32 or i64, got bf16"),
            std::string::npos);
  EXPECT_NE(message(keys, Tensor::zeros({3, 2}), order).find("sorted keys alike"),
            std::string::npos);
  EXPECT_NE(message(keys, keys.clone(), keys.clone()).find("i32 order"), std::string::npos);
}

}  // namespace
}  // namespace linnet
