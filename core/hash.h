// XXH3 hashes of bytes: fast integrity checks and cache keys, not protection against an attacker.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace linnet {

// 64-bit XXH3 of the bytes.
uint64_t hash64(std::string_view bytes, uint64_t seed = 0);
// 128-bit XXH3 as 32 lower-case hexadecimal digits (canonical, big-endian order).
std::string hash128_hex(std::string_view bytes);
// hash128_hex of a file's contents, read in pieces; throws Error when it cannot be read.
std::string hash128_hex_of_file(const std::string& path);

// hash128_hex of bytes that come in pieces: the result does not depend on where they were cut.
class Hash128 {
 public:
  Hash128();
  ~Hash128();
  Hash128(const Hash128&) = delete;
  Hash128& operator=(const Hash128&) = delete;
  void add(std::string_view bytes);
  // The hash of everything added so far; more may be added afterwards.
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace linnet
