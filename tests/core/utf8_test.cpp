// Tests of UTF-8 validation and repair.
#include "core/utf8.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace linnet {
namespace {

constexpr size_t kValid = std::string_view::npos;

TEST(Utf8, AcceptsTheEdgesOfEachLength) {
  for (const char* text : {"", "plain", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80",
                           "\xED\x9F\xBF", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"})
    EXPECT_EQ(find_invalid_utf8(text), kValid) << text;
}

TEST(Utf8, NamesTheOffsetOfTheFirstBadByte) {
  const std::pair<const char*, size_t> cases[] = {
      {"\x80", 0},              // continuation without a start
      {"ab\xC0\x80", 2},        // overlong NUL
      {"abc\xC1\xBF", 3},       // overlong
      {"\xE0\x9F\xBF", 0},      // overlong
      {"\xED\xA0\x80", 0},      // surrogate
      {"\xF0\x8F\xBF\xBF", 0},  // overlong
      {"\xF4\x90\x80\x80", 0},  // above U+10FFFF
      {"\xF5\x80\x80\x80", 0},
      {"\xFF", 0},
      {"12345678\xC3", 8},  // cut off after a whole fast word
      {"1234567\xE2\x82", 7},
      {"x\xF0\x9F\xA6", 1},
      {"ok \xC3\xA9 \xE9 late", 6}};
  for (const auto& [text, offset] : cases) EXPECT_EQ(find_invalid_utf8(text), offset) << offset;
}

TEST(Utf8, ErrorNamesFileByteAndOffset) {
  try {
    require_utf8("caf\xE9", "poems.txt");
    FAIL() << "accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("poems.txt"), std::string::npos) << message;
    EXPECT_NE(message.find("0xe9"), std::string::npos) << message;
    EXPECT_NE(message.find("offset 3"), std::string::npos) << message;
  }
}

TEST(Utf8, APrefixCutsNoCharacterApart) {
  const std::string_view text = "a\xC3\xA9\xF0\x9F\x98\x80z";
  const size_t lengths[] = {0, 1, 1, 3, 3, 3, 3, 7, 8, 8};
  for (size_t bytes = 0; bytes < std::size(lengths); ++bytes) {
    EXPECT_EQ(utf8_prefix(text, bytes), text.substr(0, lengths[bytes])) << bytes;
  }
  EXPECT_EQ(utf8_prefix("\xFF\xFF\xFF", 2), "\xFF\xFF");
}

TEST(Utf8, RepairReplacesEachBadByteAndKeepsTheRest) {
  EXPECT_EQ(replace_invalid_utf8("a\xFF\xC3\xA9\xE2\x82"),
            "a\xEF\xBF\xBD\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(find_invalid_utf8(replace_invalid_utf8("\xF0\x80\x80\xED\xBF\xBF")), kValid);
}

}  // namespace
}  // namespace linnet
