#include "attention/bigbird/block_choice.h"

#include "attention/bigbird/cuda/block_choice.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

template <typename Number>
void choose_on_host(const BlockChoice& choice, const Tensor& draws, const Tensor& chosen) {
  const int64_t rows = choice.rows(), random = choice.random, stored = draws.size(1);
  for (int64_t i = 0; i < draws.size(0) * rows; ++i) {
    const int64_t head = i / rows, row = i % rows;
    choice.choose(row + 1, draws.data<Number>() + (head * stored + row) * random,
                  chosen.data<int32_t>() + i * random);
  }
}

}  // namespace

Tensor block_draws(const RandomKey& key, const Shape& shape, Device device) {
  const Tensor draws = Tensor::empty(shape, DType::f32, device);
  if constexpr (kCuda) {
    if (on_cuda(draws)) {
      cuda::block_draws(key, draws);
      return draws;
    }
  }
  for (int64_t i = 0; i < draws.elements(); ++i) {
    draws.data<float>()[i] = block_draw(key, shape[1], shape[2], i);
  }
  return draws;
}

Tensor choose_blocks(const BlockChoice& choice, const Tensor& draws) {
  require(
      draws.shape().rank() == 3 && draws.size(1) >= choice.rows() && draws.size(2) == choice.random,
      "bigbird: expected draws [heads, at least ", choice.rows(), ", ", choice.random, "], got ",
      draws.shape());
  const Tensor chosen =
      Tensor::empty({draws.size(0), choice.rows(), choice.random}, DType::i32, draws.device());
  if constexpr (kCuda) {
    if (on_cuda(chosen)) {
      cuda::choose_blocks(choice, draws, chosen);
      return chosen;
    }
  }
  if (draws.dtype() == DType::f64) {
    choose_on_host<double>(choice, draws, chosen);
  } else {
    choose_on_host<float>(choice, draws, chosen);
  }
  return chosen;
}

Tensor block_index(const BlockChoice& choice, const Tensor& chosen) {
  const BlockLists lists{choice};
  const int64_t heads = chosen.size(0), rows = choice.rows(), length = lists.length();
  const Tensor index = Tensor::empty({1, heads, rows, length}, DType::i32, chosen.device());
  if constexpr (kCuda) {
    if (on_cuda(index)) {
      cuda::block_index(lists, chosen, index);
      return index;
    }
  }
  const int32_t* of_rows = chosen.data<int32_t>();
  int32_t* to = index.data<int32_t>();
  parallel_for(heads * rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t place = 0; place < length; ++place) {
        to[i * length + place] = lists.key(i % rows + 1, place, of_rows + i * choice.random);
      }
    }
  });
  return index;
}

}  // namespace linnet
