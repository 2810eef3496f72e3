// Weights, read factors and states of slot attention.
#include "attention/primitives/slot_attention/tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "attention/primitives/common/simd.h"
#include "core/error.h"

namespace linnet {

template <typename T>
void check_slot_attention(const SlotAttentionOptions& options, const SlotAttentionInputs<T>& inputs,
                          int64_t H, int64_t N, int64_t K, int64_t V) {
  const auto& [q, k, v, logits] = std::tie(inputs.q, inputs.k, inputs.v, inputs.logits);
  require(N > 0 && K > 0 && V >= 0, "slot_attention: slots and widths must be positive (that of ",
          "values may be 0), got N=", N, " K=", K, " V=", V);
  require(options.control != SlotControl::exp || options.normalizer == SlotNormalizer::read_time,
          "slot_attention: exp control needs normalisation at read time (sums of exponentials "
          "overflow); for write time use slot_write_weights");
  require(options.floor > 0, "slot_attention: floor must be positive, got ", options.floor);
  require(!q || (q.H == H && q.K == K), "slot_attention: q has ", q.H, " heads of width ", q.K,
          ", expected ", H, " of ", K);
  require(!k || (k.H == H && k.K == K && v.B == k.B && v.T == k.T && v.H == H && v.K == V &&
                 logits.B == k.B && logits.T == k.T && logits.H == H && logits.K == N),
          "slot_attention: k [", k.B, ",", k.T, ",", k.H, ",", k.K, "], v [", v.B, ",", v.T, ",",
          v.H, ",", v.K, "] and logits [", logits.B, ",", logits.T, ",", logits.H, ",", logits.K,
          "] do not belong together");
  require(options.dropout >= 0 && options.dropout < 1,
          "slot_attention: dropout must be in [0, 1), got ", options.dropout);
  const auto& own = inputs.value_logits;
  if (!own) return;
  require(options.control == SlotControl::given && options.normalizer == SlotNormalizer::none,
          "slot_attention: values have logits of their own only where weights are given and are ",
          "not normalised (or are normalised by write_time)");
  require(own.B == logits.B && own.T == logits.T && own.H == logits.H && own.K == logits.K,
          "slot_attention: the logits of values [", own.B, ",", own.T, ",", own.H, ",", own.K,
          "] differ in size from those of keys [", logits.B, ",", logits.T, ",", logits.H, ",",
          logits.K, "]");
}

template void check_slot_attention<float>(const SlotAttentionOptions&,
                                          const SlotAttentionInputs<float>&, int64_t, int64_t,
                                          int64_t, int64_t);
template void check_slot_attention<double>(const SlotAttentionOptions&,
                                           const SlotAttentionInputs<double>&, int64_t, int64_t,
                                           int64_t, int64_t);

}  // namespace linnet

namespace linnet::slot_attention_detail {
namespace {

using chunked::kChunk;
using chunked::padded;
using simd::kLanes;
using simd::Vector;

template <typename T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <typename T>
Vector<T> load(const T* p, int64_t lanes) {
  return lanes >= kLanes<T> ? simd::load(p) : simd::load_partial(p, lanes);
}

template <typename T>
Vector<T> weight(SlotControl control, Vector<T> logit, Vector<T> reference) {
  switch (control) {
    case SlotControl::exp:
      return simd::exp<T>(logit - reference);
    case SlotControl::sigmoid:
      return T(1) / (T(1) + simd::exp<T>(-logit));
    case SlotControl::relu:
      return logit > 0 ? logit : Vector<T>{};
    case SlotControl::given:
      break;
  }
  return logit;
}

// dalpha/da, given alpha.
template <typename T>
Vector<T> weight_slope(SlotControl control, Vector<T> alpha) {
  const Vector<T> one = simd::broadcast<T>(1);
  switch (control) {
    case SlotControl::exp:
      return alpha;
    case SlotControl::sigmoid:
      return alpha * (one - alpha);
    case SlotControl::relu:
      return alpha > 0 ? one : Vector<T>{};
    case SlotControl::given:
      break;
  }
  return one;
}

}  // namespace

template <typename T>
Kernel<T>::Kernel(const SlotAttentionOptions& options_in, const SlotAttentionInputs<T>& inputs_in,
                  int64_t H_in, int64_t N_in, int64_t K_in, int64_t V_in)
    : options(options_in),
      inputs(inputs_in),
      H(H_in),
      N(N_in),
      K(K_in),
      V(V_in),
      np(padded(N_in)),
      kp(padded(K_in)),
      vp(padded(V_in)),
      log_space(options_in.control == SlotControl::exp) {
  check_slot_attention(options, inputs, H, N, K, V);
}

template <typename T>
double Kernel<T>::work(const std::vector<Span>& spans) const {
  double tokens = 0;
  for (const Span& span : spans) tokens += static_cast<double>(span.end - span.begin);
  return tokens * static_cast<double>(H * N * (K + V) * 2);
}

template <typename T>
double Kernel<T>::empty_normalizer() const {
  return log_space ? -kInfinity<double> : 0;
}

template <typename T>
void Kernel<T>::load_memory(SlotAttentionState<const T> from, int64_t index, int64_t h,
                            T* transposed, Memory<T>& memory) const {
  memory.mass.assign(static_cast<size_t>(np), empty_normalizer());
  const int64_t number = index * H + h;
  if (from.mass != nullptr) std::copy_n(from.mass + number * N, N, memory.mass.data());
  const auto part = [&](const T* dense, int64_t width, int64_t stride, T* out) {
    std::fill_n(out, stride * np, T(0));
    if (dense == nullptr) return;
    std::fill_n(transposed, np * stride, T(0));
    for (int64_t l = 0; l < N; ++l) {
      std::copy_n(dense + (number * N + l) * width, width, transposed + l * stride);
    }
    chunked::transpose(transposed, stride, np, stride, out, np);
  };
  part(from.keys, K, kp, memory.matrix);
  part(from.values, V, vp, memory.matrix + kp * np);
}

template <typename T>
void Kernel<T>::store_memory(const Memory<T>& memory, SlotAttentionState<T> to, int64_t index,
                             int64_t h, T* transposed) const {
  const int64_t number = index * H + h;
  if (to.mass != nullptr) std::copy_n(memory.mass.data(), N, to.mass + number * N);
  const auto part = [&](const T* from, int64_t width, int64_t stride, T* dense) {
    if (dense == nullptr) return;
    chunked::transpose(from, np, stride, np, transposed, stride);
    for (int64_t l = 0; l < N; ++l) {
      std::copy_n(transposed + l * stride, width, dense + (number * N + l) * width);
    }
  };
  part(memory.matrix, K, kp, to.keys);
  part(memory.matrix + kp * np, V, vp, to.values);
}

template <typename T>
TileWeights<T> Kernel<T>::take_weights(chunked::Scratch<T>& scratch) const {
  TileWeights<T> out;
  out.keys = out.values = scratch.take(kTileTokens * np);
  if (inputs.value_logits) out.values = scratch.take(kTileTokens * np);
  return out;
}

template <typename T>
void Kernel<T>::load_weights(int64_t b, int64_t h, const Tile<T>& tile,
                             const TileWeights<T>& weights) const {
  const auto part = [&](const SequenceView<const T>& logits, T* out) {
    for (int64_t i = 0; i < tile.n; ++i) {
      T* row = out + i * np;
      if (!is_valid(inputs.key_mask, b, tile.t + i, logits.T)) {
        std::fill_n(row, np, T(0));
        continue;
      }
      const T* logit = logits.at(b, tile.t + i, h);
      for (int64_t l = 0; l < N; l += kLanes<T>) {
        simd::store(row + l, weight<T>(options.control, load(logit + l, N - l),
                                       simd::load(tile.reference.data() + l)));
      }
      std::fill(row + N, row + np, T(0));
    }
    std::fill(out + tile.n * np, out + padded(tile.n) * np, T(0));
  };
  part(inputs.logits, weights.keys);
  if (weights.values != weights.keys) part(inputs.value_logits, weights.values);
}

template <typename T>
T Kernel<T>::read_factor(T sum) const {
  if (!(sum != 0)) return 0;
  if (options.normalizer == SlotNormalizer::none) return 1;
  if (log_space) return T(1) / sum;
  return T(1) / std::max(sum, static_cast<T>(options.floor));
}

template <typename T>
bool Kernel<T>::is_clamped(T factor) const {
  return !log_space && factor >= T(1) / static_cast<T>(options.floor);
}

template <typename T>
void Kernel<T>::read_factors(const Tile<T>& tile, const T* weights, RunningNormalizer& normalizer,
                             T* factors) const {
  const bool plain_sums = options.normalizer == SlotNormalizer::none;
  const T least = log_space ? -kInfinity<T> : static_cast<T>(options.floor);
  const Vector<T> one = simd::broadcast<T>(1);
  // As read_factor().
  const auto factors_of = [&](Vector<T> sum) {
    const Vector<T> factor = plain_sums ? one : T(1) / (sum < least ? one * least : sum);
    return sum != 0 ? factor : Vector<T>{};
  };
  // More weights than a chunk's are not added up before they join the normalizer, in double.
  const auto add_chunk = [&](int64_t begin, int64_t end, int64_t first) {
    T sums[kLanes<T>];
    for (int64_t l = 0; l < kLanes<T>; ++l) sums[l] = static_cast<T>(normalizer.sums[first + l]);
    const Vector<T> base = simd::load(sums);
    Vector<T> sum = {};
    for (int64_t i = begin; i < end; ++i) {
      const Vector<T> row = simd::load(weights + i * np + first);
      sum += plain_sums ? (row < 0 ? -row : row) : row;
      simd::store(factors + i * np + first, factors_of(base + sum));
    }
    simd::store(sums, sum);
    for (int64_t l = 0; l < kLanes<T>; ++l)
      normalizer.sums[first + l] += static_cast<double>(sums[l]);
  };
  for (int64_t begin = 0; begin < tile.n; begin += kChunk) {
    const int64_t end = std::min(tile.n, begin + kChunk);
    for (int64_t first = 0; first < np; first += kLanes<T>) add_chunk(begin, end, first);
  }
}

template <typename T>
void Kernel<T>::store_logit_gradients(int64_t b, int64_t h, const Tile<T>& tile, const T* weights,
                                      const T* dweights, SequenceView<T> dlogits) const {
  for (int64_t i = 0; i < tile.n; ++i) {
    T* out = dlogits.at(b, tile.t + i, h);
    if (!is_valid(inputs.key_mask, b, tile.t + i, inputs.logits.T)) {
      std::fill_n(out, N, T(0));
      continue;
    }
    for (int64_t l = 0; l < N; l += kLanes<T>) {
      const Vector<T> alpha = simd::load(weights + i * np + l);
      const Vector<T> gradient =
          simd::load(dweights + i * np + l) * weight_slope<T>(options.control, alpha);
      if (N - l >= kLanes<T>) {
        simd::store(out + l, gradient);
      } else {
        simd::store_partial(out + l, gradient, N - l);
      }
    }
  }
}

template <typename T>
void Kernel<T>::scale_rows(T* matrix, int64_t width, const std::vector<T>& factors) const {
  for (int64_t l = 0; l < static_cast<int64_t>(factors.size()); ++l) {
    for (int64_t c = 0; c < width; ++c) matrix[l * width + c] *= factors[l];
  }
}

template <typename T>
void Kernel<T>::scale_columns(T* matrix, const std::vector<T>& factors) const {
  if (factors.empty()) return;
  for (int64_t r = 0; r < kp + vp; ++r) {
    for (int64_t l = 0; l < np; ++l) matrix[r * np + l] *= factors[l];
  }
}

template <typename T>
void Kernel<T>::accumulate(int64_t n, const T* left, const T* right, const TileWeights<T>& weights,
                           T* matrix) const {
  tile_gemm<T>(K, np, n, T(1), {left, kp, true}, {weights.keys, np}, Write::accumulate, matrix, np);
  tile_gemm<T>(V, np, n, T(1), {right, vp, true}, {weights.values, np}, Write::accumulate,
               matrix + kp * np, np);
}

template <typename T>
std::vector<double> slot_products(const Kernel<T>& kernel, const T* a, const T* b) {
  std::vector<double> out(static_cast<size_t>(kernel.np));
  for (int64_t r = 0; r < kernel.kp + kernel.vp; ++r) {
    for (int64_t l = 0; l < kernel.np; ++l) {
      out[l] += static_cast<double>(a[r * kernel.np + l]) * b[r * kernel.np + l];
    }
  }
  return out;
}

template <typename T>
void load_end_gradient(const Kernel<T>& kernel, SlotAttentionState<const T> dstate, int64_t index,
                       int64_t h, const Memory<T>& memory, T* transposed, MemoryGradient<T>& out) {
  Memory<T> given;
  given.matrix = out.matrix;
  kernel.load_memory(dstate, index, h, transposed, given);
  out.sums.assign(static_cast<size_t>(kernel.np), 0);
  if (kernel.options.normalizer == SlotNormalizer::none) return;
  for (int64_t l = 0; dstate.mass != nullptr && l < kernel.N; ++l) {
    out.sums[l] = given.mass[l];
  }
  if (!kernel.log_space) return;
  const std::vector<double> means = slot_products(kernel, memory.matrix, given.matrix);
  for (int64_t l = 0; l < kernel.np; ++l) out.sums[l] -= means[l];
}

template <typename T>
void append_memory(const Kernel<T>& kernel, const Memory<T>& later, Memory<T>& memory) {
  const int64_t np = kernel.np;
  std::vector<T> before(static_cast<size_t>(np), T(1)), after = before;
  for (int64_t l = 0; l < np; ++l) {
    double& normalizer = memory.mass[l];
    if (!kernel.log_space) {
      normalizer += later.mass[l];
      continue;
    }
    const double largest = std::max(normalizer, later.mass[l]);
    if (largest == -kInfinity<double>) continue;
    const double total =
        largest + std::log(std::exp(normalizer - largest) + std::exp(later.mass[l] - largest));
    before[l] = static_cast<T>(std::exp(normalizer - total));
    after[l] = static_cast<T>(std::exp(later.mass[l] - total));
    normalizer = total;
  }
  for (int64_t r = 0; r < kernel.kp + kernel.vp; ++r) {
    for (int64_t l = 0; l < np; ++l) {
      T& value = memory.matrix[r * np + l];
      value = before[l] * value + after[l] * later.matrix[r * np + l];
    }
  }
}

#define LINNET_INSTANTIATE(T)                                                                \
  template struct Kernel<T>;                                                                 \
  template std::vector<double> slot_products<T>(const Kernel<T>&, const T*, const T*);       \
  template void load_end_gradient<T>(const Kernel<T>&, SlotAttentionState<const T>, int64_t, \
                                     int64_t, const Memory<T>&, T*, MemoryGradient<T>&);     \
  template void append_memory<T>(const Kernel<T>&, const Memory<T>&, Memory<T>&);
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::slot_attention_detail
