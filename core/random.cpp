#include "core/random.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <numbers>

namespace linnet {

#if defined(__AVX2__)
namespace {

// Words of four elements: each lane of 64 bits holds a word in its lower half, which is what
// products of halves read; what is left in the upper halves stays out.
void store_words(__m256i c0, __m256i c1, __m256i c2, __m256i c3, uint32_t* words) {
  const __m256i low = _mm256_blend_epi32(c0, _mm256_slli_epi64(c1, 32), 0xAA);
  const __m256i high = _mm256_blend_epi32(c2, _mm256_slli_epi64(c3, 32), 0xAA);
  const __m256i even = _mm256_unpacklo_epi64(low, high);
  const __m256i odd = _mm256_unpackhi_epi64(low, high);
  auto* to = reinterpret_cast<__m256i*>(words);
  _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

__m256i broadcast(uint64_t value) {
  return _mm256_set1_epi64x(static_cast<int64_t>(value));
}

}  // namespace

// philox_round() of 8 elements together, by hand: compilers shuffle halves of lanes about.
void RandomKey::fill_words(uint64_t first, int64_t count, uint32_t* words) const {
  constexpr int64_t kVectors = 2, kLanes = 4 * kVectors;
  const __m256i factor0 = broadcast(0xD2511F53u), factor1 = broadcast(0xCD9E8D57u);
  for (int64_t start = 0; start < count; start += kLanes) {
    __m256i c0[kVectors], c1[kVectors], c2[kVectors], c3[kVectors];
    for (int64_t v = 0; v < kVectors; ++v) {
      c0[v] = _mm256_add_epi64(broadcast(first + static_cast<uint64_t>(start + 4 * v)),
                               _mm256_setr_epi64x(0, 1, 2, 3));
      c1[v] = _mm256_srli_epi64(c0[v], 32);
      c2[v] = broadcast(site);
      c3[v] = broadcast(site >> 32);
    }
    auto k0 = static_cast<uint32_t>(mixed_seed());
    auto k1 = static_cast<uint32_t>(mixed_seed() >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round) {
      for (int64_t v = 0; v < kVectors; ++v) {
        const __m256i a = _mm256_mul_epu32(factor0, c0[v]), b = _mm256_mul_epu32(factor1, c2[v]);
        c0[v] = _mm256_xor_si256(_mm256_srli_epi64(b, 32), _mm256_xor_si256(c1[v], broadcast(k0)));
        c1[v] = b;
        c2[v] = _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(c3[v], broadcast(k1)));
        c3[v] = a;
      }
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    uint32_t block[4 * kLanes];
    const bool whole = start + kLanes <= count;
    uint32_t* to = whole ? words + 4 * start : block;
    for (int64_t v = 0; v < kVectors; ++v) store_words(c0[v], c1[v], c2[v], c3[v], to + 16 * v);
    if (!whole) std::copy_n(block, 4 * (count - start), words + 4 * start);
  }
}
#else
void RandomKey::fill_words(uint64_t first, int64_t count, uint32_t* words) const {
  for (int64_t i = 0; i < count; ++i) {
    const auto four = this->words(first + static_cast<uint64_t>(i));
    std::copy(four.begin(), four.end(), words + 4 * i);
  }
}
#endif

double RandomKey::normal(uint64_t element) const {
  const auto word = words(element);
  const double u = (word[0] + 0.5) * 0x1p-32;
  const double v = (word[1] + 0.5) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

uint64_t RandomKey::below(uint64_t element, uint64_t count) const {
  const auto word = words(element);
  const uint64_t wide = (static_cast<uint64_t>(word[1]) << 32) | word[0];
  return static_cast<uint64_t>((static_cast<unsigned __int128>(wide) * count) >> 64);
}

}  // namespace linnet
