// Strict numbers and truth values.
#include "core/config_scalar.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/config_node.h"

namespace linnet {
namespace {

TEST(ConfigScalar, WholeNumbers) {
  const std::pair<const char*, int64_t> accepted[] = {
      {"0", 0},
      {"-0", 0},
      {"5", 5},
      {"+5", 5},
      {"-17", -17},
      {"1e4", 10000},
      {"1E4", 10000},
      {"2.0", 2},
      {"2.5e3", 2500},
      {"1200e-2", 12},
      {"0e5", 0},
      {"9223372036854775807", INT64_MAX},
      {"-9223372036854775808", INT64_MIN},
      {"9.223372036854775807e18", INT64_MAX},
  };
  for (const auto& [text, expected] : accepted) {
    std::string why;
    const auto value = parse_int(text, why);
    ASSERT_TRUE(value.has_value()) << text << ": " << why;
    EXPECT_EQ(*value, expected) << text;
  }
  for (const char* text : {"",
                           "-",
                           "+",
                           ".",
                           "e5",
                           "1e",
                           "1e+",
                           "0x10",
                           "010",
                           "-010",
                           "00",
                           "1_000",
                           "1,000",
                           "1.5",
                           "5e-1",
                           "1e30",
                           "9223372036854775808",
                           "-9223372036854775809",
                           "1e999999999999",
                           "nan",
                           ".inf",
                           "abc",
                           "5 ",
                           " 5",
                           "5k",
                           "--5",
                           "1.2.3",
                           "true",
                           "1e400"}) {
    std::string why;
    EXPECT_FALSE(parse_int(text, why).has_value()) << text;
  }
}

TEST(ConfigScalar, RealNumbers) {
  const std::pair<const char*, double> accepted[] = {
      {"5e-4", 5e-4}, {".5", 0.5},    {"1.", 1.0},  {"-2.25", -2.25}, {"+1e3", 1000.0},
      {"0", 0.0},     {"0e999", 0.0}, {"1e0", 1.0}, {"1E-08", 1e-8},  {"3", 3.0},
  };
  for (const auto& [text, expected] : accepted) {
    std::string why;
    const auto value = parse_double(text, why);
    ASSERT_TRUE(value.has_value()) << text << ": " << why;
    EXPECT_EQ(*value, expected) << text;
  }
  for (const char* text : {"", ".", "-", "nan", ".nan", "NaN", "inf", "-.inf", ".Inf", "infinity",
                           "1e400", "-1e400", "1e-400", "01.5", "0x1p3", "1d3", "1e5.5", "--1"}) {
    std::string why;
    EXPECT_FALSE(parse_double(text, why).has_value()) << text;
  }
}

TEST(ConfigScalar, RefusalsSayWhy) {
  std::string why;
  parse_int("010", why);
  EXPECT_NE(why.find("leading zero"), std::string::npos);
  parse_int("1.5", why);
  EXPECT_NE(why.find("fraction"), std::string::npos);
  parse_int("1e30", why);
  EXPECT_NE(why.find("64 bits"), std::string::npos);
  parse_double("-.inf", why);
  EXPECT_NE(why.find("infinity"), std::string::npos);
  parse_int("1_000", why);
  EXPECT_NE(why.find("'_'"), std::string::npos);
}

TEST(ConfigScalar, TruthValues) {
  std::string why;
  EXPECT_EQ(parse_bool("true", why), true);
  EXPECT_EQ(parse_bool("false", why), false);
  for (const char* text : {"yes", "True", "on", "1", "Y"}) {
    EXPECT_FALSE(parse_bool(text, why).has_value());
    EXPECT_EQ(why, "write true") << text;
  }
  for (const char* text : {"no", "FALSE", "off", "0"}) {
    EXPECT_FALSE(parse_bool(text, why).has_value());
    EXPECT_EQ(why, "write false") << text;
  }
}

TEST(ConfigScalar, FormattedDoublesReadBackToTheSameBits) {
  EXPECT_EQ(format_double(5e-4), "5e-4");
  EXPECT_EQ(format_double(0.1), "0.1");
  EXPECT_EQ(format_double(3), "3");
  EXPECT_EQ(format_double(1e300), "1e300");
  EXPECT_THROW(format_double(NAN), Error);
  EXPECT_THROW(format_double(INFINITY), Error);
  uint64_t state = 7;
  for (int i = 0; i < 2000; ++i) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    double value = 0;
    const uint64_t bits = state ^ (state >> 29);
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isnormal(value)) continue;
    std::string why;
    EXPECT_EQ(parse_double(format_double(value), why), value) << format_double(value);
  }
}

TEST(ConfigScalar, TextIsQuotedWhereItWouldBeReadDifferently) {
  for (const char* text :
       {"",     "null", "~",   "true", "no", "5",  "1e4", "010", "nan", "- a",     "a: b", "a #b",
        " a",   "a ",   "[a",  "{",    "*a", "&a", "!a",  "%a",  "@a",  "`a",      "'",    "\"",
        "a\nb", "---",  "...", "<<",   "|",  ">",  "?",   "-",   "a,b", "\xC3\xA9"}) {
    EXPECT_TRUE(ConfigNode::text(text).quoted()) << text;
  }
  for (const char* text : {"lavo", "../common/a.yaml", "./x", "/data/pg19", "gpt2-small", "a b",
                           "elu+1", "inverse_sqrt", "-x", "v1.2"}) {
    EXPECT_FALSE(ConfigNode::text(text).quoted()) << text;
  }
}

}  // namespace
}  // namespace linnet
