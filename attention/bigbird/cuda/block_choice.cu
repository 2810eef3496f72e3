#include "attention/bigbird/cuda/block_choice.h"

#include "core/cuda/for_each.h"
#include "core/cuda/random.h"

namespace linnet::cuda {

void block_draws(const RandomKey& key, const Tensor& draws) {
  float* to = pointer<float>(draws);
  const int64_t rows = draws.size(1), random = draws.size(2);
  for_each("bigbird_draws", draws.elements(),
           [=] __device__(int64_t i) { to[i] = block_draw(key_of_step(key), rows, random, i); });
}

void choose_blocks(const BlockChoice& choice, const Tensor& draws, const Tensor& chosen) {
  const float* from = pointer<float>(draws);
  int32_t* to = pointer<int32_t>(chosen);
  const int64_t rows = choice.rows(), stored = draws.size(1);
  for_each("bigbird_choose", chosen.size(0) * rows, [=] __device__(int64_t i) {
    choice.choose(i % rows + 1, from + (i / rows * stored + i % rows) * choice.random,
                  to + i * choice.random);
  });
}

void block_index(const BlockLists& lists, const Tensor& chosen, const Tensor& index) {
  const int32_t* of_rows = pointer<int32_t>(chosen);
  int32_t* to = pointer<int32_t>(index);
  const int64_t rows = lists.choice.rows(), length = lists.length();
  for_each("bigbird_lists", index.elements(), [=] __device__(int64_t i) {
    const int64_t row = i / length;
    to[i] = lists.key(row % rows + 1, i % length, of_rows + row * lists.choice.random);
  });
}

}  // namespace linnet::cuda
