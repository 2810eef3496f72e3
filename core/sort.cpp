#include "core/sort.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <vector>

#include "core/cuda/backend.h"
#include "core/cuda/emulation/submit.h"
#include "core/cuda/sort.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kGrain = 4096;  // keys that are worth a thread

// The compared key: for f32 its bits, remapped so that they increase with the value.
template <typename T>
T rank_of(T key) {
  return key;
}
uint32_t rank_of(float key) {
  const auto bits = std::bit_cast<uint32_t>(key == 0 ? 0.0f : key);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

template <typename T>
void sort_typed(const Tensor& keys, const Tensor& sorted, const Tensor& order) {
  const int64_t columns = keys.size(-1), rows = keys.elements() / columns;
  const T* from = keys.data<T>();
  T* to = sorted.data<T>();
  auto* place = order.data<int32_t>();
  parallel_for(rows, std::max<int64_t>(1, kGrain / columns), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* key = from + row * columns;
      int32_t* first = place + row * columns;
      std::iota(first, first + columns, 0);
      std::stable_sort(first, first + columns,
                       [key](int32_t a, int32_t b) { return rank_of(key[a]) < rank_of(key[b]); });
      std::transform(first, first + columns, to + row * columns,
                     [key](int32_t at) { return key[at]; });
    }
  });
}

void sort_on_host(const Tensor& keys, const Tensor& sorted, const Tensor& order) {
  switch (keys.dtype()) {
    case DType::f32:
      return sort_typed<float>(keys, sorted, order);
    case DType::i32:
      return sort_typed<int32_t>(keys, sorted, order);
    default:
      return sort_typed<int64_t>(keys, sorted, order);
  }
}

// The emulated device's memory is the host's.
[[maybe_unused]] Tensor host_view(const Tensor& t) {
  return Tensor::borrowed(t.raw(), t.shape(), t.dtype());
}

}  // namespace

void sort_rows(const Tensor& keys, const Tensor& sorted, const Tensor& order) {
  const DType dtype = keys.dtype();
  require(dtype == DType::f32 || dtype == DType::i32 || dtype == DType::i64,
          "sort: keys must be f32, i32 or i64, got ", name_of(dtype));
  require(keys.shape().rank() > 0 && sorted.shape() == keys.shape() && sorted.dtype() == dtype &&
              order.shape() == keys.shape() && order.dtype() == DType::i32 &&
              sorted.device() == keys.device() && order.device() == keys.device(),
          "sort: keys ", keys.shape(), " ", name_of(dtype), " need sorted keys alike and an i32 ",
          "order beside them, got ", sorted.shape(), " ", name_of(sorted.dtype()), " and ",
          order.shape(), " ", name_of(order.dtype()));
  require(keys.elements() <= std::numeric_limits<int32_t>::max(), "sort: ", keys.elements(),
          " keys are more than the ", std::numeric_limits<int32_t>::max(),
          " of one call; make the micro-batch or the context smaller");
  if (keys.elements() == 0) return;
  if (!on_cuda(keys)) return sort_on_host(keys, sorted, order);
  if constexpr (kCudaBackend == CudaBackend::on) {
    cuda::sort_rows(keys, sorted, order);
  } else if constexpr (kCuda) {
    emulation::submit([from = host_view(keys), to = host_view(sorted), place = host_view(order)] {
      sort_on_host(from, to, place);
    });
  }
}

}  // namespace linnet
