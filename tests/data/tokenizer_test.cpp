// Tests of the byte and word tokenizers, and of what all tokenizers share.
#include "data/tokenizer.h"

#include <gmock/gmock.h>

#include "core/error.h"
#include "core/files.h"
#include "data/tokenizer_kinds.h"
#include "data/word_tokenizer.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using test::causes_of;
using testing::ElementsAre;

TEST(ByteTokenizer, IdsAreBytesAndEveryByteComesBack) {
  const auto tokenizer = make_tokenizer({.kind = "byte"});
  EXPECT_EQ(tokenizer->vocabulary_size(), 256);
  EXPECT_EQ(tokenizer->eos_id(), -1);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const auto ids = tokenizer->encode(all);
  ASSERT_EQ(ids.size(), 256u);
  for (int byte = 0; byte < 256; ++byte) EXPECT_EQ(ids[static_cast<size_t>(byte)], byte);
  EXPECT_EQ(tokenizer->decode(ids), all);
}

TEST(ByteTokenizer, EndOfTextIsAnExtraIdThatDecodesToNothing) {
  const auto tokenizer = make_tokenizer({.kind = "byte", .eos = true});
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->eos_id(), 256);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{'a', 256, 'b'}), "ab");
  for (const int32_t id : {257, -1}) {
    EXPECT_EQ(causes_of([&] { tokenizer->decode(std::vector<int32_t>{id}); }), "out_of_range");
  }
}

TEST(WordTokenizer, VocabularyIsSortedByFrequencyWithSpecialsInPlace) {
  WordVocabularyBuilder builder;
  for (const char* piece : {"b a ", "a <unk>\n b a\n", "\nc"}) builder.add(piece);
  builder.end_text();
  const auto tokenizer = builder.build();
  // <eos> 4 times (the last line has none of its own but counts), a 3, b 2, then <unk> and c by
  // bytes.
  EXPECT_THAT(tokenizer->encode("a b <unk> c\n"), ElementsAre(1, 2, 3, 4, 0));
  EXPECT_EQ(tokenizer->vocabulary_size(), 5);
  EXPECT_EQ(tokenizer->eos_id(), 0);
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{1, 2, 0, 4}), "a b\nc");
}

TEST(WordTokenizer, SizeLimitKeepsTheMostFrequentAndBothSpecials) {
  WordVocabularyBuilder builder;
  builder.add("a a a b b c\n");
  const auto tokenizer = builder.build(4);
  EXPECT_EQ(tokenizer->vocabulary_size(), 4);
  const auto ids = tokenizer->encode("a b c\n");
  EXPECT_EQ(tokenizer->decode(ids), "a b <unk>\n");
  EXPECT_EQ(causes_of<UsageError>([&] { builder.build(2); }),
            "out_of_range data.tokenizer.vocabulary_size");
  EXPECT_THROW(WordVocabularyBuilder().build(), Error);
}

TEST(WordTokenizer, UnknownWordsAreCountedWithUnkAndFailWithout) {
  UnknownWords unknown;
  const auto with = word_tokenizer_from_payload("<unk>\nknown\n", "v.txt");
  EXPECT_THAT(with->encode("known zebra yak <unk>", &unknown), ElementsAre(1, 0, 0, 0));
  EXPECT_EQ(unknown.count, 2);
  EXPECT_EQ(unknown.first, "zebra");

  const auto without = word_tokenizer_from_payload("known\n", "v.txt");
  EXPECT_EQ(causes_of([&] { without->encode("known zebra"); }), "unknown_name zebra");
  EXPECT_EQ(causes_of([&] { without->encode("known\n"); }), "unknown_name <eos>");
}

TEST(WordTokenizer, BrokenVocabulariesAreRefusedWithTheLine) {
  const auto refusal = [](std::string_view text) {
    return causes_of([&] { word_tokenizer_from_payload(text, "v.txt"); });
  };
  EXPECT_EQ(refusal("a\nb\na\n"), "repeated a at v.txt:3");
  EXPECT_EQ(refusal("a\n\nb\n"), "malformed at v.txt:2");
  EXPECT_EQ(refusal("a\nb c\n"), "malformed b c at v.txt:2");
  EXPECT_EQ(refusal(""), "malformed at v.txt");
  EXPECT_EQ(refusal("a\n\xFF\n"), "malformed at v.txt");
  EXPECT_EQ(refusal("a\r\na\r\n"), "repeated a at v.txt:2");
  EXPECT_EQ(refusal("a\r\n\r\nb\r\n"), "malformed at v.txt:2");
}

TEST(WordTokenizer, SavedFileAndBlobGiveTheSameTokenizer) {
  WordVocabularyBuilder builder;
  builder.add("the cat sat on the mat\n");
  const auto tokenizer = builder.build();
  const test::TemporaryFolder folder;
  const std::string path = folder / "words.txt";
  save_word_vocabulary(*tokenizer, path);
  const auto loaded = make_tokenizer({.kind = "word", .path = path});
  const auto restored = tokenizer_from_blob(tokenizer->serialise());
  EXPECT_EQ(loaded->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(restored->fingerprint(), tokenizer->fingerprint());
  EXPECT_EQ(restored->encode("the mat\n"), tokenizer->encode("the mat\n"));
  EXPECT_EQ(causes_of<UsageError>([&] { save_word_vocabulary(*make_tokenizer({}), path); }),
            "conflict data.tokenizer.kind");
}

TEST(WordTokenizer, ByteOrderMarksAndWindowsLineEndsMeanNothing) {
  const test::TemporaryFolder folder;
  const auto load = [&](std::string_view text) {
    return load_word_tokenizer(folder.write("words.txt", text))->serialise();
  };
  const std::string plain = load("the\n<unk>\n<eos>\n");
  EXPECT_EQ(load("the\r\n<unk>\r\n<eos>\r\n"), plain);
  EXPECT_EQ(load("\xEF\xBB\xBFthe\n<unk>\n<eos>"), plain);
  EXPECT_EQ(load("\xEF\xBB\xBFthe\r\n<unk>\n<eos>\r\n"), plain);
  // A mark that a training text put into a vocabulary stays in that of a checkpoint.
  WordVocabularyBuilder builder;
  builder.add("\xEF\xBB\xBFthe\n");
  const auto built = builder.build();
  EXPECT_EQ(tokenizer_from_blob(built->serialise())->serialise(), built->serialise());
}

TEST(WordTokenizer, AWordThatBeginsWithAByteOrderMarkIsSavedWithIt) {
  WordVocabularyBuilder builder;
  builder.add("\xEF\xBB\xBFmark \xEF\xBB\xBFmark other\n");
  const auto made = builder.build();
  const test::TemporaryFolder folder;
  save_word_vocabulary(*made, folder / "words.txt");
  EXPECT_EQ(load_word_tokenizer(folder / "words.txt")->serialise(), made->serialise());
}

TEST(Tokenizer, KindsAndBlobsAreChecked) {
  EXPECT_EQ(causes_of<UsageError>([] { make_tokenizer({.kind = "bytes"}); }),
            "unknown_name data.tokenizer.kind");
  for (const TokenizerKind& each : tokenizer_kinds()) {
    if (each.path == TokenizerKind::Path::none) continue;
    const char* kind = each.name;
    EXPECT_EQ(causes_of<UsageError>([&] { make_tokenizer({.kind = kind}); }),
              "missing_key data.tokenizer.path");
  }
  EXPECT_EQ(causes_of([] { make_tokenizer({.kind = "word", .path = "/absent/v"}); }),
            "not_found at /absent/v");
  const auto plain = make_tokenizer({}), eos = make_tokenizer({.eos = true});
  EXPECT_NE(plain->fingerprint(), eos->fingerprint());
  EXPECT_EQ(tokenizer_from_blob(eos->serialise())->eos_id(), 256);
  for (const char* blob : {"", "linnet tokenizer 1 byte", "linnet tokenizer 1 byte\n",
                           "linnet tokenizer 1 bits\n", "linnet tokenizer 2 byte\nplain"})
    EXPECT_EQ(causes_of([&] { tokenizer_from_blob(blob, "checkpoint"); }),
              "malformed at checkpoint");
}

}  // namespace
}  // namespace linnet
