// Stable sorts of rows: CUB's radix sort, a block for every row.
#include <cub/device/device_segmented_radix_sort.cuh>

#include "core/cuda/for_each.h"
#include "core/cuda/sort.h"

namespace linnet::cuda {
namespace {

void check(cudaError_t status) {
  require(status == cudaSuccess, "CUB: sorting failed: ", cudaGetErrorString(status), " (",
          cudaGetErrorName(status), ")");
}

template <typename T>
void sort_typed(const Tensor& keys, const Tensor& sorted, const Tensor& order, const Tensor& places,
                const Tensor& begins) {
  const auto count = static_cast<int>(keys.elements());
  const auto rows = static_cast<int>(begins.elements() - 1);
  const int32_t* begin = pointer<int32_t>(begins);
  const auto sort = [&](void* scratch, size_t& bytes) {
    check(cub::DeviceSegmentedRadixSort::SortPairs(
        scratch, bytes, static_cast<const T*>(pointer<T>(keys)), pointer<T>(sorted),
        static_cast<const int32_t*>(pointer<int32_t>(places)), pointer<int32_t>(order), count, rows,
        begin, begin + 1, 0, static_cast<int>(8 * sizeof(T)), static_cast<cudaStream_t>(stream())));
  };
  size_t bytes = 0;
  sort(nullptr, bytes);
  const MemoryUser user("sorting");
  // With a null pointer CUB would only compute the size again.
  const Tensor scratch = Tensor::empty({static_cast<int64_t>(bytes) + 1}, DType::u8, keys.device());
  sort(scratch.raw(), bytes);
}

}  // namespace

void sort_rows(const Tensor& keys, const Tensor& sorted, const Tensor& order) {
  const int64_t columns = keys.size(-1), rows = keys.elements() / columns;
  const Tensor places = Tensor::empty(keys.shape(), DType::i32, keys.device());
  const Tensor begins = Tensor::empty({rows + 1}, DType::i32, keys.device());
  int32_t* place = pointer<int32_t>(places);
  int32_t* begin = pointer<int32_t>(begins);
  for_each("sort_places", keys.elements(),
           [=] __device__(int64_t i) { place[i] = static_cast<int32_t>(i % columns); });
  for_each("sort_begins", rows + 1,
           [=] __device__(int64_t row) { begin[row] = static_cast<int32_t>(row * columns); });
  switch (keys.dtype()) {
    case DType::f32:
      return sort_typed<float>(keys, sorted, order, places, begins);
    case DType::i32:
      return sort_typed<int32_t>(keys, sorted, order, places, begins);
    default:
      return sort_typed<int64_t>(keys, sorted, order, places, begins);
  }
}

}  // namespace linnet::cuda
