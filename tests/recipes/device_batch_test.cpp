// A batch on a device: all of its arrays, and later ones in the same tensors.
#include "recipes/engine/device_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

// Every array is filled, with values from `first` on.
Batch full_batch(int32_t first) {
  Batch batch;
  batch.B = 4;
  batch.T = 3;
  batch.rows_per_example = 2;
  const auto fill = [&first](auto& array, size_t size) {
    array.resize(size);
    for (auto& value : array)
      value = static_cast<std::remove_reference_t<decltype(value)>>(first++ % 256);
  };
  for (auto* array : {&batch.tokens, &batch.targets, &batch.places, &batch.place_of,
                      &batch.positions, &batch.segments, &batch.token_types, &batch.source}) {
    fill(*array, 12);
  }
  batch.token_band_sizes = {4, 3};
  batch.target_tail_sizes = {2};
  for (auto* array : {&batch.token_band_ids, &batch.token_band_rows}) fill(*array, 7);
  for (auto* array : {&batch.target_tail_ids, &batch.target_tail_rows}) fill(*array, 2);
  fill(batch.head_targets, 12);
  fill(batch.later_targets, 24);
  fill(batch.mask, 12);
  fill(batch.source_mask, 12);
  fill(batch.example_ids, 4);
  fill(batch.values, 2);
  fill(batch.labels, 2);
  return batch;
}

void expect_holds(const DeviceBatch& on_device, const Batch& batch) {
  int arrays = 0;
  batch.for_each_array([&](std::string_view name, const auto& values, const Shape& shape) {
    using Value = typename std::remove_cvref_t<decltype(values)>::value_type;
    const Tensor& tensor = on_device.array(name);
    ASSERT_TRUE(tensor.defined()) << name;
    EXPECT_EQ(tensor.shape(), shape) << name;
    EXPECT_EQ(tensor.to_vector<Value>(), values) << name;
    ++arrays;
  });
  EXPECT_GE(arrays, 8);
  const ModelInput& input = on_device.input;
  EXPECT_EQ(input.tokens.to_vector<int32_t>(), batch.tokens);
  EXPECT_EQ(input.positions.to_vector<int32_t>(), batch.positions);
  EXPECT_EQ(input.segments.to_vector<int32_t>(), batch.segments);
  EXPECT_EQ(input.token_types.to_vector<int32_t>(), batch.token_types);
  EXPECT_EQ(input.token_bands.sizes, batch.token_band_sizes);
  EXPECT_EQ(input.token_bands.ids.to_vector<int32_t>(), batch.token_band_ids);
  EXPECT_EQ(input.token_bands.rows.to_vector<int32_t>(), batch.token_band_rows);
  EXPECT_EQ(input.target_tails.sizes, batch.target_tail_sizes);
  EXPECT_EQ(input.target_tails.ids.to_vector<int32_t>(), batch.target_tail_ids);
  EXPECT_EQ(input.target_tails.rows.to_vector<int32_t>(), batch.target_tail_rows);
  EXPECT_EQ(input.head_targets.to_vector<int32_t>(), batch.head_targets);
  EXPECT_EQ(input.key_mask.to_vector<uint8_t>(), batch.mask);
  EXPECT_EQ(input.source.to_vector<int32_t>(), batch.source);
  EXPECT_EQ(input.source_mask.to_vector<uint8_t>(), batch.source_mask);
  EXPECT_EQ(input.place.examples.to_vector<int64_t>(), batch.example_ids);
  EXPECT_EQ(input.rows_per_example, 2);
}

TEST(DeviceBatch, HoldsEveryArrayAndTakesOverTheNextBatch) {
  DeviceBatch on_device(full_batch(1), {});
  expect_holds(on_device, full_batch(1));
  const void* const tokens = on_device.input.tokens.raw();
  on_device.copy_from(full_batch(100));
  expect_holds(on_device, full_batch(100));
  EXPECT_EQ(on_device.input.tokens.raw(), tokens);
}

TEST(DeviceBatch, LeavesOutWhatIsNotThereAndRefusesAnotherForm) {
  Batch bare;
  bare.B = 2;
  bare.T = 3;
  bare.tokens.assign(6, 1);
  DeviceBatch on_device(bare, {});
  for (const char* name : {"targets", "positions", "segments", "token_types", "mask", "example_ids",
                           "values", "labels", "token_band_ids", "head_targets"}) {
    EXPECT_FALSE(on_device.array(name).defined()) << name;
  }
  EXPECT_THAT(test::message_of([&] { on_device.array("taregts"); }),
              testing::HasSubstr("no array taregts"));
  Batch more = bare;
  more.token_types.assign(6, 0);
  Batch longer = bare;
  longer.T = 4;
  longer.tokens.assign(8, 1);
  for (const Batch& other : {more, longer}) {
    EXPECT_THAT(test::message_of([&] { on_device.copy_from(other); }),
                testing::HasSubstr("another form"));
  }
  EXPECT_EQ(on_device.input.tokens.to_vector<int32_t>(), bare.tokens);
}

}  // namespace
}  // namespace linnet
