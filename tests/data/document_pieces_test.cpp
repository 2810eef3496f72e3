// Documents in pieces: the same text, the same errors, the same tokens.
#include "data/document_pieces.h"

#include <gmock/gmock.h>

#include "data/word_tokenizer.h"
#include "data/words.h"
#include "tests/data/cuts.h"
#include "tests/data/temporary_folder.h"
#include "tests/data_path.h"

namespace linnet {
namespace {

using test::causes_of;
using test::expect_cuts;
using test::message_of;
using test::TemporaryFolder;
using testing::HasSubstr;

std::vector<std::string> pieces_of(const SourceFile& file, const DocumentPieces::Cut& cut) {
  DocumentPieces text(file, cut);
  std::vector<std::string> pieces;
  while (text.next()) pieces.emplace_back(text.piece());
  return pieces;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

TEST(DocumentPieces, AreTheTextWhereverItIsCut) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; text.size() < 5'000'000; ++i)
    text += concat("w\xC3\xB6rd", i, i % 9 ? " " : "\n");
  const std::string path = folder.write("a.txt", text);
  const auto nowhere = [](std::string_view) { return size_t{0}; };
  const auto anywhere = [](std::string_view seen) { return seen.size(); };
  EXPECT_EQ(pieces_of({path, "a"}, nowhere).size(), 1u);
  EXPECT_EQ(pieces_of({path, "a"}, nowhere).at(0), text);
  for (const DocumentPieces::Cut& cut : {DocumentPieces::Cut(anywhere), {end_of_last_space}}) {
    const auto pieces = pieces_of({path, "a"}, cut);
    EXPECT_EQ(joined(pieces), text);
    EXPECT_GE(pieces.size(), 5u);
    for (const std::string& piece : pieces) EXPECT_LE(piece.size(), 1'048'600u);
    // A part begins and ends where it is said to.
    const size_t begin = text.find('\n', 1'000), end = text.find('\n', 3'000'000);
    const auto part = pieces_of({path, "a", begin, end}, cut);
    EXPECT_EQ(joined(part), text.substr(begin, end - begin));
    EXPECT_GE(part.size(), 3u);
  }
  // A place to cut that is far away.
  std::string wide(3'000'000, 'x');
  wide += ' ' + wide;
  const auto pieces = pieces_of({folder.write("b.txt", wide), "b"}, end_of_last_space);
  EXPECT_EQ(joined(pieces), wide);
  EXPECT_EQ(pieces.size(), 2u);
  EXPECT_TRUE(pieces_of({folder.write("c.txt", ""), "c"}, nowhere).empty());
}

TEST(DocumentPieces, InvalidTextIsNamedWithItsOffsetInTheFile) {
  TemporaryFolder folder;
  constexpr size_t kMiB = size_t{1} << 20;
  const auto anywhere = [](std::string_view seen) { return seen.size(); };
  // Around the places where pieces end, within characters of two to four bytes.
  for (const std::string character : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\xA6\x99"}) {
    for (size_t at = kMiB - 4; at <= kMiB + 1; ++at) {
      SCOPED_TRACE(at);
      const std::string before(at, 'x'), whole = before + character + std::string(9, 'y');
      const SourceFile file{folder.write("a.txt", whole), "a"};
      EXPECT_EQ(joined(pieces_of(file, anywhere)), whole);
      std::string broken = whole;
      broken[at + character.size() - 1] = 'z';
      folder.write("a.txt", broken);
      EXPECT_THAT(message_of([&] { pieces_of(file, anywhere); }),
                  HasSubstr(concat("at byte offset ", at, ";")));
      folder.write("a.txt", whole.substr(0, at + character.size() - 1));
      EXPECT_THAT(message_of([&] { pieces_of(file, anywhere); }),
                  testing::AllOf(HasSubstr("truncated"), HasSubstr(concat("byte offset ", at))));
    }
  }
  const SourceFile part{folder.write("p.txt", "0123456789\xFF more text"), "p", 5, 20};
  EXPECT_THAT(message_of([&] { pieces_of(part, anywhere); }), HasSubstr("at byte offset 10;"));
  const SourceFile beyond{folder.write("p.txt", "0123456789"), "p", 5, 20};
  EXPECT_EQ(causes_of([&] { pieces_of(beyond, anywhere); }, folder.path()), "conflict at p.txt");
  EXPECT_THAT(message_of([&] { pieces_of(beyond, anywhere); }), HasSubstr("has 10 bytes"));
  EXPECT_EQ(causes_of(
                [&] {
                  pieces_of({folder / "gone", "g"}, anywhere);
                },
                folder.path()),
            "not_found at gone");
}

TEST(LastCut, PartsHaveTheIdsOfTheWhole) {
  expect_cuts(*make_tokenizer({}), true);
  WordVocabularyBuilder builder;
  builder.add("a It's don't 1234\n");
  expect_cuts(*builder.build(), true);
  LINNET_REQUIRE_DATA(folder, "tokenizers");
  expect_cuts(*make_tokenizer({.kind = "gpt2", .path = folder + "/gpt2"}), true);
  expect_cuts(*make_tokenizer({.kind = "roberta", .path = folder + "/roberta-base"}), true);
  for (const bool lowercase : {false, true}) {
    expect_cuts(
        *make_tokenizer(
            {.kind = "wordpiece", .path = folder + "/bert-base-uncased", .lowercase = lowercase}),
        true);
  }
}

}  // namespace
}  // namespace linnet
