// Element-wise operations and sums.
#include "core/cuda/elementwise.h"

#include <cstring>

#include "core/cuda/block_reduce.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"
#include "core/cuda/vectors.h"

namespace linnet::cuda {
namespace {

// to[i] = from[i] between the two types of activations and weights.
template <typename To, typename From>
struct Convert {
  const From* from;
  To* to;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[count];
    load_vector(from + i, values);
    store_vector(to + i, values);
  }
};
template <typename To, typename From>
void convert_typed(const Tensor& from, const Tensor& to) {
  const Convert<To, From> f{pointer<From>(from), pointer<To>(to)};
  for_each_vector("convert", to.elements(), f, f.from, f.to);
}

// Element i becomes `value`, an i64 or a double that holds any element of its kind exactly; bool is
// "not zero".
template <typename Value>
__device__ void store_as(DType dtype, void* to, int64_t i, Value value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(to)[i] = static_cast<float>(value);
      return;
    case DType::f64:
      static_cast<double*>(to)[i] = static_cast<double>(value);
      return;
    case DType::bf16:
      static_cast<kernel_bf16*>(to)[i] = __float2bfloat16(static_cast<float>(value));
      return;
    case DType::i32:
      static_cast<int32_t*>(to)[i] = static_cast<int32_t>(value);
      return;
    case DType::i64:
      static_cast<int64_t*>(to)[i] = static_cast<int64_t>(value);
      return;
    case DType::u8:
      static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(value);
      return;
    case DType::boolean:
      static_cast<bool*>(to)[i] = value != Value{};
      return;
  }
}

// The other pairs of types, which no step of training converts: one kernel for all of them.
void convert_any(const Tensor& from, const Tensor& to) {
  const void* in = from.raw();
  void* out = to.raw();
  const DType source = from.dtype(), target = to.dtype();
  for_each("convert", to.elements(), [=] __device__(int64_t i) {
    switch (source) {
      case DType::f32:
        return store_as<double>(target, out, i, static_cast<const float*>(in)[i]);
      case DType::f64:
        return store_as<double>(target, out, i, static_cast<const double*>(in)[i]);
      case DType::bf16:
        return store_as<double>(target, out, i,
                                __bfloat162float(static_cast<const kernel_bf16*>(in)[i]));
      case DType::i32:
        return store_as<int64_t>(target, out, i, static_cast<const int32_t*>(in)[i]);
      case DType::i64:
        return store_as<int64_t>(target, out, i, static_cast<const int64_t*>(in)[i]);
      case DType::u8:
        return store_as<int64_t>(target, out, i, static_cast<const uint8_t*>(in)[i]);
      case DType::boolean:
        return store_as<int64_t>(target, out, i, static_cast<const bool*>(in)[i] ? 1 : 0);
    }
  });
}

void check_same(const char* function, const Tensor& a, const Tensor& b) {
  require(a.shape() == b.shape(), function, ": shapes ", a.shape(), " and ", b.shape(), " differ");
}

void add_f64_into(const Tensor& to, const Tensor& from) {
  double* x = pointer<double>(to);
  const double* y = pointer<double>(from);
  for_each("add_into", to.elements(), [x, y] __device__(int64_t i) { x[i] += y[i]; });
}

template <typename T>
struct AddInto {
  T* to;
  StoredValues from;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[count], others[count];
    load_vector(to + i, values);
    if (from.narrow) {
      load_vector(static_cast<const kernel_bf16*>(from.data) + i, others);
    } else {
      load_vector(static_cast<const float*>(from.data) + i, others);
    }
#pragma unroll
    for (int j = 0; j < count; ++j) values[j] += others[j];
    store_vector(to + i, values);
  }
};
template <typename T>
void add_into_typed(const Tensor& to, const Tensor& from) {
  const AddInto<T> f{pointer<T>(to), stored_values(from)};
  for_each_vector("add_into", to.elements(), f, f.to, static_cast<const char*>(f.from.data));
}

template <typename T>
struct Add {
  const T *a, *b;
  T* to;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[count], others[count];
    load_vector(a + i, values);
    load_vector(b + i, others);
#pragma unroll
    for (int j = 0; j < count; ++j) values[j] += others[j];
    store_vector(to + i, values);
  }
};
template <typename T>
void add_typed(const Tensor& a, const Tensor& b, const Tensor& to) {
  const Add<T> f{pointer<T>(a), pointer<T>(b), pointer<T>(to)};
  for_each_vector("add", to.elements(), f, f.a, f.b, f.to);
}

// By `factor` or, unless null, by `in_memory`, a scalar in device memory.
template <typename T>
struct Scale {
  T* to;
  float factor;
  const double* in_memory;

  template <int count>
  __device__ __forceinline__ void at(int64_t i) const {
    const float by = in_memory != nullptr ? static_cast<float>(*in_memory) : factor;
    float values[count];
    load_vector(to + i, values);
#pragma unroll
    for (int j = 0; j < count; ++j) values[j] *= by;
    store_vector(to + i, values);
  }
};
template <typename T>
void scale_typed(const Tensor& to, float factor, const double* in_memory) {
  const Scale<T> f{pointer<T>(to), factor, in_memory};
  for_each_vector("scale_into", to.elements(), f, f.to);
}

constexpr int kColumns = 32;    // per block
constexpr int kRowThreads = 8;  // threads that share a column

struct ColumnSums {
  __host__ __device__ explicit ColumnSums(SharedArena& arena)
      : partial(arena.take<float[kColumns]>(kRowThreads)) {}
  float (*partial)[kColumns];
};

// partial [chunks, columns]: the sums over the rows of each chunk.
template <typename T>
__global__ void sum_row_chunks(const T* from, int64_t rows, int64_t columns, int64_t chunk,
                               float* partial) {
  SharedArena arena;
  const ColumnSums shared(arena);
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * chunk;
  const int64_t end = begin + chunk < rows ? begin + chunk : rows;
  float total = 0;
  if (column < columns) {
    for (int64_t r = begin + threadIdx.y; r < end; r += kRowThreads) {
      total += load(from + r * columns + column);
    }
  }
  shared.partial[threadIdx.y][threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.y > 0 || column >= columns) return;
  for (int t = 1; t < kRowThreads; ++t) total += shared.partial[t][threadIdx.x];
  partial[static_cast<int64_t>(blockIdx.y) * columns + column] = total;
}

void sum_chunks_into(const Tensor& partial, int64_t chunks, const Tensor& row, bool accumulate) {
  const float* from = pointer<float>(partial);
  const StoredResults to = stored_results(row);
  const int64_t columns = row.elements();
  for_each("sum_rows", columns, [=] __device__(int64_t c) {
    float total = accumulate ? to.at(c) : 0.0f;
    for (int64_t k = 0; k < chunks; ++k) total += from[k * columns + c];
    to.put(c, total);
  });
}

constexpr int kSumThreads = 256;
constexpr int64_t kSumBlock = 8192;  // elements per block

struct SumScratch {
  __host__ __device__ explicit SumScratch(SharedArena& arena) : values(arena.take<double>(33)) {}
  double* values;
};

// partial[block] = the sum (of squares) of one block of elements.
template <typename T>
__global__ void sum_blocks(const T* from, int64_t count, bool squares, double* partial) {
  SharedArena arena;
  const SumScratch scratch(arena);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSumBlock;
  const int64_t end = begin + kSumBlock < count ? begin + kSumBlock : count;
  double total = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kSumThreads) {
    const double value = static_cast<double>(load(from + i));
    total += squares ? value * value : value;
  }
  total = block_sum(total, scratch.values);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

template <typename T>
Tensor partial_sums(const Tensor& t, bool squares) {
  const int64_t blocks = (t.elements() + kSumBlock - 1) / kSumBlock;
  const Tensor partial = Tensor::empty({blocks}, DType::f64, t.device());
  launch(
      {"sum_blocks", blocks_for(t.elements(), kSumBlock), kSumThreads, shared_bytes<SumScratch>()},
      sum_blocks<T>, pointer<T>(t), t.elements(), squares, pointer<double>(partial));
  return partial;
}

Tensor partial_sums_of(const Tensor& t, bool squares) {
  if (t.dtype() == DType::f64) return partial_sums<double>(t, squares);
  if (t.dtype() == DType::bf16) return partial_sums<kernel_bf16>(t, squares);
  return partial_sums<float>(t, squares);
}

void reduce(const Tensor& t, bool squares, const Tensor& to) {
  require(to.elements() == 1, "sum: expected one element, got ", to.shape());
  Tensor partial = partial_sums_of(t, squares);
  while (partial.elements() > 1) partial = partial_sums<double>(partial, false);
  if (partial.elements() == 0) return to.set_zero();
  to.copy_from(partial.reshape(to.shape()));
}

}  // namespace

void convert(const Tensor& from, const Tensor& to) {
  check_same("convert", from, to);
  if (from.dtype() == DType::f32 && to.dtype() == DType::bf16) {
    return convert_typed<kernel_bf16, float>(from, to);
  }
  if (from.dtype() == DType::bf16 && to.dtype() == DType::f32) {
    return convert_typed<float, kernel_bf16>(from, to);
  }
  convert_any(from, to);
}

void fill(const Tensor& t, const void* value) {
  // Elements as the bits of their size.
  uint64_t bits = 0;
  const size_t size = size_of(t.dtype());
  std::memcpy(&bits, value, size);
  void* to = t.raw();
  for_each("fill", t.elements(), [=] __device__(int64_t i) {
    switch (size) {
      case 1:
        static_cast<uint8_t*>(to)[i] = static_cast<uint8_t>(bits);
        return;
      case 2:
        static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(bits);
        return;
      case 4:
        static_cast<uint32_t*>(to)[i] = static_cast<uint32_t>(bits);
        return;
      default:
        static_cast<uint64_t*>(to)[i] = bits;
    }
  });
}

void fill_with_nan(const Tensor& t) {
  fill_bytes(t.raw(), 0xFF, t.bytes());
}

void add_into(const Tensor& to, const Tensor& from) {
  check_same("add_into", to, from);
  if (to.dtype() == DType::f64 && from.dtype() == DType::f64) return add_f64_into(to, from);
  require(from.dtype() == DType::f32 || from.dtype() == DType::bf16,
          "add_into: expected f32 or bf16, got ", name_of(from.dtype()));
  dispatch(to.dtype(), [&](auto zero) { add_into_typed<decltype(zero)>(to, from); });
}

void add(const Tensor& a, const Tensor& b, const Tensor& to) {
  check_same("add", a, b);
  check_same("add", a, to);
  dispatch(to.dtype(), [&](auto zero) { add_typed<decltype(zero)>(a, b, to); });
}

void scale_into(const Tensor& to, double factor) {
  dispatch(to.dtype(), [&](auto zero) {
    scale_typed<decltype(zero)>(to, static_cast<float>(factor), nullptr);
  });
}

void scale_into(const Tensor& to, const Tensor& factor) {
  require(factor.elements() == 1, "scale_into: expected one factor, got ", factor.shape());
  dispatch(to.dtype(),
           [&](auto zero) { scale_typed<decltype(zero)>(to, 1, pointer<double>(factor)); });
}

void add_row_into(const Tensor& to, const Tensor& row) {
  require(row.elements() == to.size(-1), "add_row_into: row ", row.shape(), " for ", to.shape());
  const StoredResults x = stored_results(to);
  const StoredValues r = stored_values(row);
  const int64_t columns = row.elements();
  for_each("add_row_into", to.elements(),
           [=] __device__(int64_t i) { x.put(i, x.at(i) + r.at(i % columns)); });
}

void sum_rows(const Tensor& from, const Tensor& row, bool accumulate) {
  const int64_t columns = from.size(-1);
  require(row.elements() == columns, "sum_rows: row ", row.shape(), " for ", from.shape());
  const int64_t rows = columns == 0 ? 0 : from.elements() / columns;
  // Enough chunks to fill a GPU, each long enough to be worth a block.
  const int64_t chunk = std::max<int64_t>(64, (rows + 63) / 64);
  const int64_t chunks = (rows + chunk - 1) / chunk;
  const Tensor partial = Tensor::empty({chunks, columns}, DType::f32, from.device());
  dispatch(from.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch({"sum_row_chunks", dim3(blocks_for(columns, kColumns), static_cast<unsigned>(chunks)),
            dim3(kColumns, kRowThreads), shared_bytes<ColumnSums>()},
           sum_row_chunks<T>, pointer<T>(from), rows, columns, chunk, pointer<float>(partial));
  });
  require(row.dtype() == DType::f32 || row.dtype() == DType::bf16,
          "sum_rows: expected a row of f32 or bf16, got ", name_of(row.dtype()));
  sum_chunks_into(partial, chunks, row, accumulate);
}

void sum(const Tensor& t, const Tensor& to) {
  reduce(t, false, to);
}

void sum_of_squares(const Tensor& t, const Tensor& to) {
  reduce(t, true, to);
}

}  // namespace linnet::cuda
