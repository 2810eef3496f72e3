// Text from outside in messages: nothing is echoed at full length, no control character reaches a
// terminal.
#include "core/echo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/config.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"
#include "core/utf8.h"
#include "core/yaml.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Echo, LongTextKeepsItsBeginningAndItsEnd) {
  EXPECT_EQ(shortened("abcdefghijk", 11), "abcdefghijk");
  EXPECT_EQ(shortened("abcdefghijkl", 11), "abcd…ijkl");
  EXPECT_EQ(shortened("", 8), "");
  // Characters of two, three and four bytes, at every place of the cut.
  for (const std::string& character : std::vector<std::string>{"é", "–", "😀"}) {
    for (size_t shift = 0; shift < 5; ++shift) {
      std::string text(shift, 'x');
      while (text.size() < 300) text += character;
      for (size_t bytes = 8; bytes < 30; ++bytes) {
        const std::string shown = shortened(text, bytes);
        EXPECT_LE(shown.size(), bytes);
        EXPECT_EQ(find_invalid_utf8(shown), std::string::npos) << shown;
        EXPECT_THAT(shown, HasSubstr("…"));
      }
    }
  }
  // Bytes that are no text at all are cut where it happens to be.
  EXPECT_LE(shortened(std::string(1000, '\xBF'), 20).size(), 20u);
}

TEST(Echo, MessagesAreShortenedByWordLineAndWhole) {
  const std::string prose(300, 'a');
  EXPECT_EQ(shortened_message(prose + " " + prose), prose + " " + prose);
  EXPECT_EQ(shortened_message("no '" + std::string(1000, 'a') + "' here"),
            "no " + shortened("'" + std::string(1000, 'a') + "'") + " here");
  std::string words, lines;
  for (int i = 0; i < 50'000; ++i) words += "a ";
  for (int i = 0; i < 50'000; ++i) lines += "a\n";
  EXPECT_LE(shortened_message("x " + words + "y").size(), 2000u);
  EXPECT_THAT(shortened_message("x " + words + "y"), AllOf(StartsWith("x a"), EndsWith("a y")));
  EXPECT_LE(shortened_message(lines).size(), 20000u);
}

// Whatever throws: code, key, place and every problem.
TEST(Echo, NoErrorEchoesALongArgument) {
  const std::string longest(100'000, 'a');
  const auto expect_short = [](const auto& body) {
    try {
      body();
      ADD_FAILURE() << "nothing thrown";
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 2000u);
      EXPECT_LE(error.key().size(), kLongestEcho);
      EXPECT_LE(error.place().size(), kLongestEcho);
      for (const Error::Problem& problem : error.problems()) EXPECT_LT(problem.text.size(), 2000u);
    }
  };
  expect_short([&] { read_file(longest); });
  expect_short([&] { parse_json("{\"" + longest + "\": 1, \"" + longest + "\": 1}", longest); });
  expect_short([&] { parse_yaml(longest + ": 1\n" + longest + ": 2\n", "r.yaml"); });
  expect_short([&] { read_int(ConfigNode::scalar(longest), longest); });
  expect_short([&] {
    ConfigErrors errors;
    errors.add({}, ErrorCode::unknown_key, longest, "unknown key " + longest);
    errors.throw_if_any();
  });
}

TEST(Echo, ControlCharactersAreSpeltOut) {
  EXPECT_EQ(printable("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(printable(std::string_view("\x1b[2J\0\r\x7f", 7)), "\\x1b[2J\\x00\\x0d\\x7f");
  EXPECT_EQ(printable("\xff–"), "\xEF\xBF\xBD–");
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J \xC2\x80 \xC2\xA0\xC3\x9B"),
            "\\x9b2J \\x80 \xC2\xA0\xC3\x9B");
  testing::internal::CaptureStderr();
  log_info("file \x1b]0;title\x07");
  log_error("word '", std::string(100'000, 'x'), "'");
  const std::string console = testing::internal::GetCapturedStderr();
  EXPECT_THAT(console, AllOf(StartsWith("file \\x1b]0;title\\x07\nerror: word 'xxx"),
                             Not(HasSubstr("\x1b")), HasSubstr("…")));
  EXPECT_LT(console.size(), 600u);
}

}  // namespace
}  // namespace linnet
