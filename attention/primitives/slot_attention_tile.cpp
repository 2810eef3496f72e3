// Weights, read factors, soft-max over slots and states of slot attention: its element-wise part.
#include "attention/primitives/slot_attention_tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "attention/primitives/simd.h"
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

// How far (in log) weights of a tile may exceed its reference: exp(40) times 64 tokens times values
// stays far from the largest float, and 1 / that from the smallest.
constexpr double kReach = 40;
// Sums of weights up to which a reference is kept: exp(20).
constexpr double kLargestSum = 4.9e8;

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
double Kernel<T>::empty_mass() const {
  return log_space ? -kInfinity<double> : 0;
}

template <typename T>
void Kernel<T>::load_memory(SlotAttentionState<const T> from, int64_t index, int64_t h, T* turn,
                            Memory<T>& memory) const {
  memory.mass.assign(static_cast<size_t>(np), empty_mass());
  const int64_t number = index * H + h;
  if (from.mass != nullptr) std::copy_n(from.mass + number * N, N, memory.mass.data());
  const auto part = [&](const T* dense, int64_t width, int64_t stride, T* out) {
    std::fill_n(out, stride * np, T(0));
    if (dense == nullptr) return;
    std::fill_n(turn, np * stride, T(0));
    for (int64_t l = 0; l < N; ++l) {
      std::copy_n(dense + (number * N + l) * width, width, turn + l * stride);
    }
    chunked::transpose(turn, stride, np, stride, out, np);
  };
  part(from.keys, K, kp, memory.matrix);
  part(from.values, V, vp, memory.matrix + kp * np);
}

template <typename T>
void Kernel<T>::store_memory(const Memory<T>& memory, SlotAttentionState<T> to, int64_t index,
                             int64_t h, T* turn) const {
  const int64_t number = index * H + h;
  if (to.mass != nullptr) std::copy_n(memory.mass.data(), N, to.mass + number * N);
  const auto part = [&](const T* from, int64_t width, int64_t stride, T* dense) {
    if (dense == nullptr) return;
    chunked::transpose(from, np, stride, np, turn, stride);
    for (int64_t l = 0; l < N; ++l) {
      std::copy_n(turn + l * stride, width, dense + (number * N + l) * width);
    }
  };
  part(memory.matrix, K, kp, to.keys);
  part(memory.matrix + kp * np, V, vp, to.values);
}

template <typename T>
RunningMass Kernel<T>::begin_mass(const std::vector<double>& mass) const {
  RunningMass out;
  out.sums = mass;
  out.unit.assign(static_cast<size_t>(np), 0);
  if (!log_space) return out;
  out.unit = mass;
  for (double& sum : out.sums) sum = sum == -kInfinity<double> ? 0 : 1;
  return out;
}

template <typename T>
std::vector<double> Kernel<T>::end_mass(const RunningMass& mass) const {
  if (!log_space) return mass.sums;
  std::vector<double> out(static_cast<size_t>(np), -kInfinity<double>);
  for (int64_t l = 0; l < np; ++l) {
    if (mass.sums[l] != 0) out[l] = mass.unit[l] + std::log(mass.sums[l]);
  }
  return out;
}

template <typename T>
std::vector<T> Kernel<T>::end_factors(const RunningMass& mass) const {
  std::vector<T> out(static_cast<size_t>(log_space ? np : 0));
  for (size_t l = 0; l < out.size(); ++l) {
    out[l] = mass.sums[l] != 0 ? static_cast<T>(1 / mass.sums[l]) : T(0);
  }
  return out;
}

template <typename T>
void Kernel<T>::end_walk(const RunningMass& mass, Memory<T>& memory) const {
  scale_columns(memory.matrix, end_factors(mass));
  memory.mass = end_mass(mass);
}

template <typename T>
void Kernel<T>::cut_tile(int64_t b, int64_t h, int64_t t, int64_t end, RunningMass& mass,
                         Tile<T>& tile) const {
  tile.t = t;
  tile.n = std::min(kTileTokens, end - t);
  tile.entry.clear();
  if (mass.begins) tile.reference.assign(static_cast<size_t>(np), T(0));
  if (!log_space) {
    mass.begins = false;
    return;
  }
  int renewed = static_cast<int>(mass.begins);
  for (int64_t l = 0; l < N; ++l) {
    renewed |= static_cast<int>(mass.sums[l] > kLargestSum) | static_cast<int>(mass.sums[l] == 0);
  }
  if (renewed == 0) {
    const int64_t near = tokens_in_reach(b, h, tile);
    const bool first_is_far = near < tile.n && near == first_written(b, tile);
    if (!first_is_far) {
      tile.n = near;
      return;
    }
  }
  renew_reference(b, h, mass, tile);
  mass.begins = false;
}

template <typename T>
int64_t Kernel<T>::first_written(int64_t b, const Tile<T>& tile) const {
  int64_t i = 0;
  while (i < tile.n && !is_valid(inputs.key_mask, b, tile.t + i, inputs.logits.T)) ++i;
  return i;
}

template <typename T>
int64_t Kernel<T>::tokens_in_reach(int64_t b, int64_t h, const Tile<T>& tile) const {
  // How far a token's logits exceed the reference at most.
  const auto excess_of = [&](int64_t i) {
    Vector<T> excess = simd::broadcast(-kInfinity<T>);
    if (!is_valid(inputs.key_mask, b, tile.t + i, inputs.logits.T)) return excess;
    const T* logit = inputs.logits.at(b, tile.t + i, h);
    for (int64_t l = 0; l < N; l += kLanes<T>) {
      const Vector<T> own = load(logit + l, N - l) - simd::load(tile.reference.data() + l);
      excess = simd::maximum<T>(simd::first_lanes<T>(own, N - l, excess), excess);
    }
    return excess;
  };
  Vector<T> largest = simd::broadcast(-kInfinity<T>);
  for (int64_t i = 0; i < tile.n; ++i) largest = simd::maximum<T>(excess_of(i), largest);
  int64_t near = tile.n;
  if (!(simd::max<T>(largest) > static_cast<T>(kReach))) return near;
  for (near = 0; !(simd::max<T>(excess_of(near)) > static_cast<T>(kReach));) ++near;
  return near;
}

template <typename T>
void Kernel<T>::renew_reference(int64_t b, int64_t h, RunningMass& mass, Tile<T>& tile) const {
  const std::vector<double> held = end_mass(mass);
  // A slot takes its reference from what it holds and from the first token; later tokens only where
  // it is still empty.
  T* reference = tile.reference.data();
  for (int64_t l = 0; l < np; ++l) reference[l] = static_cast<T>(held[l]);
  bool fresh = true;
  for (int64_t i = 0; i < tile.n; ++i) {
    if (!is_valid(inputs.key_mask, b, tile.t + i, inputs.logits.T)) continue;
    const T* logit = inputs.logits.at(b, tile.t + i, h);
    int too_far = 0;
    for (int64_t l = 0; l < N && !fresh; ++l) {
      too_far |= static_cast<int>(logit[l] - reference[l] > static_cast<T>(kReach)) &
                 static_cast<int>(reference[l] != -kInfinity<T>);
    }
    if (too_far != 0) {
      tile.n = i;
      break;
    }
    for (int64_t l = 0; l < N; ++l) {
      const bool take = fresh ? logit[l] > reference[l] : reference[l] == -kInfinity<T>;
      reference[l] = take ? logit[l] : reference[l];
    }
    fresh = false;
  }
  tile.entry.assign(static_cast<size_t>(np), T(0));
  for (int64_t l = 0; l < np; ++l) {
    if (reference[l] == -kInfinity<T>) reference[l] = 0;
    const double entry = std::exp(mass.unit[l] - static_cast<double>(reference[l]));
    tile.entry[l] = static_cast<T>(entry);
    mass.sums[l] *= entry;
    mass.unit[l] = static_cast<double>(reference[l]);
  }
}

template <typename T>
TileWeights<T> Kernel<T>::take_weights(chunked::Scratch<T>& scratch) const {
  TileWeights<T> out;
  out.keys = out.values = scratch.take(kChunk * np);
  if (inputs.value_logits) out.values = scratch.take(kChunk * np);
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
void Kernel<T>::read_factors(const Tile<T>& tile, const T* weights, RunningMass& mass,
                             T* factors) const {
  const bool plain_sums = options.normalizer == SlotNormalizer::none;
  const T least = log_space ? -kInfinity<T> : static_cast<T>(options.floor);
  const Vector<T> one = simd::broadcast<T>(1);
  // As read_factor().
  const auto factors_of = [&](Vector<T> sum) {
    const Vector<T> factor = plain_sums ? one : T(1) / (sum < least ? one * least : sum);
    return sum != 0 ? factor : Vector<T>{};
  };
  for (int64_t first = 0; first < np; first += kLanes<T>) {
    T sums[kLanes<T>];
    for (int64_t l = 0; l < kLanes<T>; ++l) sums[l] = static_cast<T>(mass.sums[first + l]);
    const Vector<T> base = simd::load(sums);
    Vector<T> sum = {};
    for (int64_t i = 0; i < tile.n; ++i) {
      const Vector<T> row = simd::load(weights + i * np + first);
      sum += plain_sums ? (row < 0 ? -row : row) : row;
      simd::store(factors + i * np + first, factors_of(base + sum));
    }
    simd::store(sums, sum);
    for (int64_t l = 0; l < kLanes<T>; ++l) mass.sums[first + l] += static_cast<double>(sums[l]);
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
                       int64_t h, const Memory<T>& memory, T* turn, MemoryGradient<T>& out) {
  Memory<T> given;
  given.matrix = out.matrix;
  kernel.load_memory(dstate, index, h, turn, given);
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
    double& mass = memory.mass[l];
    if (!kernel.log_space) {
      mass += later.mass[l];
      continue;
    }
    const double largest = std::max(mass, later.mass[l]);
    if (largest == -kInfinity<double>) continue;
    const double total =
        largest + std::log(std::exp(mass - largest) + std::exp(later.mass[l] - largest));
    before[l] = static_cast<T>(std::exp(mass - total));
    after[l] = static_cast<T>(std::exp(later.mass[l] - total));
    mass = total;
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
