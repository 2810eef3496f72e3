// Element-wise operations and sums.
#include "core/cuda/elementwise.h"

#include <cstring>

#include "core/cuda/block_reduce.h"
#include "core/cuda/column_sums.h"
#include "core/cuda/for_each.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

// to[i] = from[i] between the two types of activations and weights.
struct Convert {
  const void* from;
  void* to;

  template <typename From, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    using To = std::conditional_t<std::is_same_v<From, float>, kernel_bf16, float>;
    float values[count];
    load_vector(elements<From>(from, i), values);
    store_vector(elements<To>(to, i), values);
  }
};

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

// z = first x + second y; first x where y is null. y may have another type than x and z.
struct WeightedSum {
  const void* x;
  StoredValues y;
  void* z;
  float first, second;
  const double* in_memory;  // unless null, what stands for `first`: a scalar of the device

  template <typename T, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    if (y.data == nullptr) return scale<T, count>(i);
    y.narrow ? sum<T, kernel_bf16, count>(i) : sum<T, float, count>(i);
  }

 private:
  template <typename T, int count>
  __device__ __forceinline__ void scale(int64_t i) const {
    const float by = in_memory != nullptr ? static_cast<float>(*in_memory) : first;
    float values[count];
    load_vector(elements<T>(x, i), values);
#pragma unroll
    for (int j = 0; j < count; ++j) values[j] *= by;
    store_vector(elements<T>(z, i), values);
  }
  template <typename T, typename Y, int count>
  __device__ __forceinline__ void sum(int64_t i) const {
    float xs[count], ys[count];
    load_vector(elements<T>(x, i), xs);
    load_vector(elements<Y>(y.data, i), ys);
#pragma unroll
    for (int j = 0; j < count; ++j) xs[j] = first * xs[j] + second * ys[j];
    store_vector(elements<T>(z, i), xs);
  }
};

void add_weighted(const char* what, const Tensor& a, double alpha, const Tensor& in_memory,
                  const Tensor& b, double beta, const Tensor& to) {
  const DType dtype = to.dtype();
  const WeightedSum f{array_of(dtype, a),       stored_values(b),
                      array_of(dtype, to),      static_cast<float>(alpha),
                      static_cast<float>(beta), pointer_or_null<const double>(in_memory)};
  for_each_vector(what, dtype, to.elements(), are_aligned(f.x, f.y.data, f.z), f);
}

// The same row added to every one of x.
struct AddRow {
  void* x;
  const void* row;
  int64_t columns;

  template <typename T, int count>
  __device__ __forceinline__ void at(int64_t i) const {
    float values[count], plus[count];
    load_vector(elements<T>(x, i), values);
    load_repeated(elements<T>(row, 0), columns, i, plus);
#pragma unroll
    for (int j = 0; j < count; ++j) values[j] += plus[j];
    store_vector(elements<T>(x, i), values);
  }
};

// partial [chunks, columns]: the sums over the rows of each chunk.
struct RowChunks {
  const void* from;
  int64_t rows, columns, chunk;
  float* partial;
};
template <typename T, int count>
__device__ __forceinline__ void sum_row_chunk(const RowChunks& a, const ColumnSums<1>& shared) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kColumnThreads * count;
  const int64_t column = first + threadIdx.x * count;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * a.chunk;
  const int64_t end = min(begin + a.chunk, a.rows);
  float totals[1][count] = {};
  if (column < a.columns) {
#pragma unroll 4
    for (int64_t r = begin + threadIdx.y; r < end; r += kRowThreads) {
      float values[count];
      load_vector(elements<T>(a.from, r * a.columns + column), values);
#pragma unroll
      for (int i = 0; i < count; ++i) totals[0][i] += values[i];
    }
  }
  float* const to[] = {a.partial + static_cast<int64_t>(blockIdx.y) * a.columns};
  shared.write(totals, first, a.columns, to);
}
__global__ void sum_row_chunks(RowChunks a, bool narrow, bool in_vectors) {
  SharedArena arena;
  const ColumnSums<1> shared(arena, in_vectors);
  with_elements(narrow, in_vectors, [&](auto zero, auto vectors) {
    sum_row_chunk<decltype(zero), vectors() ? 8 : 1>(a, shared);
  });
}

void sum_chunks_into(const Tensor& partial, int64_t chunks, const Tensor& row, bool accumulate) {
  const float* from = pointer<float>(partial);
  const StoredResults to = stored_results(row);
  const int64_t columns = row.elements();
  for_each("sum_rows", columns, [=] __device__(int64_t c) {
    float total = accumulate ? to.at(c) : 0.0f;
#pragma unroll 8
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

// This thread's share of a block's elements.
template <typename T>
__device__ __forceinline__ double share_of(const T* from, int64_t count, bool in_vectors,
                                           bool squares) {
  double total = 0;
  visit_row<T, kSumThreads>(count, threadIdx.x, in_vectors, [&](int64_t i, auto together) {
    float values[together()];
    load_vector(from + i, values);
#pragma unroll
    for (int j = 0; j < together(); ++j) {
      const auto value = static_cast<double>(values[j]);
      total += squares ? value * value : value;
    }
  });
  return total;
}

// partial[block] = the sum (of squares) of one block of elements.
__global__ void sum_blocks(const void* from, DType dtype, int64_t count, bool in_vectors,
                           bool squares, double* partial) {
  SharedArena arena;
  const SumScratch scratch(arena);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSumBlock;
  const int64_t here = min(kSumBlock, count - begin);
  double total = 0;
  if (dtype == DType::bf16) {
    total = share_of(elements<kernel_bf16>(from, begin), here, in_vectors, squares);
  } else if (dtype == DType::f32) {
    total = share_of(elements<float>(from, begin), here, in_vectors, squares);
  } else {
    for (int64_t i = threadIdx.x; i < here; i += kSumThreads) {
      const double value = *elements<double>(from, begin + i);
      total += squares ? value * value : value;
    }
  }
  total = block_sum(total, scratch.values);
  if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

Tensor partial_sums(const Tensor& t, bool squares) {
  const bool wide = t.dtype() == DType::f64;
  const void* from = wide ? pointer<double>(t) : array_of(t.dtype(), t);
  const int64_t blocks = (t.elements() + kSumBlock - 1) / kSumBlock;
  const Tensor partial = Tensor::empty({blocks}, DType::f64, t.device());
  const bool in_vectors = reads_vectors<kernel_bf16>(t.elements(), from);
  launch(
      {"sum_blocks", blocks_for(t.elements(), kSumBlock), kSumThreads, shared_bytes<SumScratch>()},
      sum_blocks, from, t.dtype(), t.elements(), in_vectors, squares, pointer<double>(partial));
  return partial;
}

void reduce(const Tensor& t, bool squares, const Tensor& to) {
  require(to.elements() == 1, "sum: expected one element, got ", to.shape());
  Tensor partial = partial_sums(t, squares);
  while (partial.elements() > 1) partial = partial_sums(partial, false);
  if (partial.elements() == 0) return to.set_zero();
  to.copy_from(partial.reshape(to.shape()));
}

}  // namespace

void convert(const Tensor& from, const Tensor& to) {
  check_same("convert", from, to);
  const bool narrows = from.dtype() == DType::f32 && to.dtype() == DType::bf16;
  if (narrows || (from.dtype() == DType::bf16 && to.dtype() == DType::f32)) {
    const Convert f{array_of(from.dtype(), from), array_of(to.dtype(), to)};
    return for_each_vector("convert", from.dtype(), to.elements(), are_aligned(f.from, f.to), f);
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
  add_weighted("add_into", to, 1, {}, from, 1, to);
}

void add(const Tensor& a, const Tensor& b, const Tensor& to) {
  check_same("add", a, b);
  check_same("add", a, to);
  weighted_sum(a, 1, b, 1, to);
}

void weighted_sum(const Tensor& a, double alpha, const Tensor& b, double beta, const Tensor& to) {
  require(!b.defined() || b.dtype() == to.dtype(), "weighted_sum: expected ", name_of(to.dtype()),
          ", got ", name_of(b.dtype()));
  add_weighted("weighted_sum", a, alpha, {}, b, beta, to);
}

void scale_into(const Tensor& to, double factor) {
  add_weighted("scale_into", to, factor, {}, {}, 0, to);
}

void scale_into(const Tensor& to, const Tensor& factor) {
  require(factor.elements() == 1, "scale_into: expected one factor, got ", factor.shape());
  add_weighted("scale_into", to, 1, factor, {}, 0, to);
}

void add_row_into(const Tensor& to, const Tensor& row) {
  require(row.elements() == to.size(-1), "add_row_into: row ", row.shape(), " for ", to.shape());
  const AddRow f{array_of(to.dtype(), to), array_of(to.dtype(), row), row.elements()};
  for_each_vector("add_row_into", to.dtype(), to.elements(), are_aligned(f.x), f);
}

void sum_rows(const Tensor& from, const Tensor& row, bool accumulate) {
  const int64_t columns = from.size(-1);
  require(row.elements() == columns, "sum_rows: row ", row.shape(), " for ", from.shape());
  const int64_t rows = columns == 0 ? 0 : from.elements() / columns;
  const void* data = array_of(from.dtype(), from);
  const bool in_vectors = columns % 8 == 0 && are_aligned(data);
  // Enough chunks to fill a GPU, each long enough to be worth a block.
  const int64_t most = in_vectors ? 128 : 64;
  const int64_t chunk = std::max<int64_t>(64, (rows + most - 1) / most);
  const int64_t chunks = (rows + chunk - 1) / chunk;
  const Tensor partial = Tensor::empty({chunks, columns}, DType::f32, from.device());
  const RowChunks a{data, rows, columns, chunk, pointer<float>(partial)};
  launch({"sum_row_chunks",
          dim3(blocks_for(columns, columns_of_block(in_vectors)), static_cast<unsigned>(chunks)),
          dim3(kColumnThreads, kRowThreads), shared_bytes<ColumnSums<1>>(in_vectors)},
         sum_row_chunks, a, from.dtype() == DType::bf16, in_vectors);
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
