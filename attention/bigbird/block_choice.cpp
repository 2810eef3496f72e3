#include "attention/bigbird/block_choice.h"

#include "attention/bigbird/cuda/block_choice.h"
#include "core/cuda/backend.h"
#include "core/threads.h"

namespace linnet {
namespace {

template <typename Number>
void choose_on_host(const BlockChoice& choice, const Tensor& numbers, const Tensor& chosen) {
  const int64_t rows = choice.rows(), random = choice.random, stored = numbers.size(1);
  for (int64_t i = 0; i < numbers.size(0) * rows; ++i) {
    const int64_t head = i / rows, row = i % rows;
    choice.choose(row + 1, numbers.data<Number>() + (head * stored + row) * random,
                  chosen.data<int32_t>() + i * random);
  }
}

}  // namespace

Tensor block_numbers(const RandomKey& key, const Shape& shape, Device device) {
  const Tensor numbers = Tensor::empty(shape, DType::f32, device);
  if constexpr (kCuda) {
    if (on_cuda(numbers)) {
      cuda::block_numbers(key, numbers);
      return numbers;
    }
  }
  for (int64_t i = 0; i < numbers.elements(); ++i) {
    numbers.data<float>()[i] = block_number(key, shape[1], shape[2], i);
  }
  return numbers;
}

Tensor choose_blocks(const BlockChoice& choice, const Tensor& numbers) {
  require(numbers.shape().rank() == 3 && numbers.size(1) >= choice.rows() &&
              numbers.size(2) == choice.random,
          "bigbird: expected numbers [heads, at least ", choice.rows(), ", ", choice.random,
          "], got ", numbers.shape());
  const Tensor chosen =
      Tensor::empty({numbers.size(0), choice.rows(), choice.random}, DType::i32, numbers.device());
  if constexpr (kCuda) {
    if (on_cuda(chosen)) {
      cuda::choose_blocks(choice, numbers, chosen);
      return chosen;
    }
  }
  if (numbers.dtype() == DType::f64) {
    choose_on_host<double>(choice, numbers, chosen);
  } else {
    choose_on_host<float>(choice, numbers, chosen);
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
