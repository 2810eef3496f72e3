// For tests: damaged HDF5 images, repeatable by their seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>

#include "core/random.h"

namespace linnet::test {

inline int64_t mutation_setting(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::stoll(text);
}
inline int64_t mutation_count(int64_t otherwise) {
  return mutation_setting("LINNET_MUTATIONS", otherwise);
}
inline int64_t mutation_seed() {
  return mutation_setting("LINNET_MUTATION_SEED", 1);
}

// The random numbers of one mutation.
class MutationDraws {
 public:
  MutationDraws(int64_t seed, int64_t mutation)
      : key_{static_cast<uint64_t>(seed), static_cast<uint64_t>(mutation), 0} {}
  uint64_t below(uint64_t bound) { return key_.below(count_++, bound); }

 private:
  RandomKey key_;
  uint64_t count_ = 0;
};

// The image cut short, or with one to four bits, bytes or 8-byte words changed.
inline std::string mutated(std::string image, MutationDraws& draws) {
  const uint64_t kind = draws.below(6), count = 1 + draws.below(4);
  if (kind == 0) return image.substr(0, draws.below(image.size()));
  // Structures hold zeros between other bytes; tensors seldom do.
  const auto of_structure = [&] {
    for (int tries = 0; tries < 1000; ++tries) {
      const uint64_t at = draws.below(image.size() - 16);
      const int64_t zeros = std::count(image.begin() + static_cast<int64_t>(at),
                                       image.begin() + static_cast<int64_t>(at) + 16, '\0');
      if (zeros >= 4 && zeros < 16) return at;
    }
    return uint64_t{0};
  };
  constexpr uint64_t kWords[] = {0,         1,         7, 255, 65'536, INT32_MAX, uint64_t{1} << 40,
                                 INT64_MAX, UINT64_MAX};
  for (uint64_t i = 0; i < count; ++i) {
    if (kind == 1) image[draws.below(image.size())] ^= static_cast<char>(1 << draws.below(8));
    if (kind == 2) image[draws.below(image.size())] = static_cast<char>(draws.below(256));
    if (kind == 3) image[of_structure()] ^= static_cast<char>(1 << draws.below(8));
    if (kind == 4) image[of_structure()] = static_cast<char>(draws.below(256));
    if (kind == 5) {
      const uint64_t word = kWords[draws.below(std::size(kWords))];
      std::memcpy(image.data() + of_structure() / 8 * 8, &word, 8);
    }
  }
  return image;
}

}  // namespace linnet::test
