// Where texts may be cut for a tokenizer.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "data/tokenizer.h"

namespace linnet::test {

// Texts of what decides where words and pieces end.
inline std::string random_text(uint64_t seed) {
  static const std::vector<std::string> parts = {" ",
                                                 "  ",
                                                 "\n",
                                                 "\n\n",
                                                 "\r\n",
                                                 "\t",
                                                 "\v",
                                                 "\f",
                                                 "a",
                                                 "It's",
                                                 "don't",
                                                 "1234",
                                                 "...",
                                                 "'",
                                                 "'s",
                                                 "<",
                                                 "\xC2\xA0",
                                                 "\xC2\x85",
                                                 "\xE2\x80\xA8",
                                                 "\xE3\x80\x80",
                                                 "caf\xC3\xA9",
                                                 "e\xCC\x81",
                                                 "\xCC\x81",
                                                 "\xE4\xB8\xAD\xE6\x96\x87",
                                                 "\xF0\x9F\xA6\x99",
                                                 "\xC2\xA8",
                                                 "[MASK]",
                                                 "\xEF\xBF\xBD",
                                                 std::string(1, '\0'),
                                                 "\xC2\xAD",
                                                 "\xD9\xA3",
                                                 "x y"};
  std::string text;
  for (uint64_t i = 0; i < 24; ++i) text += parts[hash64(concat(seed, ' ', i)) % parts.size()];
  return text;
}

// Expects that the ids of texts are those of their parts, wherever last_cut says that they can be
// cut after a beginning was seen; and that it does, or does not.
inline void expect_cuts(const Tokenizer& tokenizer, bool some) {
  size_t cuts = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const std::string text = random_text(seed);
    UnknownWords unknown;
    const std::vector<int32_t> whole = tokenizer.encode(text, &unknown);
    size_t last = 0;
    for (size_t seen = 0; seen <= text.size(); ++seen) {
      if (seen < text.size() && (static_cast<unsigned char>(text[seen]) & 0xC0) == 0x80) continue;
      const size_t cut = tokenizer.last_cut(std::string_view(text).substr(0, seen));
      ASSERT_LE(cut, seen);
      if (cut == last) continue;
      last = cut;
      ++cuts;
      UnknownWords unknown_parts;
      auto parts = tokenizer.encode(text.substr(0, cut), &unknown_parts);
      const auto rest = tokenizer.encode(text.substr(cut), &unknown_parts);
      parts.insert(parts.end(), rest.begin(), rest.end());
      ASSERT_EQ(parts, whole) << tokenizer.kind() << " cut at " << cut << ": " << text;
      ASSERT_EQ(unknown_parts.count, unknown.count);
      ASSERT_EQ(unknown_parts.first, unknown.first);
    }
  }
  EXPECT_EQ(cuts > 1000, some) << cuts;
}

}  // namespace linnet::test
