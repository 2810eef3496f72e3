// Hashes: published values, and independence of where the bytes were cut.
#include "core/hash.h"

#include <gtest/gtest.h>

#include "core/files.h"
#include "tests/file_failures.h"

namespace linnet {
namespace {

TEST(Hash, EmptyInputHasThePublishedValues) {
  EXPECT_EQ(hash64(""), 0x2d06800538d394c2u);
  EXPECT_EQ(hash128_hex(""), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, DependsOnEveryByteAndOnTheSeed) {
  const std::string bytes(1000, 'x');
  for (size_t i = 0; i < bytes.size(); i += 37) {
    std::string changed = bytes;
    changed[i] ^= 1;
    EXPECT_NE(hash64(changed), hash64(bytes));
    EXPECT_NE(hash128_hex(changed), hash128_hex(bytes));
  }
  EXPECT_NE(hash64(bytes, 1), hash64(bytes, 2));
}

TEST(Hash, PiecesAndFilesHashLikeTheWhole) {
  std::string bytes;
  for (int i = 0; i < 3'000'000; ++i) bytes += static_cast<char>(i * 7 + i / 256);
  Hash128 pieces;
  for (size_t i = 0; i < bytes.size(); i += 99'991) pieces.add(bytes.substr(i, 99'991));
  EXPECT_EQ(pieces.hex(), hash128_hex(bytes));
  const test::ScratchDirectory scratch;
  write_file(scratch / "x", bytes);
  EXPECT_EQ(hash128_hex_of_file(scratch / "x"), hash128_hex(bytes));
}

}  // namespace
}  // namespace linnet
