// Tests of GPT-2's byte-pair encoding against published vectors and a literal merge loop.
#include "data/bpe_tokenizer.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/files.h"
#include "core/random.h"
#include "data/bpe_merges.h"
#include "data/byte_level_bpe.h"
#include "data/unicode.h"
#include "tests/data/published_texts.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using test::causes_of;
using test::message_of;
using testing::HasSubstr;

// The published tokenizer, loaded once; null when the data collection is absent.
const Tokenizer* published() {
  static const std::string folder = test::data_path("tokenizers/gpt2");
  static const auto tokenizer = folder.empty() ? nullptr : load_bpe_tokenizer(folder);
  return tokenizer.get();
}

// GPT-2's spelling of a byte, derived here independently of the code under test.
std::string spelling_of(int byte) {
  int shifted = 0;
  for (int b = 0; b <= byte; ++b) {
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    if (b == byte) {
      const int code = itself ? b : 256 + shifted;
      if (code < 0x80) return std::string(1, static_cast<char>(code));
      return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
    }
    shifted += !itself;
  }
  return "";
}

struct TinyVocabulary {
  std::string json, merges = "#version: 0.2\n";
  nlohmann::json object = nlohmann::json::object();
  int next = 0;
  TinyVocabulary() {
    for (int byte = 0; byte < 256; ++byte) object[spelling_of(byte)] = next++;
  }
  void merge(const std::string& left, const std::string& right) {
    merges += left + " " + right + "\n";
    object[left + right] = next++;
  }
  std::unique_ptr<Tokenizer> build() const {
    return make_bpe_tokenizer(object.dump(), merges, "tiny", "tiny");
  }
};

TEST(BpeTokenizer, PublishedTextsGiveThePublishedIds) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/gpt2/tests");
  const auto texts = test::published_texts(folder + "/ggml-vocab-gpt-2.gguf.inp",
                                           folder + "/ggml-vocab-gpt-2.gguf.out");
  ASSERT_EQ(texts.size(), 47u);
  for (const auto& [text, ids] : texts) {
    EXPECT_EQ(published()->encode(text), ids) << text;
    EXPECT_EQ(published()->decode(ids), text);
  }
}

TEST(BpeTokenizer, PublishedParagraphGivesThePublishedIds) {
  LINNET_REQUIRE_DATA(path, "tokenizers/gpt2/tests/gpt2_encoded_tokens.json");
  const auto json = nlohmann::json::parse(read_file(path));
  const auto expected = json.at("token_ids").get<std::vector<int32_t>>();
  const auto text = json.at("text").get<std::string>();
  ASSERT_GT(expected.size(), 100u);
  EXPECT_EQ(published()->encode(text), expected);
  EXPECT_EQ(published()->decode(expected), json.at("decoded_text").get<std::string>());
}

TEST(BpeTokenizer, PublishedVocabularySizeAndEndOfText) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/gpt2");
  EXPECT_EQ(published()->vocabulary_size(), 50257);
  EXPECT_EQ(published()->eos_id(), 50256);
  EXPECT_EQ(published()->special_id("pad"), 50256);
  EXPECT_EQ(published()->special_id("cls"), -1);
  EXPECT_EQ(published()->decode(std::vector<int32_t>{15496, 50256, 995}), "Hello world");
  // The special token arises only by explicit insertion, never from text.
  for (const int32_t id : published()->encode("<|endoftext|>")) EXPECT_NE(id, 50256);
}

TEST(BpeTokenizer, WikiTextTokenCountsAgreeWithTheKnownOnes) {
  LINNET_REQUIRE_DATA(folder, "wikitext-2-raw");
  const std::string test = read_file(folder + "/wiki.test.raw");
  const auto ids = published()->encode(test);
  EXPECT_EQ(ids.size(), 286221u);
  EXPECT_EQ(published()->decode(ids), test);
  EXPECT_EQ(published()->encode(read_file(folder + "/wiki.valid.raw")).size(), 249887u);
}

TEST(BpeTokenizer, BlobRestoresTheSameTokenizer) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/gpt2");
  const std::string blob = published()->serialise();
  const auto restored = tokenizer_from_blob(blob);
  EXPECT_EQ(restored->fingerprint(), published()->fingerprint());
  EXPECT_EQ(restored->encode(" this is a round trip"),
            published()->encode(" this is a round trip"));
  for (const size_t bytes : {size_t{25}, size_t{1000}, blob.size() / 2, blob.size() - 200'000})
    EXPECT_THROW(tokenizer_from_blob(std::string_view(blob).substr(0, bytes)), Error) << bytes;
}

TEST(BpeTokenizer, WhiteSpaceIsUnicodeWhiteSpace) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/gpt2");
  // U+0085 and U+3000 are white space, so they split off; U+180E is not (since Unicode 6.3), so it
  // joins the other symbols. Ids from the reference tokenizer.
  EXPECT_EQ(published()->encode("a\xC2\x85 b"), (std::vector<int32_t>{64, 126, 227, 275}));
  EXPECT_EQ(published()->encode("a\xE1\xA0\x8E!"), (std::vector<int32_t>{64, 157, 254, 236, 0}));
}

TEST(BpeTokenizer, InvalidUtf8IsRefused) {
  TinyVocabulary tiny;
  tiny.merge("a", "b");
  const auto tokenizer = tiny.build();
  EXPECT_THAT(message_of([&] { tokenizer->encode("ab\xC3"); }), HasSubstr("byte offset 2"));
}

// The definition: while some pair has a rank, merge all occurrences of the lowest, left to right.
std::vector<std::string> merge_literally(
    const std::string& piece, const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> parts;
  for (const char c : piece) parts.emplace_back(1, c);
  while (true) {
    size_t best = merges.size();
    for (size_t i = 0; i + 1 < parts.size(); ++i)
      for (size_t rank = 0; rank < best; ++rank)
        if (merges[rank] == std::pair(parts[i], parts[i + 1])) best = rank;
    if (best == merges.size()) return parts;
    std::vector<std::string> merged;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i + 1 < parts.size() && merges[best] == std::pair(parts[i], parts[i + 1])) {
        merged.push_back(parts[i] + parts[i + 1]);
        ++i;
      } else {
        merged.push_back(parts[i]);
      }
    }
    parts = merged;
  }
}

TEST(BpeMerges, HeapAgreesWithTheLiteralDefinition) {
  const std::vector<std::pair<std::string, std::string>> merges = {
      {"a", "a"},   {"b", "a"},   {"aa", "b"}, {"aa", "a"},  {"c", "aa"},
      {"ba", "ba"}, {"aab", "c"}, {"b", "b"},  {"aa", "aa"}, {"bb", "aab"}};
  TinyVocabulary tiny;
  for (const auto& [left, right] : merges) tiny.merge(left, right);
  const auto tokenizer = tiny.build();
  const RandomKey key{7, 0, 0};
  for (uint64_t trial = 0; trial < 2000; ++trial) {
    std::string piece;
    const uint64_t length = 1 + key.below(trial << 8, 40);
    for (uint64_t i = 0; i < length; ++i)
      piece += static_cast<char>('a' + key.below((trial << 8) + 1 + i, 3));
    std::vector<std::string> found;
    for (const int32_t id : tokenizer->encode(piece))
      found.push_back(tokenizer->decode(std::span(&id, 1)));
    ASSERT_EQ(found, merge_literally(piece, merges)) << piece;
  }
}

TEST(BpeMerges, LongRunsTakeLinearithmicTime) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/gpt2");
  // A quadratic merge loop would need hours for one piece of two million bytes.
  for (const char c : {'a', ' ', '!'}) {
    const std::string run(2'000'000, c);
    EXPECT_EQ(published()->decode(published()->encode(run)), run);
  }
}

// The pattern of GPT-2, alternative after alternative, on characters.
size_t piece_by_the_pattern(const std::u32string& text, size_t at) {
  const CharacterClasses* classes = character_classes();
  const auto is = [&](size_t i, CharacterClasses which) { return (classes[text[i]] & which) != 0; };
  for (const std::u32string_view word : {U"'s", U"'t", U"'re", U"'ve", U"'m", U"'ll", U"'d"})
    if (text.compare(at, word.size(), word) == 0) return at + word.size();
  const auto run = [&](size_t from, auto matches) {
    size_t end = from;
    while (end < text.size() && matches(end)) ++end;
    return end;
  };
  const auto letter = [&](size_t i) { return is(i, kLetter); };
  const auto number = [&](size_t i) { return is(i, kNumber); };
  const auto symbol = [&](size_t i) { return !is(i, kWhiteSpace | kLetter | kNumber); };
  const auto after_space = [&](auto matches) {
    const size_t from = at + (text[at] == U' ');
    if (const size_t end = run(from, matches); end > from) return end;
    return at;
  };
  for (const size_t end : {after_space(letter), after_space(number), after_space(symbol)})
    if (end > at) return end;
  const size_t end = run(at, [&](size_t i) { return is(i, kWhiteSpace); });
  for (size_t cut = end; cut > at; --cut)
    if (cut == text.size() || is(cut, kWhiteSpace)) return cut;
  return end;
}

TEST(BpeTokenizer, PiecesAreThoseOfThePattern) {
  const std::u32string alphabet = U"  \n\u3000a\u00E9s't1\u0661!\u0301lrev\U0001F600";
  const RandomKey key{5, 0, 0};
  for (uint64_t trial = 0; trial < 20'000; ++trial) {
    std::u32string characters;
    const uint64_t length = 1 + key.below(trial << 8, 12);
    for (uint64_t i = 0; i < length; ++i)
      characters += alphabet[key.below((trial << 8) + 1 + i, alphabet.size())];
    const std::string text = utf8_of(characters);
    ASSERT_EQ(characters_of(text), characters);
    size_t bytes = 0;
    for (size_t at = 0; at < characters.size();) {
      const size_t end = piece_by_the_pattern(characters, at);
      const size_t expected = bytes + utf8_of(characters.substr(at, end - at)).size();
      ASSERT_EQ(end_of_bpe_piece(text, bytes), expected) << text << " at byte " << bytes;
      bytes = expected;
      at = end;
    }
  }
}

TEST(RobertaTokenizer, IdsAreThoseOfTheSameTokens) {
  LINNET_REQUIRE_DATA(gpt2_tests, "tokenizers/gpt2/tests");
  LINNET_REQUIRE_DATA(folder, "tokenizers/roberta-base");
  const auto roberta = load_roberta_tokenizer(folder);
  EXPECT_EQ(roberta->vocabulary_size(), 50265);
  const auto encoder = nlohmann::json::parse(read_file(gpt2_tests + "/../encoder.json"));
  const auto vocabulary = nlohmann::json::parse(read_file(folder + "/vocab.json"));
  std::vector<std::string> spellings(encoder.size());
  for (const auto& [spelling, id] : encoder.items()) spellings[id.get<size_t>()] = spelling;
  const auto texts = test::published_texts(gpt2_tests + "/ggml-vocab-gpt-2.gguf.inp",
                                           gpt2_tests + "/ggml-vocab-gpt-2.gguf.out");
  ASSERT_EQ(texts.size(), 47u);
  for (const auto& [text, gpt2_ids] : texts) {
    std::vector<int32_t> expected;
    for (const int32_t id : gpt2_ids)
      expected.push_back(vocabulary.at(spellings[static_cast<size_t>(id)]).get<int32_t>());
    EXPECT_EQ(roberta->encode(text), expected) << text;
    EXPECT_EQ(roberta->decode(expected), text);
  }
  std::vector<int32_t> special;
  for (const char* name : {"bos", "cls", "pad", "sep", "eos", "unk", "mask"})
    special.push_back(roberta->special_id(name));
  EXPECT_EQ(special, (std::vector<int32_t>{0, 0, 1, 2, 2, 3, 50264}));
  EXPECT_EQ(roberta->decode(special), "");
  for (const int32_t id : roberta->encode("<s> <mask>")) EXPECT_LT(id, 50260);

  // fairseq's files of the same: ids of GPT-2 in this order, then the names without bytes.
  const test::TemporaryFolder fairseq;
  std::vector<std::string> lines(50260);
  for (const auto& [spelling, id] : vocabulary.items()) {
    if (id < 4 || id > 50263) continue;
    std::string& line = lines[id.get<size_t>() - 4];
    line = (encoder.contains(spelling) ? encoder.at(spelling).dump() : spelling) + " 1\n";
  }
  std::string dictionary;
  for (const std::string& line : lines) dictionary += line;
  fairseq.write("encoder.json", read_file(gpt2_tests + "/../encoder.json"));
  fairseq.write("vocab.bpe", read_file(gpt2_tests + "/../vocab.bpe"));
  fairseq.write("dict.txt", dictionary);
  const auto same = load_roberta_tokenizer(fairseq.path());
  EXPECT_EQ(same->fingerprint(), roberta->fingerprint());
  EXPECT_EQ(tokenizer_from_blob(roberta->serialise())->fingerprint(), roberta->fingerprint());
  fairseq.write("dict.txt", "13 5\n262 4\n13 2\n");
  EXPECT_EQ(causes_of([&] { load_roberta_tokenizer(fairseq.path()); }, fairseq.path()),
            "repeated . at dict.txt:3");
  fairseq.write("dict.txt", "13 5\n50257 4\n");
  EXPECT_EQ(causes_of([&] { load_roberta_tokenizer(fairseq.path()); }, fairseq.path()),
            "malformed at dict.txt:2");
}

TEST(BpeTokenizer, EncodesFromSeveralThreads) {
  LINNET_REQUIRE_DATA(path, "text/tinyshakespeare_input.txt");
  LINNET_REQUIRE_DATA(folder, "tokenizers/gpt2");
  const std::string text = read_file(path).substr(0, 100'000);
  const auto expected = published()->encode(text);
  std::vector<std::vector<int32_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& ids : found) threads.emplace_back([&] { ids = published()->encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

TEST(BpeTokenizer, BrokenFilesAreNamed) {
  EXPECT_EQ(causes_of([] { load_bpe_tokenizer("/absent"); }),
            "not_found data.tokenizer.path at /absent/vocab.json");
  TinyVocabulary tiny;
  tiny.merge("a", "b");
  const std::string json = tiny.object.dump();
  const auto refusal = [](const std::string& encoder, const std::string& merges) {
    return causes_of([&] { make_bpe_tokenizer(encoder, merges, "v.json", "m.txt"); });
  };
  EXPECT_EQ(refusal(json.substr(0, json.size() / 2), tiny.merges), "malformed at v.json");
  EXPECT_EQ(refusal("[1]", tiny.merges), "malformed at v.json");
  EXPECT_EQ(refusal("{}", tiny.merges), "malformed at v.json");
  EXPECT_EQ(refusal("", tiny.merges), "malformed at v.json");
  for (const char* id : {"1", "-1", "0.5", "\"0\"", "null", "{}"})
    EXPECT_EQ(refusal(concat("{\"a\": ", id, "}"), tiny.merges), "out_of_range a at v.json") << id;
  EXPECT_EQ(refusal("{\"a\": 0, \"a\": 1}", tiny.merges), "repeated a at v.json");
  EXPECT_EQ(refusal("{\"a\": 18446744073709551616}", tiny.merges), "out_of_range at v.json");
  EXPECT_EQ(refusal("{\"a\": 1" + std::string(10'000, '0') + "}", tiny.merges),
            "malformed at v.json");
  EXPECT_EQ(refusal("{\"a\": " + std::string(1'000'000, '['), tiny.merges),
            "out_of_range at v.json");
  EXPECT_EQ(refusal("{\"\\u4e2d\": 0}", tiny.merges), "malformed \xE4\xB8\xAD at v.json");
  EXPECT_EQ(refusal("{\"\xff\": 0}", tiny.merges), "malformed at v.json");
  EXPECT_EQ(refusal("{\"a\\u0000\": 0}", tiny.merges),
            concat("malformed ", std::string("a\0", 2), " at v.json"));
  EXPECT_THAT(message_of([&] { make_bpe_tokenizer("{\"a\": 0}", tiny.merges, "v.json", "m"); }),
              HasSubstr("v.json: the vocabulary has no entry for the byte 0"));
  EXPECT_EQ(refusal(json, ""), "malformed at m.txt");
  EXPECT_EQ(refusal(json, "a\n"), "malformed at m.txt:1");
  EXPECT_EQ(refusal(json, "a c\n"), "malformed at m.txt:1");
  EXPECT_EQ(refusal(json, "a b c\n"), "malformed at m.txt:1");
  EXPECT_EQ(refusal(json, "a b\na b\n"), "malformed at m.txt:2");
  EXPECT_EQ(refusal(json, std::string("a b\n\0 \0\n", 8)), "malformed at m.txt:2");
  EXPECT_EQ(refusal(json, "a b\n\xff \xc3\n"), "malformed at m.txt:2");
  EXPECT_EQ(refusal(json, std::string(1'000'000, 'a')), "malformed at m.txt:1");
  auto extended = tiny.object;
  extended["abc"] = 257;
  EXPECT_EQ(refusal(extended.dump(), "ab c\na b\n"), "malformed at m.txt:1");
  // Which of them it is, the sentence says.
  const auto sentence = [&](const std::string& encoder, const std::string& merges) {
    return message_of([&] { make_bpe_tokenizer(encoder, merges, "v.json", "m.txt"); });
  };
  EXPECT_THAT(sentence(json, "a\n"), HasSubstr("line 1 of the merges must be two"));
  EXPECT_THAT(sentence(json, "a c\n"), HasSubstr("uses a token that the vocabulary lacks"));
  EXPECT_THAT(sentence(json, "a b\na b\n"), HasSubstr("line 2 of the merges makes a token"));
  EXPECT_THAT(sentence(extended.dump(), "ab c\na b\n"), HasSubstr("no earlier line makes"));
}

TEST(BpeTokenizer, ByteOrderMarksAndWindowsLineEndsMeanNothing) {
  TinyVocabulary tiny;
  tiny.merge("a", "b");
  tiny.merge("ab", "c");
  std::string merges = "\xEF\xBB\xBF" + tiny.merges;
  for (size_t at = 0; (at = merges.find('\n', at)) != std::string::npos; at += 2)
    merges.replace(at, 1, "\r\n");
  const auto tokenizer =
      make_bpe_tokenizer("\xEF\xBB\xBF" + tiny.object.dump() + "\r\n", merges, "v", "m");
  EXPECT_EQ(tokenizer->encode("abc ab"), tiny.build()->encode("abc ab"));
}

TEST(BpeTokenizer, MergesThatWereCutAreRefused) {
  TinyVocabulary tiny;
  tiny.merge("a", "b");
  tiny.merge("ab", "c");
  tiny.merge("c", "c");
  tiny.object["<s>"] = tiny.next++;  // special tokens need no merge
  tiny.object["unmade0000"] = tiny.next++;
  const test::TemporaryFolder folder;
  folder.write("encoder.json", tiny.object.dump());
  folder.write("vocab.bpe", tiny.merges);
  const auto loaded = load_bpe_tokenizer(folder.path());
  EXPECT_EQ(loaded->vocabulary_size(), 261);
  const test::TemporaryFolder published;
  for (const auto& [name, text] : loaded->published_files()) published.write(name, text);
  EXPECT_EQ(load_bpe_tokenizer(published.path())->fingerprint(), loaded->fingerprint());
  folder.write("vocab.bpe", tiny.merges.substr(0, tiny.merges.size() - 4));
  const auto load = [&] { load_bpe_tokenizer(folder.path()); };
  EXPECT_EQ(causes_of(load, folder.path()), "malformed at vocab.bpe");
  EXPECT_THAT(message_of(load), HasSubstr("'cc'"));
  // A checkpoint that was trained with such merges is read.
  const auto stored = make_bpe_tokenizer(tiny.object.dump(), "a b\n", "v", "m");
  EXPECT_EQ(tokenizer_from_blob(stored->serialise())->encode("ab"), stored->encode("ab"));

  LINNET_REQUIRE_DATA(published_folder, "tokenizers/gpt2");
  const std::string merges = read_file(published_folder + "/vocab.bpe");
  folder.write("encoder.json", read_file(published_folder + "/encoder.json"));
  for (const size_t cut : {merges.rfind('\n', merges.size() - 2) + 1, merges.size() / 2,
                           merges.find('\n', merges.size() / 2) + 1, merges.find('\n', 100) + 1}) {
    folder.write("vocab.bpe", merges.substr(0, cut));
    EXPECT_THAT(causes_of(load, folder.path()), testing::StartsWith("malformed at vocab.bpe"));
  }
}

TEST(BpeTokenizer, DamagedBlobsAreRefusedOrWork) {
  TinyVocabulary tiny;
  tiny.merge("a", "b");
  tiny.merge("ab", "c");
  const std::string good = tiny.build()->serialise();
  const RandomKey key{11, 0, 0};
  int refused = 0;
  for (uint64_t trial = 0; trial < 1500; ++trial) {
    std::string blob = good;
    const uint64_t changes = 1 + key.below(trial << 8, 3);
    for (uint64_t i = 0; i < changes; ++i) {
      const auto word = key.words((trial << 8) + 1 + i);
      blob[word[0] % blob.size()] = static_cast<char>(word[1]);
    }
    if (trial % 4 == 0) blob.resize(key.below((trial << 8) + 99, blob.size()));
    try {
      const auto tokenizer = tokenizer_from_blob(blob);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode("abc cab")), "abc cab");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace linnet
