// Running normalizers of the slots during a scan of tiles, and the references they are relative to.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/primitives/common/simd.h"
#include "attention/primitives/slot_attention/tile.h"

namespace linnet::slot_attention_detail {
namespace {

using simd::kLanes;
using simd::Vector;

// How far (in log) weights of a tile may exceed its reference: exp(40) times 128 tokens times
// values stays far from the largest float, and 1 / that from the smallest.
constexpr double kReach = 40;
// Sums of weights up to which a reference is kept: exp(20).
constexpr double kMaxSum = 4.9e8;

template <typename T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

template <typename T>
Vector<T> load(const T* p, int64_t lanes) {
  return lanes >= kLanes<T> ? simd::load(p) : simd::load_partial(p, lanes);
}

}  // namespace

template <typename T>
RunningNormalizer Kernel<T>::begin_normalizer(const std::vector<double>& normalizer) const {
  RunningNormalizer out;
  out.sums = normalizer;
  out.unit.assign(static_cast<size_t>(np), 0);
  if (!log_space) return out;
  out.unit = normalizer;
  for (double& sum : out.sums) sum = sum == -kInfinity<double> ? 0 : 1;
  return out;
}

template <typename T>
std::vector<double> Kernel<T>::end_normalizer(const RunningNormalizer& normalizer) const {
  if (!log_space) return normalizer.sums;
  std::vector<double> out(static_cast<size_t>(np), -kInfinity<double>);
  for (int64_t l = 0; l < np; ++l) {
    if (normalizer.sums[l] != 0) out[l] = normalizer.unit[l] + std::log(normalizer.sums[l]);
  }
  return out;
}

template <typename T>
std::vector<T> Kernel<T>::end_factors(const RunningNormalizer& normalizer) const {
  std::vector<T> out(static_cast<size_t>(log_space ? np : 0));
  for (size_t l = 0; l < out.size(); ++l) {
    out[l] = normalizer.sums[l] != 0 ? static_cast<T>(1 / normalizer.sums[l]) : T(0);
  }
  // A scan without a tile leaves all as it was, empty slots too.
  if (normalizer.begins) std::fill(out.begin(), out.end(), T(1));
  return out;
}

template <typename T>
void Kernel<T>::end_scan(const RunningNormalizer& normalizer, Memory<T>& memory) const {
  scale_columns(memory.matrix, end_factors(normalizer));
  memory.mass = end_normalizer(normalizer);
}

template <typename T>
void Kernel<T>::next_tile(int64_t b, int64_t h, int64_t t, int64_t end,
                          RunningNormalizer& normalizer, Tile<T>& tile) const {
  tile.t = t;
  tile.n = std::min(kTileTokens, end - t);
  tile.entry.clear();
  if (normalizer.begins) tile.reference.assign(static_cast<size_t>(np), T(0));
  if (!log_space) {
    normalizer.begins = false;
    return;
  }
  int renewed = static_cast<int>(normalizer.begins);
  for (int64_t l = 0; l < N; ++l) {
    renewed |=
        static_cast<int>(normalizer.sums[l] > kMaxSum) | static_cast<int>(normalizer.sums[l] == 0);
  }
  if (renewed == 0) {
    const int64_t near = tokens_in_reach(b, h, tile);
    if (near > 0) {
      tile.n = near;
      return;
    }
  }
  renew_reference(b, h, normalizer, tile);
  normalizer.begins = false;
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
void Kernel<T>::renew_reference(int64_t b, int64_t h, RunningNormalizer& normalizer,
                                Tile<T>& tile) const {
  const std::vector<double> held = end_normalizer(normalizer);
  // A slot takes its reference from its contents and from the tile's first token, from later ones,
  // which others read it before, only where it is still empty.
  T* reference = tile.reference.data();
  for (int64_t l = 0; l < np; ++l) reference[l] = static_cast<T>(held[l]);
  for (int64_t i = 0; i < tile.n; ++i) {
    if (!is_valid(inputs.key_mask, b, tile.t + i, inputs.logits.T)) continue;
    const T* logit = inputs.logits.at(b, tile.t + i, h);
    int too_far = 0;
    for (int64_t l = 0; l < N && i > 0; ++l) {
      too_far |= static_cast<int>(logit[l] - reference[l] > static_cast<T>(kReach)) &
                 static_cast<int>(reference[l] != -kInfinity<T>);
    }
    if (too_far != 0) {
      tile.n = i;
      break;
    }
    for (int64_t l = 0; l < N; ++l) {
      const bool take = i == 0 ? logit[l] > reference[l] : reference[l] == -kInfinity<T>;
      reference[l] = take ? logit[l] : reference[l];
    }
  }
  tile.entry.assign(static_cast<size_t>(np), T(0));
  for (int64_t l = 0; l < np; ++l) {
    if (reference[l] == -kInfinity<T>) reference[l] = 0;
    // An empty slot is 0 by any reference; its unit may be as far from it as logits go.
    const double entry = normalizer.sums[l] != 0
                             ? std::exp(normalizer.unit[l] - static_cast<double>(reference[l]))
                             : 0;
    tile.entry[l] = static_cast<T>(entry);
    normalizer.sums[l] *= entry;
    normalizer.unit[l] = static_cast<double>(reference[l]);
  }
}

#define LINNET_INSTANTIATE(T)                                                                \
  template RunningNormalizer Kernel<T>::begin_normalizer(const std::vector<double>&) const;  \
  template std::vector<double> Kernel<T>::end_normalizer(const RunningNormalizer&) const;    \
  template std::vector<T> Kernel<T>::end_factors(const RunningNormalizer&) const;            \
  template void Kernel<T>::end_scan(const RunningNormalizer&, Memory<T>&) const;             \
  template void Kernel<T>::next_tile(int64_t, int64_t, int64_t, int64_t, RunningNormalizer&, \
                                     Tile<T>&) const;
LINNET_INSTANTIATE(float)
LINNET_INSTANTIATE(double)
#undef LINNET_INSTANTIATE

}  // namespace linnet::slot_attention_detail
