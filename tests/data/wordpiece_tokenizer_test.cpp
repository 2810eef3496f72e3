// Tests of BERT's WordPiece against published vectors and a literal greedy loop.
#include "data/wordpiece_tokenizer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/random.h"
#include "data/corpus.h"
#include "data/wordpiece.h"
#include "tests/data/published_texts.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using test::causes_of;
using testing::ElementsAre;

const Tokenizer* published() {
  static const std::string folder = test::data_path("tokenizers/bert-base-uncased");
  static const auto tokenizer = folder.empty() ? nullptr : load_wordpiece_tokenizer(folder, true);
  return tokenizer.get();
}

constexpr const char* kSmall =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\n##aff\n##able\nable\n,\nUn\n\xC3\xA9t\xC3\xA9\nete\n";

std::vector<int32_t> encode(std::string_view text, bool lowercase = true) {
  return make_wordpiece_tokenizer(kSmall, lowercase, "v")->encode(text);
}

TEST(WordPieceTokenizer, PublishedTextsGiveThePublishedIds) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/bert-base-uncased/tests");
  const auto texts = test::published_texts(folder + "/ggml-vocab-bert-bge.gguf.inp",
                                           folder + "/ggml-vocab-bert-bge.gguf.out");
  ASSERT_EQ(texts.size(), 47u);
  for (const auto& [text, ids] : texts) EXPECT_EQ(published()->encode(text), ids) << text;
}

TEST(WordPieceTokenizer, PublishedParagraphGivesThePublishedIds) {
  LINNET_REQUIRE_DATA(path, "tokenizers/bert-base-uncased/tests/bert_uncased_encoded.json");
  const auto json = nlohmann::json::parse(read_file(path));
  const auto expected = json.at("token_ids").get<std::vector<int32_t>>();
  std::vector<int32_t> ids = published()->encode(json.at("text").get<std::string>());
  ids.insert(ids.begin(), published()->special_id("cls"));
  ids.push_back(published()->special_id("sep"));
  EXPECT_EQ(ids, expected);
}

TEST(WordPieceTokenizer, PublishedSpecialIds) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/bert-base-uncased");
  EXPECT_EQ(published()->vocabulary_size(), 30522);
  std::vector<int32_t> ids;
  for (const char* name : {"pad", "unk", "cls", "sep", "mask"})
    ids.push_back(published()->special_id(name));
  EXPECT_THAT(ids, ElementsAre(0, 100, 101, 102, 103));
  EXPECT_EQ(causes_of([&] { published()->special_id("start"); }), "unknown_name start");
  // No text has them.
  for (const int32_t id : published()->encode("[CLS] [MASK]")) EXPECT_GT(id, 103);
}

TEST(WordPieceTokenizer, WordsAreTheLongestTokensFromTheLeft) {
  EXPECT_THAT(encode("unaffable, UNABLE"), ElementsAre(5, 6, 7, 9, 5, 7));
  EXPECT_THAT(encode("unx able"), ElementsAre(1, 8));  // no part of a word that fails is kept
  EXPECT_THAT(encode("Un un", false), ElementsAre(10, 5));
}

TEST(WordPieceTokenizer, AccentsGoWithUpperCaseOnly) {
  EXPECT_THAT(encode("\xC3\x89T\xC3\x89 e\xCC\x81te"), ElementsAre(12, 12));
  EXPECT_THAT(encode("\xC3\xA9t\xC3\xA9 e\xCC\x81te", false), ElementsAre(11, 1));
}

TEST(WordPieceTokenizer, ControlCharactersVanishAndWhiteSpaceDivides) {
  EXPECT_EQ(encode(std::string("u\0n\x01\xC2\xAD\xEF\xBF\xBD", 9)), encode("un"));
  EXPECT_EQ(encode("un\xE3\x80\x80un\xE2\x80\xA8un\tun"), encode("un un un un"));
  EXPECT_THAT(encode("un\xE4\xB8\xADun"), ElementsAre(5, 1, 5));  // an ideograph stands alone
}

TEST(WordPieceTokenizer, WordsOfMoreThan100CharactersAreUnknown) {
  const std::string a = "\xC3\xA6";  // two bytes, one character
  const auto tokenizer = make_wordpiece_tokenizer("[UNK]\n" + a + "\n##" + a, true, "v");
  std::string word;
  for (int i = 0; i < 100; ++i) word += a;
  EXPECT_EQ(tokenizer->encode(word).size(), 100u);
  UnknownWords unknown;
  EXPECT_THAT(tokenizer->encode(word + a, &unknown), ElementsAre(0));
  EXPECT_EQ(unknown.count, 1);
}

TEST(WordPieceTokenizer, DecodeJoinsPiecesAndSeparatesWords) {
  const auto tokenizer = make_wordpiece_tokenizer(kSmall, true, "v");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{2, 5, 6, 7, 9, 8, 1, 3, 0}),
            "unaffable , able [UNK]");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{7, 4}), "able");
}

TEST(WordPieceTokenizer, PiecesOfAWordAreOneWordOfTheMeasure) {
  const auto tokenizer = make_wordpiece_tokenizer(kSmall, true, "v");
  const TokenMeasure measure(*tokenizer, false, false);
  EXPECT_EQ(measure.words(-1, 5), 1);  // "un"
  EXPECT_EQ(measure.words(5, 7), 0);   // "##able"
  EXPECT_EQ(measure.words(7, 8), 1);   // "able"
  EXPECT_EQ(measure.words(8, 3), 0);   // [SEP]
  EXPECT_EQ(measure.bytes(5) + measure.bytes(7), 7);
}

TEST(WordPieceTokenizer, BlobRestoresTheSameTokenizer) {
  for (const bool lowercase : {true, false}) {
    const auto made = make_wordpiece_tokenizer(kSmall, lowercase, "v");
    const auto restored = tokenizer_from_blob(made->serialise());
    EXPECT_EQ(restored->fingerprint(), made->fingerprint());
    EXPECT_EQ(restored->encode("Un un"), made->encode("Un un"));
  }
  EXPECT_EQ(causes_of([] { tokenizer_from_blob("linnet tokenizer 1 wordpiece\n[UNK]\n"); }),
            "malformed at tokenizer");
}

TEST(WordPieceTokenizer, BrokenVocabulariesAreRefusedWithTheLine) {
  const auto refusal = [](std::string_view text) {
    return causes_of([&] { make_wordpiece_tokenizer(text, true, "v.txt"); });
  };
  EXPECT_EQ(refusal("[UNK]\na\r\na\r\n"), "repeated a at v.txt:3");
  EXPECT_EQ(refusal("[UNK]\n\nb\n"), "malformed at v.txt:2");
  EXPECT_EQ(refusal("[UNK]\na\r\r\n"), "malformed at v.txt:2");  // stored, it would lose one
  EXPECT_EQ(refusal("[UNK]\ra\rb\r"), "malformed at v.txt:1");
  EXPECT_EQ(refusal("a\n"), "malformed [UNK] at v.txt");
  EXPECT_EQ(refusal("[UNK]\n\xFF\n"), "malformed at v.txt");
  EXPECT_EQ(causes_of([] { load_wordpiece_tokenizer("/absent", true); }),
            "not_found data.tokenizer.path at /absent");
}

TEST(WordPieceTokenizer, EveryByteOfAVocabularyMayBeWrong) {
  int refused = 0;
  const std::string good = kSmall;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      try {
        const auto tokenizer = make_wordpiece_tokenizer(bad, true, "v");
        tokenizer->decode(tokenizer->encode("unaffable \xC3\xA9t\xC3\xA9, x"));
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(WordPiece, TrieAgreesWithTheLiteralDefinition) {
  const std::vector<std::string> tokens = {"[UNK]", "a",    "ab",   "abc", "b",  "##a",
                                           "##b",   "##bc", "##ca", "cab", "##", "##abca"};
  const WordPiece model(tokens, {.unknown_id = 0});
  PieceCache cache;
  const RandomKey key{3, 0, 0};
  for (uint64_t trial = 0; trial < 3000; ++trial) {
    std::string word;
    const uint64_t length = 1 + key.below(trial << 8, 9);
    for (uint64_t i = 0; i < length; ++i)
      word += static_cast<char>('a' + key.below((trial << 8) + 1 + i, 3));
    std::vector<int32_t> expected;
    for (size_t at = 0; at < word.size();) {
      size_t bytes = word.size() - at;
      int32_t found = -1;
      for (; bytes > 0 && found < 0; --bytes) {
        const std::string part = (at == 0 ? "" : "##") + word.substr(at, bytes);
        const auto place = std::find(tokens.begin(), tokens.end(), part);
        if (place != tokens.end()) found = static_cast<int32_t>(place - tokens.begin());
      }
      if (found < 0) {
        expected = {0};
        break;
      }
      expected.push_back(found);
      at += bytes + 1;
    }
    std::vector<int32_t> ids;
    model.encode_word(word, cache, ids);
    ASSERT_EQ(ids, expected) << word;
  }
}

}  // namespace
}  // namespace linnet
