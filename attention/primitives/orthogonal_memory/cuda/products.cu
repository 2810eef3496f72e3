// Products of tokens with the bases of their heads, and sums of outer products over tokens.
#include "attention/primitives/orthogonal_memory/cuda/kernels.h"
#include "core/cuda/kernel.h"

namespace linnet::cuda::orthogonal_memory_detail {
namespace {

constexpr int kTile = 32;       // rows, columns and depth of a tile
constexpr int kRowThreads = 8;  // threads that share a column
constexpr int kRowsOfThread = kTile / kRowThreads;
constexpr int64_t kRuns = 64;  // at most, of tokens

struct Tiles {
  __host__ __device__ explicit Tiles(SharedArena& arena)
      : left(arena.take<float[kTile + 1]>(kTile)), right(arena.take<float[kTile + 1]>(kTile)) {}
  float (*left)[kTile + 1];
  float (*right)[kTile + 1];
};

// A matrix of a token's heads: token t, head h at data + t * token_stride + h * head_stride.
template <typename T>
struct Rows {
  T* data;
  int64_t token_stride, head_stride;
  const uint8_t* mask;  // masked tokens are 0, never looked at

  __device__ float at(int64_t token, int64_t head, int64_t c) const {
    if (mask != nullptr && mask[token] == 0) return 0.0f;
    return load(data + token * token_stride + head * head_stride + c);
  }
};

// Element (k, n) of head h's matrix at data + h * head_stride + k * depth_stride + n * stride.
struct Matrix {
  const float* data;
  int64_t head_stride, depth_stride, stride;
};

// out[token, head, n] = sum_k in[token, head, k] matrix[k, n].
template <typename In, typename Out>
__global__ void orthogonal_memory_product(Rows<const In> in, Matrix matrix, Rows<Out> out,
                                          int64_t tokens, int64_t depth, int64_t columns) {
  SharedArena arena;
  const Tiles tiles(arena);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile, head = blockIdx.z;
  const int64_t column = static_cast<int64_t>(blockIdx.y) * kTile + threadIdx.x;
  const float* values = matrix.data + head * matrix.head_stride;
  float sums[kRowsOfThread] = {};
  for (int64_t begin = 0; begin < depth; begin += kTile) {
    for (int i = static_cast<int>(threadIdx.y); i < kTile; i += kRowThreads) {
      const int64_t token = first + i, k = begin + threadIdx.x, row = begin + i;
      tiles.left[i][threadIdx.x] = token < tokens && k < depth ? in.at(token, head, k) : 0.0f;
      tiles.right[i][threadIdx.x] = row < depth && column < columns
                                        ? values[row * matrix.depth_stride + column * matrix.stride]
                                        : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < kTile; ++k) {
      for (int i = 0; i < kRowsOfThread; ++i) {
        sums[i] += tiles.left[threadIdx.y + i * kRowThreads][k] * tiles.right[k][threadIdx.x];
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int64_t token = first + threadIdx.y + i * kRowThreads;
    if (token >= tokens || column >= columns) continue;
    store(out.data + token * out.token_stride + head * out.head_stride + column, sums[i]);
  }
}

// out[run][head, l, c] = sum over the run's tokens of left[token, head, l] right[token, head, c].
template <typename T>
__global__ void orthogonal_memory_basis_gradients(Rows<const float> left, Rows<const T> right,
                                                  const __grid_constant__ Problem p, int64_t tokens,
                                                  int64_t run_tokens, int column_tiles,
                                                  float* out) {
  SharedArena arena;
  const Tiles tiles(arena);
  const int64_t head = blockIdx.z, begin = static_cast<int64_t>(blockIdx.y) * run_tokens;
  const int64_t end = min(tokens, begin + run_tokens);
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) / column_tiles * kTile;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) % column_tiles * kTile;
  const int64_t row = first_row + threadIdx.x, column = first_column + threadIdx.x;
  float sums[kRowsOfThread] = {};
  for (int64_t t = begin; t < end; t += kTile) {
    for (int i = static_cast<int>(threadIdx.y); i < kTile; i += kRowThreads) {
      const bool inside = t + i < end;
      tiles.left[i][threadIdx.x] = inside && row < p.rank ? left.at(t + i, head, row) : 0.0f;
      tiles.right[i][threadIdx.x] =
          inside && column < p.width ? right.at(t + i, head, column) : 0.0f;
    }
    __syncthreads();
    for (int k = 0; k < kTile; ++k) {
      for (int i = 0; i < kRowsOfThread; ++i) {
        sums[i] += tiles.left[k][threadIdx.y + i * kRowThreads] * tiles.right[k][threadIdx.x];
      }
    }
    __syncthreads();
  }
  float* matrix = out + blockIdx.y * p.heads * p.rank * p.width + head * p.basis_head_stride;
  for (int i = 0; i < kRowsOfThread; ++i) {
    const int64_t l = first_row + threadIdx.y + i * kRowThreads;
    if (l < p.rank && column < p.width) {
      matrix[l * p.basis_row_stride + column] = sums[i];
    }
  }
}

unsigned tiles_of(int64_t count) {
  return static_cast<unsigned>((count + kTile - 1) / kTile);
}

template <typename In, typename Out>
void multiply(const Rows<const In>& in, const Matrix& matrix, const Rows<Out>& out, int64_t tokens,
              int64_t heads, int64_t depth, int64_t columns) {
  launch({"orthogonal_memory_product",
          dim3(blocks_for(tokens, kTile), tiles_of(columns), static_cast<unsigned>(heads)),
          dim3(kTile, kRowThreads), shared_bytes<Tiles>()},
         orthogonal_memory_product<In, Out>, in, matrix, out, tokens, depth, columns);
}

// Tokens [B,T,heads,width] as rows; one head serves all where there is only one.
template <typename T>
Rows<T> rows_of(const Tensor& x, const uint8_t* mask) {
  const int64_t heads = x.size(2), width = x.size(3);
  return {pointer<T>(x), heads * width, heads == 1 ? 0 : width, mask};
}

}  // namespace

Tensor project(const Problem& p, const Tensor& x, const uint8_t* mask) {
  const Tensor out = Tensor::empty({x.size(0), x.size(1), p.heads, p.rank}, DType::f32, x.device());
  dispatch(x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const Matrix matrix{p.basis, p.basis_head_stride, 1, p.basis_row_stride};
    multiply<T, float>(rows_of<const T>(x, mask), matrix, rows_of<float>(out, nullptr),
                       x.size(0) * x.size(1), p.heads, p.width, p.rank);
  });
  return out;
}

Tensor project_codes(const Problem& p, const Tensor& f) {
  if (p.memories == p.heads) return project(p, f, p.code_mask);
  // One memory for all heads: a row of the basis and a token's codes of all heads are one vector.
  Problem joined = p;
  joined.heads = 1;
  joined.width = p.heads * p.width;
  return project(joined, f.reshape({f.size(0), f.size(1), 1, joined.width}), p.code_mask);
}

void expand(const Problem& p, const Tensor& x, const uint8_t* mask, const Tensor& out) {
  const Matrix matrix{p.basis, p.basis_head_stride, p.basis_row_stride, 1};
  dispatch(out.dtype(), [&](auto zero) {
    using T = decltype(zero);
    multiply<float, T>(rows_of<const float>(x, mask), matrix, rows_of<T>(out, nullptr),
                       x.size(0) * x.size(1), p.heads, p.rank, p.width);
  });
}

Tensor basis_gradients(const Problem& p, const Tensor& left, const Tensor& right,
                       const uint8_t* mask) {
  const int64_t tokens = left.size(0) * left.size(1);
  const int64_t run_tokens = std::max<int64_t>(8 * kTile, (tokens + kRuns - 1) / kRuns);
  const int64_t runs = (tokens + run_tokens - 1) / run_tokens;
  const Tensor out = Tensor::empty({runs, p.heads * p.rank * p.width}, DType::f32, left.device());
  const unsigned column_tiles = tiles_of(p.width);
  dispatch(right.dtype(), [&](auto zero) {
    using T = decltype(zero);
    launch({"orthogonal_memory_basis_gradients",
            dim3(tiles_of(p.rank) * column_tiles, static_cast<unsigned>(runs),
                 static_cast<unsigned>(p.heads)),
            dim3(kTile, kRowThreads), shared_bytes<Tiles>()},
           orthogonal_memory_basis_gradients<T>, rows_of<const float>(left, nullptr),
           rows_of<const T>(right, mask), p, tokens, run_tokens, static_cast<int>(column_tiles),
           pointer<float>(out));
  });
  return out;
}

}  // namespace linnet::cuda::orthogonal_memory_detail
