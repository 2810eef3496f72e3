// Text as it comes from tokens: whole characters, and nothing from a stop string on.
#include "recipes/engine/text_stream.h"

#include <gtest/gtest.h>

#include "core/random.h"
#include "data/word_tokenizer.h"
#include "tests/error_helpers.h"
#include "tests/tensor_helpers.h"

namespace linnet {
namespace {

class TextStreams : public ::testing::Test {
 protected:
  // The pieces that the stream gives for the bytes of `text`, one token each.
  std::vector<std::string> pieces(const std::string& text, std::vector<std::string> stop) const {
    TextStream stream(*bytes_, bytes_->encode("x")[0], std::move(stop));
    std::vector<std::string> result;
    for (const int32_t token : bytes_->encode(text)) result.push_back(stream.add(token));
    result.push_back(stream.finish());
    return result;
  }
  static std::string joined(const std::vector<std::string>& pieces) {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    return all;
  }

  std::unique_ptr<Tokenizer> bytes_ = make_tokenizer(TokenizerConfig());
};

TEST_F(TextStreams, CutNoCharacterApart) {
  EXPECT_EQ(pieces("aé\xf0\x9f\x90\xa6", {}),
            (std::vector<std::string>{"a", "", "é", "", "", "", "\xf0\x9f\x90\xa6", ""}));
  // Bytes that are none: replaced as soon as they cannot become a character, or at the end.
  EXPECT_EQ(joined(pieces("a\xff\xff\xff\xff z", {})),
            "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd z");
  EXPECT_EQ(pieces("a\xc3", {}), (std::vector<std::string>{"a", "", "\xef\xbf\xbd"}));
}

TEST_F(TextStreams, EndBeforeTheFirstStopString) {
  EXPECT_EQ(pieces("one\n\ntwo", {"\n\n"}),
            (std::vector<std::string>{"o", "n", "e", "", "", "", "", "", ""}));
  // What only looked like one is given when it is clear that it is none.
  EXPECT_EQ(pieces("a\nb", {"\n\n"}), (std::vector<std::string>{"a", "", "\nb", ""}));
  EXPECT_EQ(pieces("a\n", {"\n\n"}), (std::vector<std::string>{"a", "", "\n"}));
  EXPECT_EQ(joined(pieces("abcd", {"cd", "bc"})), "a");
  EXPECT_EQ(joined(pieces("abcd", {"abcd", "bc"})), "a");
  EXPECT_EQ(joined(pieces("abcd", {"zz", "d"})), "abc");
}

// Random texts and stop strings of two letters, beside a search of every beginning of the text.
TEST_F(TextStreams, AgreeWithSearchingTheWholeText) {
  const RandomKey key{5, 0, 0};
  uint64_t draw = 0;
  const auto random = [&](uint64_t below) {
    return static_cast<size_t>(key.uniform(draw++) * static_cast<double>(below));
  };
  const auto word = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + random(2));
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    const std::string text = word(random(14));
    const std::vector<std::string> stop = {word(1 + random(4)), word(3 + random(4))};
    std::string expected = text;
    for (size_t length = 0; length <= text.size() && expected == text; ++length) {
      const std::string so_far = text.substr(0, length);
      for (const std::string& each : stop) {
        if (!so_far.ends_with(each)) continue;
        const std::string before = so_far.substr(0, length - each.size());
        if (before.size() < expected.size()) expected = before;
      }
    }
    EXPECT_EQ(joined(pieces(text, stop)), expected)
        << text << " before " << stop[0] << " and " << stop[1];
  }
}

TEST_F(TextStreams, RefuseStopStringsThatAreNone) {
  EXPECT_EQ(test::causes_of<UsageError>([&] { pieces("a", {""}); }), "out_of_range generate.stop");
  EXPECT_NE(test::message_of<Error>([&] { pieces("a", {"\xff"}); }).find("stop string"),
            std::string::npos);
}

}  // namespace
}  // namespace linnet
