// Hashes through libxxhash.
#include "core/hash.h"

#include <xxhash.h>

#include "core/files.h"
#include "core/interrupt.h"

namespace linnet {
namespace {

std::string to_hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace

uint64_t hash64(std::string_view bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::string hash128_hex(std::string_view bytes) {
  return to_hex(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string hash128_hex_of_file(const std::string& path) {
  File file(path, OpenMode::read);
  Hash128 hash;
  std::string piece(size_t{1} << 20, '\0');
  while (const size_t count = file.read(piece)) {
    interruption_point();
    hash.add(std::string_view(piece).substr(0, count));
  }
  return hash.hex();
}

struct Hash128::State {
  XXH3_state_t* value = XXH3_createState();
  ~State() { XXH3_freeState(value); }
};

Hash128::Hash128() : state_(std::make_unique<State>()) {
  require(state_->value != nullptr && XXH3_128bits_reset(state_->value) == XXH_OK,
          "out of memory for a hash");
}

Hash128::~Hash128() = default;

void Hash128::add(std::string_view bytes) {
  require(XXH3_128bits_update(state_->value, bytes.data(), bytes.size()) == XXH_OK,
          "hashing failed");
}

std::string Hash128::hex() const {
  return to_hex(XXH3_128bits_digest(state_->value));
}

}  // namespace linnet
