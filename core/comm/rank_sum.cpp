#include "core/comm/rank_sum.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "core/error.h"
#include "core/threads.h"

namespace linnet {
namespace {

constexpr int64_t kBlock = 1024;         // sums that stay in the first cache
constexpr int64_t kGrain = 32 * kBlock;  // elements that are worth a thread

// What the elements of T are added in. Signed integers would overflow.
template <typename T>
struct SumOf {
  using type = Compute<T>;
};
template <>
struct SumOf<int32_t> {
  using type = uint32_t;
};
template <>
struct SumOf<int64_t> {
  using type = uint64_t;
};

template <typename T>
void sum_elements(const std::vector<const void*>& sources, void* into, int64_t count) {
  using Sum = typename SumOf<T>::type;
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    std::array<Sum, kBlock> sums;
    for (int64_t block = begin; block < end; block += kBlock) {
      const int64_t length = std::min(kBlock, end - block);
      const T* first = static_cast<const T*>(sources.front()) + block;
      for (int64_t i = 0; i < length; ++i) sums[i] = static_cast<Sum>(first[i]);
      for (size_t source = 1; source < sources.size(); ++source) {
        const T* next = static_cast<const T*>(sources[source]) + block;
        for (int64_t i = 0; i < length; ++i) sums[i] += static_cast<Sum>(next[i]);
      }
      T* to = static_cast<T*>(into) + block;
      for (int64_t i = 0; i < length; ++i) to[i] = static_cast<T>(sums[i]);
    }
  });
}

}  // namespace

void sum_in_order(const std::vector<const void*>& sources, void* into, int64_t count, DType dtype) {
  switch (dtype) {
    case DType::f32:
      return sum_elements<float>(sources, into, count);
    case DType::f64:
      return sum_elements<double>(sources, into, count);
    case DType::bf16:
      return sum_elements<bf16>(sources, into, count);
    case DType::i32:
      return sum_elements<int32_t>(sources, into, count);
    case DType::i64:
      return sum_elements<int64_t>(sources, into, count);
    default:
      throw Error(Cause{ErrorCode::wrong_type}, concat("there are no sums of ", name_of(dtype)));
  }
}

}  // namespace linnet
