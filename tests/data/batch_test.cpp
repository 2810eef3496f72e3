// Batches: every array is listed once.
#include "data/batch.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace linnet {
namespace {

TEST(Batch, ListsEveryArray) {
  const Batch batch;
  std::set<std::string> names;
  std::set<const void*> arrays;
  batch.for_each_array([&](std::string_view name, const auto& array, const Shape&) {
    names.emplace(name);
    arrays.insert(&array);
  });
  EXPECT_EQ(names.size(), arrays.size());
  // All that a batch has beside its arrays: an array that is not listed makes it larger.
  struct Rest {
    int64_t B, T, rows_per_example;
    std::vector<int64_t> token_band_sizes, target_tail_sizes;  // in the form
    bool continues;
    int64_t target_count, scored_bytes, scored_words;
  };
  EXPECT_EQ(sizeof(Batch), sizeof(Rest) + arrays.size() * sizeof(std::vector<int32_t>));
}

TEST(Batch, TheFormIsItsSizesAndThoseOfItsArrays) {
  Batch batch;
  batch.B = 4;
  batch.T = 3;
  batch.tokens.assign(12, 1);
  const std::vector<int64_t> form = batch.form();
  std::set<std::vector<int64_t>> forms{form};
  size_t changes = 1;
  const auto other_form = [&](const auto& change) {
    Batch changed = batch;
    change(changed);
    forms.insert(changed.form());
    ++changes;
  };
  other_form([](Batch& b) { b.B = 2; });
  other_form([](Batch& b) { b.T = 6; });
  other_form([](Batch& b) { b.rows_per_example = 2; });
  other_form([](Batch& b) { b.targets.assign(12, 1); });
  other_form([](Batch& b) { b.places.assign(2, 1); });
  other_form([](Batch& b) { b.places.assign(5, 1); });
  other_form([](Batch& b) { b.place_of.assign(12, 1); });
  other_form([](Batch& b) { b.positions.assign(12, 1); });
  other_form([](Batch& b) { b.segments.assign(12, 1); });
  other_form([](Batch& b) { b.token_types.assign(12, 1); });
  other_form([](Batch& b) { b.mask.assign(12, 1); });
  other_form([](Batch& b) { b.example_ids.assign(4, 1); });
  other_form([](Batch& b) { b.values.assign(4, 1); });
  other_form([](Batch& b) { b.labels.assign(4, 1); });
  EXPECT_EQ(forms.size(), changes);
  Batch other = batch;
  other.tokens.assign(12, 7);
  other.target_count = 5;
  EXPECT_EQ(other.form(), form);
  EXPECT_NE(other, batch);
}

}  // namespace
}  // namespace linnet
