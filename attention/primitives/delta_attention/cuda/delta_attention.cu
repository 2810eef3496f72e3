// The delta rule on a device: four scans of a state along time, by one kernel, and the gradients
// that are sums over the values of a token.
//
// With X_t = v_t - a_t S_{t-1}^T k_t, u_t = beta_t X_t, and G_t the gradient of S_t, of which
// everything from token t on is in:
//
// forward in time, e = X^T probe, X = a_t X + written right^T, read = X^T extra:
//   S [K,V]: probe k gives X_t = v - e; writes k (beta X_t)^T; reads y with q
//   S^T [V,K]: probe dE gives the first term of dk; writes u k^T; reads dq with dy
// backward in time, X = a_{t+1} X + extra side^T, e = X^T probe, X += written right^T:
//   G [K,V]: adds q dy^T; probe k gives D_t = -e; writes k (beta D_t)^T
//   G^T [V,K]: adds dy q^T; probe u gives the second term of dk; writes dE k^T
//
// with dE_t = beta_t D_t, the gradient of a_t S_{t-1}^T k_t; dv = -dE and dbeta_t = -D_t . X_t.
#include "attention/primitives/delta_attention/cuda/delta_attention.h"

#include "core/cuda/block_reduce.h"
#include "core/cuda/mask.h"
#include "core/cuda/stored_values.h"

namespace linnet::cuda {
namespace {

constexpr int kColumns = 16, kParts = 8;  // of a block; threads that share a column of the state
constexpr int kThreads = kColumns * kParts;
constexpr int kBatch = 8;          // tokens whose vectors are loaded together
constexpr int64_t kMaxRows = 512;  // of a state, by the shared memory of a block
constexpr int kTokens = 8;         // of a block of the gradients per token, a warp each

// Vectors [B,T,H,width] times `scale` and, where given, a value of each token and head.
struct Vectors {
  StoredValues data;
  float scale = 1;
  StoredValues factors = {};

  __device__ float at(int64_t token, int width, int i) const {
    const float factor = factors.data == nullptr ? scale : scale * factors.at(token);
    return factor * data.at(token * width + i);
  }
};

// Order and restarts of the tokens of a head: [B,T,H], [B,T], [B,T].
struct Order {
  int64_t time;
  int heads;
  const float* log_decay;
  const uint8_t* mask;
  const int32_t* segments;

  __device__ bool begins(int64_t row, int64_t t) const {
    if (segments == nullptr || t == 0) return false;
    return segments[row * time + t] != segments[row * time + t - 1];
  }
  // What the state before token t is multiplied by; 1 behind the last token.
  __device__ float factor(int64_t row, int64_t t, int head) const {
    if (t >= time) return 1;
    if (begins(row, t)) return 0;
    const int64_t token = row * time + t;
    if (log_decay == nullptr || !is_set(mask, token)) return 1;
    return expf(log_decay[token * heads + head]);
  }
};

// A scan; the table above says which vectors it takes. `solves`: what is written follows from what
// is read, else `right` is written.
struct Scan {
  Order order;
  int rows, columns, tiles;
  bool reverse, solves, transposed;
  Vectors probe, written, extra;  // [rows]
  Vectors right, side;            // [columns]; right.data may be null: zeros
  StoredValues beta;
  const float* state_in;  // [B,H,K,V], where `transposed` [B,H,columns,rows]; may be null
  float* state_out;
  StoredResults first;   // of the probes; data may be null
  const float* addend;   // of the same, may be null
  StoredResults second;  // of the reads, forward in time
  float second_scale;

  __device__ int64_t state_index(int64_t head, int row, int column) const {
    const int64_t at = head * rows * columns;
    return at + (transposed ? column * rows + row : row * columns + column);
  }
};

struct ScanShared {
  __host__ __device__ ScanShared(SharedArena& arena, int rows)
      : state(arena.take<float>(static_cast<size_t>((rows + kParts - 1) / kParts * kThreads))),
        probe(arena.take<float>(static_cast<size_t>(kBatch * rows))),
        written(arena.take<float>(static_cast<size_t>(kBatch * rows))),
        extra(arena.take<float>(static_cast<size_t>(kBatch * rows))),
        right(arena.take<float>(kBatch * kColumns)),
        side(arena.take<float>(kBatch * kColumns)),
        factor(arena.take<float>(kBatch)),
        beta(arena.take<float>(kBatch)) {}
  float* state;                    // [rows / kParts][kThreads]
  float *probe, *written, *extra;  // [kBatch][rows]
  float *right, *side;             // [kBatch][kColumns]
  float *factor, *beta;
};

// The vectors of `count` tokens, zeros where masked.
__device__ void load_batch(const Scan& a, int64_t row, int head, int first_column, int64_t done,
                           int count, const ScanShared& to) {
  const Order& o = a.order;
  const auto time_of = [&](int j) { return a.reverse ? o.time - 1 - done - j : done + j; };
  for (int i = static_cast<int>(threadIdx.x); i < count * a.rows; i += kThreads) {
    const int r = i % a.rows;
    const int64_t at = row * o.time + time_of(i / a.rows), token = at * o.heads + head;
    const bool valid = is_set(o.mask, at);
    to.probe[i] = valid ? a.probe.at(token, a.rows, r) : 0.0f;
    to.written[i] = valid ? a.written.at(token, a.rows, r) : 0.0f;
    to.extra[i] = valid ? a.extra.at(token, a.rows, r) : 0.0f;
  }
  for (int i = static_cast<int>(threadIdx.x); i < count * kColumns; i += kThreads) {
    const int column = first_column + i % kColumns;
    const int64_t at = row * o.time + time_of(i / kColumns), token = at * o.heads + head;
    const bool valid = is_set(o.mask, at) && column < a.columns;
    to.right[i] =
        valid && a.right.data.data != nullptr ? a.right.at(token, a.columns, column) : 0.0f;
    to.side[i] = valid && a.reverse ? a.side.at(token, a.columns, column) : 0.0f;
  }
  for (int j = static_cast<int>(threadIdx.x); j < count; j += kThreads) {
    const int64_t t = time_of(j), at = row * o.time + t;
    to.factor[j] = o.factor(row, a.reverse ? t + 1 : t, head);
    to.beta[j] = a.solves && is_set(o.mask, at) ? a.beta.at(at * o.heads + head) : 0.0f;
  }
}

// The sum over the threads of a column.
__device__ __forceinline__ float column_sum(float x) {
  for (int distance = kParts / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(~0u, x, distance);
  }
  return x;
}

// A block has kColumns columns of one head's state. A thread has every kParts-th row of one column,
// which no other thread touches.
__global__ void delta_attention_scan(const __grid_constant__ Scan a) {
  SharedArena arena;
  const ScanShared shared(arena, a.rows);
  const Order& o = a.order;
  const int thread = static_cast<int>(threadIdx.x), part = thread % kParts, c = thread / kParts;
  const int first_column = static_cast<int>(blockIdx.x % a.tiles) * kColumns;
  const int64_t number = blockIdx.x / a.tiles, row = number / o.heads;
  const int head = static_cast<int>(number % o.heads), column = first_column + c;
  const bool inside = column < a.columns;
  float* state = shared.state + thread;

  for (int r = part, i = 0; r < a.rows; r += kParts, i += kThreads) {
    state[i] =
        inside && a.state_in != nullptr ? a.state_in[a.state_index(number, r, column)] : 0.0f;
  }
  for (int64_t done = 0; done < o.time; done += kBatch) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kBatch), o.time - done));
    __syncthreads();  // the batch before is used up
    load_batch(a, row, head, first_column, done, count, shared);
    __syncthreads();
    for (int j = 0; j < count; ++j) {
      const float *probe = shared.probe + j * a.rows, *written = shared.written + j * a.rows;
      const float *extra = shared.extra + j * a.rows, factor = shared.factor[j];
      const float side = shared.side[j * kColumns + c], right = shared.right[j * kColumns + c];
      float found = 0;
      for (int r = part, i = 0; r < a.rows; r += kParts, i += kThreads) {
        float x = factor == 0 ? 0.0f : factor * state[i];
        if (a.reverse) x += extra[r] * side;
        found += probe[r] * x;
        state[i] = x;
      }
      found = column_sum(found);
      if (a.solves) found = right - found;
      const float update = a.solves ? shared.beta[j] * found : right;
      float read = 0;
      for (int r = part, i = 0; r < a.rows; r += kParts, i += kThreads) {
        const float x = state[i] + written[r] * update;
        if (!a.reverse) read += extra[r] * x;
        state[i] = x;
      }
      read = column_sum(read);
      if (part != 0 || !inside) continue;
      const int64_t at = row * o.time + (a.reverse ? o.time - 1 - done - j : done + j);
      const int64_t place = (at * o.heads + head) * a.columns + column;
      const bool valid = is_set(o.mask, at);
      if (a.addend != nullptr) found += a.addend[place];
      if (a.first.data != nullptr) a.first.put(place, valid ? found : 0.0f);
      if (!a.reverse) a.second.put(place, valid ? a.second_scale * read : 0.0f);
    }
  }
  if (a.state_out == nullptr || !inside) return;
  const float factor = a.reverse && o.time > 0 ? o.factor(row, 0, head) : 1.0f;
  for (int r = part, i = 0; r < a.rows; r += kParts, i += kThreads) {
    a.state_out[a.state_index(number, r, column)] = factor * state[i];
  }
}

// What the gradients of v, beta and log_decay are sums of: D, X and y [B,T,H,V] in f32, v and dy;
// state and its gradient [B,H,K,V] may be null.
struct TokenGradients {
  Order order;
  int64_t values, state_size;
  StoredValues v, beta, dy;
  const float *D, *X, *y, *state, *dstate;
  StoredResults dv, dbeta;
  float* dlog_decay;  // may be null
};

struct TokenShared {
  __host__ __device__ explicit TokenShared(SharedArena& arena)
      : terms(arena.take<float>(kTokens)), scratch(arena.take<float>(33)) {}
  float *terms, *scratch;
};

// One head of a row. The gradient of a log-decay is that of everything that it scales: the inner
// product of the state before its token and the gradient of that state, which changes from token to
// token by v_t . dv_t - y_t . dy_t.
__global__ void delta_attention_token_gradients(const __grid_constant__ TokenGradients a) {
  SharedArena arena;
  const TokenShared shared(arena);
  const Order& o = a.order;
  const int64_t number = blockIdx.x, row = number / o.heads;
  const int head = static_cast<int>(number % o.heads);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  float carried = 0;
  for (int64_t i = threadIdx.x; a.state != nullptr && i < a.state_size; i += blockDim.x) {
    carried += a.state[number * a.state_size + i] * a.dstate[number * a.state_size + i];
  }
  auto sum = static_cast<double>(block_sum(carried, shared.scratch));
  for (int64_t done = 0; done < o.time; done += kTokens) {
    const int64_t mine = done + warp;
    const bool valid = mine < o.time && is_set(o.mask, row * o.time + mine);
    const int64_t token = (row * o.time + mine) * o.heads + head;
    const float beta = valid ? a.beta.at(token) : 0.0f;
    float dbeta = 0, term = 0;
    for (int64_t i = lane; mine < o.time && i < a.values; i += 32) {
      const int64_t at = token * a.values + i;
      const float D = valid ? a.D[at] : 0.0f, dv = -beta * D;
      a.dv.put(at, dv);
      if (!valid) continue;
      dbeta -= D * a.X[at];
      term += a.v.at(at) * dv - a.y[at] * a.dy.at(at);
    }
    dbeta = warp_sum(dbeta);
    term = warp_sum(term);
    if (lane == 0 && mine < o.time) a.dbeta.put(token, dbeta);
    if (a.dlog_decay == nullptr) continue;
    if (lane == 0) shared.terms[warp] = term;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int64_t t = done; t < min(done + kTokens, o.time); ++t) {
        const int64_t at = row * o.time + t;
        if (o.begins(row, t)) sum = 0;
        a.dlog_decay[at * o.heads + head] = is_set(o.mask, at) ? static_cast<float>(sum) : 0.0f;
        sum += static_cast<double>(shared.terms[t - done]);
      }
    }
    __syncthreads();
  }
}

Order order_of(const DeltaAttentionTensors& in) {
  return {in.q.size(1), static_cast<int>(in.q.size(2)), pointer_or_null<const float>(in.log_decay),
          pointer_or_null<const uint8_t>(in.context.key_mask),
          pointer_or_null<const int32_t>(in.context.segments)};
}

// A scan of S and its gradient, or of their transposes.
Scan scan_of(const DeltaAttentionTensors& in, bool reverse, bool transposed) {
  Scan scan{};
  const int64_t K = in.k.size(3), V = in.v.size(3);
  scan.order = order_of(in);
  scan.rows = static_cast<int>(transposed ? V : K);
  scan.columns = static_cast<int>(transposed ? K : V);
  scan.tiles = (scan.columns + kColumns - 1) / kColumns;
  scan.reverse = reverse;
  scan.transposed = transposed;
  scan.solves = !transposed;
  scan.beta = stored_values(in.beta);
  scan.second_scale = 1;
  return scan;
}

void run(const Scan& scan, int64_t rows) {
  launch({"delta_attention_scan", blocks_for(rows * scan.order.heads * scan.tiles, 1), kThreads,
          shared_bytes<ScanShared>(scan.rows)},
         delta_attention_scan, scan);
}

}  // namespace

void delta_attention_forward(const DeltaAttentionTensors& in, const DeltaAttentionSaved& saved,
                             const Tensor& last) {
  const int64_t K = in.k.size(3), V = in.v.size(3);
  require(K > 0 && V > 0 && K <= kMaxRows && V <= kMaxRows,
          "delta attention: the CUDA kernels take ", "keys and values of 1 to ", kMaxRows,
          " elements, got ", K, " and ", V, "; use --device cpu");
  Scan scan = scan_of(in, false, false);
  scan.probe = scan.written = {stored_values(in.k)};
  scan.extra = {stored_values(in.q), static_cast<float>(in.context.query_scale)};
  scan.right = {stored_values(in.v)};
  scan.state_in = pointer_or_null<const float>(in.state);
  scan.state_out = pointer<float>(last);
  scan.first = stored_results(saved.corrections);
  scan.second = stored_results(saved.y);
  run(scan, in.q.size(0));
}

void delta_attention_backward(const DeltaAttentionTensors& in, const DeltaAttentionSaved& saved,
                              const Tensor& dy, const Tensor& dlast,
                              const DeltaAttentionTensors& to) {
  const int64_t B = in.q.size(0);
  const auto query_scale = static_cast<float>(in.context.query_scale);
  const Tensor D = Tensor::empty(in.v.shape(), DType::f32, in.v.device());
  const Tensor dk = Tensor::empty(in.k.shape(), DType::f32, in.k.device());
  const Vectors queries{stored_values(in.q), query_scale}, keys{stored_values(in.k)};
  const Vectors douts{stored_values(dy)};
  const Vectors written{stored_values(saved.corrections), 1, stored_values(in.beta)};
  const Vectors dexpected{stored_values(D), 1, stored_values(in.beta)};
  {
    Scan scan = scan_of(in, true, false);
    scan.extra = queries;
    scan.side = douts;
    scan.probe = scan.written = keys;
    scan.state_in = pointer_or_null<const float>(dlast);
    scan.state_out = pointer_or_null<float>(to.state);
    scan.first = stored_results(D);
    run(scan, B);
  }
  const TokenGradients tokens{order_of(in),
                              in.v.size(3),
                              in.k.size(3) * in.v.size(3),
                              stored_values(in.v),
                              stored_values(in.beta),
                              stored_values(dy),
                              pointer<const float>(D),
                              pointer<const float>(saved.corrections),
                              pointer<const float>(saved.y),
                              pointer_or_null<const float>(in.state),
                              pointer_or_null<const float>(to.state),
                              stored_results(to.v),
                              stored_results(to.beta),
                              pointer_or_null<float>(to.log_decay)};
  launch({"delta_attention_token_gradients", blocks_for(B * tokens.order.heads, 1), 32 * kTokens,
          shared_bytes<TokenShared>()},
         delta_attention_token_gradients, tokens);
  Scan scan = scan_of(in, false, true);
  scan.probe = dexpected;
  scan.written = written;
  scan.extra = douts;
  scan.right = keys;
  scan.state_in = pointer_or_null<const float>(in.state);
  scan.first = stored_results(dk);
  scan.second = stored_results(to.q);
  scan.second_scale = query_scale;
  run(scan, B);
  scan = scan_of(in, true, true);
  scan.extra = douts;
  scan.side = queries;
  scan.probe = written;
  scan.written = dexpected;
  scan.right = keys;
  scan.state_in = pointer_or_null<const float>(dlast);
  scan.addend = pointer<const float>(dk);
  scan.first = stored_results(to.k);
  run(scan, B);
}

}  // namespace linnet::cuda
