// The Feistel permutation, with Philox as its round function.
#include "data/permutation.h"

#include <bit>

#include "core/error.h"
#include "core/random.h"

namespace linnet {

int64_t permuted_index(uint64_t seed, int64_t epoch, int64_t index, int64_t count) {
  require(0 <= index && index < count, "permuted_index: index ", index, " is not in 0 to ",
          count - 1);
  const int bits = std::bit_width(static_cast<uint64_t>(count - 1));
  const int half = bits < 2 ? 1 : (bits + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const RandomKey key{seed, static_cast<uint64_t>(epoch), hash_name("order of examples")};
  constexpr uint64_t kRounds = 6;
  auto value = static_cast<uint64_t>(index);
  // The domain is at most four times count, so a walk takes four steps on average at worst.
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = key.words(right ^ (round << 60))[0];
      const uint64_t next = left ^ (mixed & mask);
      left = right;
      right = next;
    }
    value = (left << half) | right;
  } while (value >= static_cast<uint64_t>(count));
  return static_cast<int64_t>(value);
}

}  // namespace linnet
