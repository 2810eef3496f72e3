// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011): a draw is a pure function of
// (seed, step, site, element), so masks are the same on every device, in recomputed layers and
// after a resume, with nothing to store.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace linnet {

// One of Philox's ten rounds, in place.
constexpr void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3, uint32_t k0,
                            uint32_t k1) {
  const uint64_t a = uint64_t{0xD2511F53u} * c0;
  const uint64_t b = uint64_t{0xCD9E8D57u} * c2;
  c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
  c1 = static_cast<uint32_t>(b);
  c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
  c3 = static_cast<uint32_t>(a);
}
inline constexpr int kPhiloxRounds = 10;
// The increments of the key after every round.
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u, kPhiloxWeyl1 = 0xBB67AE85u;

// Four uniform 32-bit words for a 128-bit counter and a 64-bit key.
constexpr std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                         std::array<uint32_t, 2> key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
    key[0] += kPhiloxWeyl0;
    key[1] += kPhiloxWeyl1;
  }
  return counter;
}

// 64-bit FNV-1a: the number of a site, from its name ("layers.0.ffn.dropout").
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// Everything that fixes a draw except its element: the run's seed, the update number, the place.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint64_t site = 0;
  // Where set, kernels read the step from this device memory instead of `step`, so that a captured
  // graph can be replayed with the next one (core/cuda/random.h); host code ignores it.
  const uint64_t* device_step = nullptr;
  // The same key for a place inside this one.
  constexpr RandomKey at(std::string_view name) const {
    return {seed, step, (site * 0x9E3779B97F4A7C15u) ^ hash_name(name), device_step};
  }

  // Four words for an element: (example, position, channel) packed by the caller into 64 bits.
  constexpr std::array<uint32_t, 4> words(uint64_t element) const {
    const uint64_t mixed = mixed_seed();
    return philox({static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32),
                   static_cast<uint32_t>(site), static_cast<uint32_t>(site >> 32)},
                  {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)});
  }
  // words() of the elements first, first + 1, ...: 4 * count words, several elements at a time.
  void fill_words(uint64_t first, int64_t count, uint32_t* words) const;
  // Uniform in [0, 1), 32 random bits. constexpr, as everything that kernels call without
  // __device__: a function that is not would be dropped from the kernel in silence.
  constexpr double uniform(uint64_t element) const { return words(element)[0] * 0x1p-32; }
  // Standard normal (Box-Muller on two words, in double).
  double normal(uint64_t element) const;
  // Uniform integer in [0, count); count > 0.
  uint64_t below(uint64_t element, uint64_t count) const;

 private:
  constexpr uint64_t mixed_seed() const { return seed ^ (step * 0xD1B54A32D192ED03u); }
};

// The index of element (example, position, channel): an example has the same mask at every place of
// a batch and in every process. Channels of one (example, position) are consecutive.
constexpr uint64_t random_element(uint64_t example, uint64_t position, uint64_t channel,
                                  uint64_t channels) {
  return (example << 40) + position * channels + channel;
}

}  // namespace linnet
