// The bytes of printed JSON. Files of runs and checkpoints hold them, and manifests are hashed: a
// change here changes files that programs of users read.
#include <gtest/gtest.h>

#include <cmath>

#include "core/json.h"

namespace linnet {
namespace {

TEST(JsonBytes, Doubles) {
  const std::pair<double, const char*> cases[] = {
      {0.0, "0"},
      {-0.0, "-0"},
      {1.0, "1"},
      {-1.0, "-1"},
      {100000.0, "1e+05"},
      {123456.0, "123456"},
      {1e15, "1e+15"},
      {0x1p62, "4611686018427387904"},
      // An exponent keeps them from being read as integers, which end at 2^63.
      {0x1p63, "9.223372036854776e+18"},
      {-0x1p63, "-9.223372036854776e+18"},
      {6.5e20, "6.5e+20"},
      {1e22, "1e+22"},
      {0.1, "0.1"},
      {1.0 / 3, "0.3333333333333333"},
      {0.001, "0.001"},
      {1e-4, "1e-04"},
      {1.5e-7, "1.5e-07"},
      {5e-324, "5e-324"},
      {2.2250738585072014e-308, "2.2250738585072014e-308"},
      {1.7976931348623157e308, "1.7976931348623157e+308"},
      {double{0.1f}, "0.10000000149011612"},
      {double{3.4028235e38f}, "3.4028234663852886e+38"},
      {std::nan(""), "\"nan\""},
      {-std::nan(""), "\"nan\""},
      {HUGE_VAL, "\"inf\""},
      {-HUGE_VAL, "\"-inf\""},
  };
  for (const auto& [value, expected] : cases) EXPECT_EQ(JsonValue(value).dump(), expected);
}

TEST(JsonBytes, Escapes) {
  std::string controls;
  for (char c = 0; c < 0x20; ++c) controls += c;
  EXPECT_EQ(
      JsonValue(controls + "\"\\/\x7F").dump(),
      R"("\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\u0008\u0009\n\u000b\u000c\u000d)"
      R"(\u000e\u000f\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001a\u001b)"
      R"(\u001c\u001d\u001e\u001f\"\\/\u007f")");
}

TEST(JsonBytes, TextBeyondAscii) {
  // The first and last of each length, a line separator, a byte order mark, a pair of surrogates.
  const std::string valid =
      "\xC2\x80|\xDF\xBF|\xE0\xA0\x80|\xE2\x80\xA8|\xEF\xBB\xBF|\xEF\xBF\xBF|\xF0\x90\x80\x80|"
      "\xF0\x9F\x98\x80|\xF4\x8F\xBF\xBF";
  EXPECT_EQ(JsonValue(valid).dump(), "\"" + valid + "\"");
  // Each ill-formed byte becomes one U+FFFD.
  const std::pair<std::string, size_t> ill_formed[] = {
      {"\x80", 1},     {"\xC0\x80", 2},         {"\xED\xA0\x80", 3},
      {"\xE2\x82", 2}, {"\xF5\x80\x80\x80", 4}, {"\xF0\x9F\x98", 3}};
  for (const auto& [bytes, count] : ill_formed) {
    std::string expected = "\"a";
    for (size_t i = 0; i < count; ++i) expected += "\xEF\xBF\xBD";
    EXPECT_EQ(JsonValue("a" + bytes + "b").dump(), expected + "b\"");
  }
}

TEST(JsonBytes, Nesting) {
  JsonValue value = JsonValue::object();
  value.set("b", 1).set("a", JsonValue::array().push(true).push(nullptr).push(-7).push(0.25));
  value.set("\n\xFF", JsonValue::object().set(
                          "deep", JsonValue::array()
                                      .push(JsonValue::array())
                                      .push(JsonValue::object())
                                      .push(JsonValue::array().push(INT64_MIN).push(INT64_MAX))));
  value.set("", "");
  EXPECT_EQ(value.dump(),
            "{\"b\": 1, \"a\": [true, null, -7, 0.25], \"\\n\xEF\xBF\xBD\": {\"deep\": [[], {}, "
            "[-9223372036854775808, 9223372036854775807]]}, \"\": \"\"}");
  EXPECT_EQ(value.dump(1),
            "{\n \"b\": 1,\n \"a\": [\n  true,\n  null,\n  -7,\n  0.25\n ],\n \"\\n\xEF\xBF\xBD\": "
            "{\n  \"deep\": [\n   [],\n   {},\n   [\n    -9223372036854775808,\n"
            "    9223372036854775807\n   ]\n  ]\n },\n \"\": \"\"\n}");
}

// Where the reader stops: bytes count from 1.
TEST(JsonBytes, PlacesOfErrors) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "f.json: not valid JSON at byte 1: "},
      {"{", "f.json: not valid JSON at byte 2: "},
      {"[1,]", "f.json: not valid JSON at byte 4: "},
      {"{\"a\" 1}", "f.json: not valid JSON at byte 6: "},
      {"nan", "f.json: not valid JSON at byte 2: "},
      {"1 2", "f.json: not valid JSON at byte 3: "},
      {"\"\x80\"", "f.json: not valid JSON at byte 2: "},
      {"\"\\ud800\"", "f.json: not valid JSON at byte 8: "},
      {"[1e999]", "f.json: not valid JSON at byte 6: "},
      {"\"\t\"", "f.json: not valid JSON at byte 2: "},
      {"{\"k\": {\"a\": 1, \"a\": [", "f.json: the key 'a' is there twice"},
      {"9223372036854775808",
       "f.json: the integer 9223372036854775808 exceeds 64 bits with a sign"},
      {"-9223372036854775809",
       "f.json: the integer -9223372036854775809 exceeds 64 bits with a sign"},
      {"[[[1]]]", "f.json: nested deeper than 2 levels"},
      {"{\"a\": {\"b\": {}}}", "f.json: nested deeper than 2 levels"},
      {"[1, 2, 3, 4, 5, 6, 7, 8]", "f.json: has 24 bytes, more than the limit of 22"},
  };
  for (const auto& [text, expected] : cases) {
    std::string message;
    try {
      (void)parse_json(text, "f.json", {.bytes = 22, .depth = 2});
    } catch (const Error& error) {
      message = error.what();
    }
    const std::string start = message.substr(0, std::string_view(expected).size());
    EXPECT_EQ(start, expected) << text << "\ngave: " << message;
  }
  EXPECT_EQ(parse_json("\xEF\xBB\xBF[1]", "f.json").dump(), "[1]");
}

}  // namespace
}  // namespace linnet
