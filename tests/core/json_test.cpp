// JSON: printing, parsing, refusals.
#include "core/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include <cmath>
#include <limits>
#include <random>

namespace linnet {
namespace {

using testing::HasSubstr;

std::string error_of(std::string_view text, JsonLimits limits = {}) {
  try {
    (void)parse_json(text, "file.json", limits);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Json, PrintsInOrderOnOneLineOrIndented) {
  JsonValue value = JsonValue::object();
  value.set("b", 1).set("a", JsonValue::array().push(true).push(nullptr).push("x\ny"));
  value.set("empty", JsonValue::object());
  EXPECT_EQ(value.dump(), R"({"b": 1, "a": [true, null, "x\ny"], "empty": {}})");
  value.set("b", 2.5);
  EXPECT_EQ(value.dump(2),
            "{\n  \"b\": 2.5,\n  \"a\": [\n    true,\n    null,\n    \"x\\ny\"\n  ],\n"
            "  \"empty\": {}\n}");
}

TEST(Json, NumbersComeBackExactly) {
  for (const double value : {0.1, -1e-320, 1.7976931348623157e308, 1.0 / 3, 123456789.125}) {
    EXPECT_EQ(parse_json(JsonValue(value).dump(), "x").number(), value);
  }
  for (const int64_t value : {INT64_MIN, int64_t{0}, INT64_MAX}) {
    EXPECT_EQ(parse_json(JsonValue(value).dump(), "x").integer(), value);
  }
  EXPECT_THROW(JsonValue(UINT64_MAX), Error);
}

TEST(Json, NonFiniteNumbersAreTexts) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(JsonValue(inf).dump(), "\"inf\"");
  // Whole numbers beyond 64 bits keep an exponent: a perplexity can be that bad.
  EXPECT_EQ(JsonValue(6.5e20).dump(), "6.5e+20");
  EXPECT_EQ(parse_json(JsonValue(666648074646432251904.0).dump(), "x").number(),
            666648074646432251904.0);
  EXPECT_EQ(parse_json(JsonValue(-0x1p63).dump(), "x").number(), -0x1p63);
  EXPECT_EQ(parse_json(JsonValue(-inf).dump(), "x").number(), -inf);
  EXPECT_TRUE(std::isnan(parse_json(JsonValue(std::nan("")).dump(), "x").number()));
  EXPECT_THROW((void)JsonValue("infinite").number(), Error);
}

TEST(Json, TextIsEscapedAndMadeValid) {
  const std::string text(
      "\"\\\t\x01\x7f"
      "\xC3\xA9\xF0\x9F\x98\x80",
      11);
  EXPECT_EQ(JsonValue(text).dump(), "\"\\\"\\\\\\u0009\\u0001\\u007f\xC3\xA9\xF0\x9F\x98\x80\"");
  EXPECT_EQ(parse_json(JsonValue(text).dump(), "x").text(), text);
  // A stray continuation byte, an overlong NUL, a surrogate, a cut sequence.
  for (const char* bad : {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xE2\x82", "\xF5\x80\x80\x80"}) {
    const std::string dumped = JsonValue(bad).dump();
    EXPECT_THAT(dumped, HasSubstr("\xEF\xBF\xBD"));
    EXPECT_EQ(error_of(dumped), "");
  }
}

TEST(Json, AccessorsNameWhatTheyFound) {
  const JsonValue value = parse_json(R"({"a": 1, "b": {"c": [1, 2.5, "x"]}})", "x");
  EXPECT_EQ(value.at("a").integer(), 1);
  EXPECT_EQ(value.at("a").number(), 1.0);
  EXPECT_EQ(value.at("b").at("c").elements()[1].number(), 2.5);
  EXPECT_EQ(value.find("z"), nullptr);
  try {
    (void)value.at("b").integer();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "JSON: expected an integer, found an object");
  }
  EXPECT_THROW((void)value.at("z"), Error);
  EXPECT_THROW((void)value.at("a").text(), Error);
  EXPECT_THROW((void)value.at("a").find("x"), Error);
  EXPECT_THROW(JsonValue(1).set("a", 1), Error);
  EXPECT_THROW(JsonValue::object().push(1), Error);
}

TEST(Json, MalformedTextIsRefusedWithItsPlace) {
  EXPECT_THAT(error_of("{\"a\": }"), HasSubstr("file.json: not valid JSON at byte 7"));
  for (const char* bad : {"", "{", "[1,]", "{\"a\" 1}", "nan", "1 2", "'x'", "\"\x80\"", "// x"}) {
    EXPECT_THAT(error_of(bad), HasSubstr("file.json")) << bad;
  }
  EXPECT_THAT(error_of(R"({"a": 1, "a": 2})"), HasSubstr("'a' is there twice"));
  EXPECT_THAT(error_of("9223372036854775808"), HasSubstr("exceeds"));
  EXPECT_THAT(error_of("123456789012345678901234567890"), HasSubstr("exceeds"));
}

TEST(Json, LimitsHold) {
  const std::string deep = std::string(100'000, '[');
  EXPECT_THAT(error_of(deep), HasSubstr("deeper than 64"));
  EXPECT_EQ(error_of(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_THAT(error_of("[1, 2, 3]", {.bytes = 4}), HasSubstr("limit of 4"));
}

TEST(Json, DamagedTextIsReadOrRefusedButNeverCrashes) {
  const std::string intact =
      R"({"step": 12, "loss": 2.5e-3, "split": "v\u00e9\n", "l": [1, -2, {"a": [null, true]}]})";
  std::mt19937_64 random(1);
  int refused = 0;
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string text = intact;
    for (uint64_t change = random() % 3 + 1; change > 0; --change) {
      const size_t at = random() % text.size();
      const uint64_t kind = random() % 4;
      if (kind == 0) text[at] = static_cast<char>(random());
      if (kind == 1) text.erase(at, random() % 4 + 1);
      if (kind == 2) text.insert(at, text.substr(random() % text.size(), 5));
      if (kind == 3) text.insert(at, 1, "{}[]\",:0e\\"[random() % 10]);
      if (text.empty()) text.push_back(' ');
    }
    try {
      const JsonValue value = parse_json(text, "file.json");
      const std::string dumped = value.dump();
      EXPECT_EQ(parse_json(dumped, "again").dump(), dumped);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("file.json: "));
      ++refused;
    }
  }
  EXPECT_GT(refused, 10'000);
  EXPECT_LT(refused, 20'000);
}

TEST(Json, ManyMembersTakeLinearTime) {
  // Comparing each key with all others took ten seconds for this many.
  std::string text = "{";
  for (int i = 0; i < 100000; ++i) text += concat(i > 0 ? "," : "", "\"key ", i, "\":", i);
  const auto start = std::chrono::steady_clock::now();
  const JsonValue value = parse_json(text + "}", "many");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
  EXPECT_EQ(value.size(), 100000u);
  EXPECT_EQ(value.members()[99999].value.integer(), 99999);
}

}  // namespace
}  // namespace linnet
