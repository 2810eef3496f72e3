// Tests of pair encodings.
#include "data/pair_encoding.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "data/wordpiece_tokenizer.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using testing::ElementsAre;

const SpecialIds kSpecial{.cls = 90, .sep = 91};
const std::vector<int32_t> kA = {1, 2, 3}, kB = {4, 5};

TEST(PairEncoding, StylesOfThreeModels) {
  const auto bert = join_texts(kSpecial, PairStyle::bert, kA, kB);
  EXPECT_THAT(bert.ids, ElementsAre(90, 1, 2, 3, 91, 4, 5, 91));
  EXPECT_THAT(bert.types, ElementsAre(0, 0, 0, 0, 0, 1, 1, 1));
  const auto roberta = join_texts(kSpecial, PairStyle::roberta, kA, kB);
  EXPECT_THAT(roberta.ids, ElementsAre(90, 1, 2, 3, 91, 91, 4, 5, 91));
  EXPECT_EQ(roberta.types, std::vector<int32_t>(9, 0));
  const auto plain = join_texts({}, PairStyle::plain, kA, kB);
  EXPECT_THAT(plain.ids, ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(plain.types, std::vector<int32_t>(5, 0));
  for (const PairStyle style : {PairStyle::bert, PairStyle::roberta}) {
    EXPECT_THAT(join_texts(kSpecial, style, kA).ids, ElementsAre(90, 1, 2, 3, 91));
    EXPECT_EQ(join_texts(kSpecial, style, kA).types, std::vector<int32_t>(5, 0));
    // An empty second text is still one.
    EXPECT_EQ(join_texts(kSpecial, style, kA, std::span<const int32_t>()).ids.size(),
              style == PairStyle::bert ? 6u : 7u);
  }
}

TEST(PairEncoding, TheLongerTextIsCutOneTokenAtATime) {
  for (size_t a = 0; a < 9; ++a) {
    for (size_t b = 0; b < 9; ++b) {
      for (size_t room = 0; room < 18; ++room) {
        size_t left = a, right = b;
        while (left + right > room) --(left > right ? left : right);
        const std::vector<int32_t> first(a, 1), second(b, 2);
        const auto made =
            join_texts(kSpecial, PairStyle::bert, first, second, static_cast<int64_t>(room + 3));
        EXPECT_EQ(std::count(made.ids.begin(), made.ids.end(), 1), left) << a << b << room;
        EXPECT_EQ(std::count(made.ids.begin(), made.ids.end(), 2), right) << a << b << room;
        EXPECT_EQ(made.cut, static_cast<int64_t>(a + b - left - right));
        EXPECT_EQ(made.types.size(), made.ids.size());
      }
    }
  }
  const auto single = join_texts(kSpecial, PairStyle::roberta, kA, std::nullopt, 4);
  EXPECT_THAT(single.ids, ElementsAre(90, 1, 2, 91));
  EXPECT_EQ(single.cut, 1);
}

TEST(PairEncoding, WhatCannotBeMadeIsRefused) {
  EXPECT_EQ(test::causes_of<UsageError>([] { join_texts(kSpecial, PairStyle::bert, kA, kB, 2); }),
            "out_of_range");
  EXPECT_EQ(test::causes_of([] { join_texts({}, PairStyle::bert, kA); }), "not_found");
}

TEST(PairEncoding, TextsTakeTheStyleOfTheTokenizer) {
  const auto tokenizer = make_wordpiece_tokenizer("[UNK]\n[CLS]\n[SEP]\na\nb\n", true, "v");
  UnknownWords unknown;
  const auto pair = encode_pair(*tokenizer, "a b", "c", kAnyLength, &unknown);
  EXPECT_THAT(pair.ids, ElementsAre(1, 3, 4, 2, 0, 2));
  EXPECT_THAT(pair.types, ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_EQ(unknown.first, "c");
  EXPECT_THAT(encode_text(*tokenizer, "a b", 3).ids, ElementsAre(1, 3, 2));
  EXPECT_THAT(encode_pair(*tokenizer, "a", "b", 9, nullptr, PairStyle::plain).ids,
              ElementsAre(3, 4));
  const auto bytes = make_tokenizer({});
  EXPECT_THAT(encode_pair(*bytes, "a", "b").ids, ElementsAre('a', 'b'));
}

}  // namespace
}  // namespace linnet
