// Tests of tokenizer.json against the published files of the same tokenizers.
#include "data/tokenizer_json.h"

#include <gmock/gmock.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "core/sanitizers.h"
#include "data/added_tokens.h"
#include "data/bpe_tokenizer.h"
#include "data/unicode.h"
#include "data/wordpiece_tokenizer.h"
#include "tests/data/cuts.h"
#include "tests/data/published_texts.h"
#include "tests/data/temporary_folder.h"

namespace linnet {
namespace {

using nlohmann::json;
using test::causes_of;
using testing::ElementsAre;
using testing::HasSubstr;

json bert_file(const std::vector<std::string>& tokens) {
  json vocab = json::object();
  for (size_t id = 0; id < tokens.size(); ++id) vocab[tokens[id]] = id;
  return {{"version", "1.0"},
          {"added_tokens", json::array()},
          {"normalizer",
           {{"type", "BertNormalizer"},
            {"clean_text", true},
            {"handle_chinese_chars", true},
            {"strip_accents", nullptr},
            {"lowercase", true}}},
          {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}},
          {"model",
           {{"type", "WordPiece"},
            {"unk_token", "[UNK]"},
            {"continuing_subword_prefix", "##"},
            {"max_input_chars_per_word", 100},
            {"vocab", vocab}}}};
}

json small_file() {
  json file =
      bert_file({"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "a", "b", "##b", "-", "_", "c"});
  file["added_tokens"] = {{{"id", 4},
                           {"content", "[MASK]"},
                           {"single_word", false},
                           {"lstrip", true},
                           {"rstrip", false},
                           {"normalized", false},
                           {"special", true}}};
  return file;
}

std::vector<int32_t> encode(const json& file, std::string_view text) {
  return make_tokenizer_json(file.dump(), "t.json")->encode(text);
}

std::string refusal(const json& file) {
  return causes_of([&] { make_tokenizer_json(file.dump(), "t.json"); });
}

// Texts that hold much: the published ones, and real prose.
std::vector<std::string> texts() {
  std::vector<std::string> found;
  const std::string folder = test::data_path("tokenizers/gpt2/tests");
  if (!folder.empty()) {
    for (auto& [text, ids] : test::published_texts(folder + "/ggml-vocab-gpt-2.gguf.inp",
                                                   folder + "/ggml-vocab-gpt-2.gguf.out"))
      found.push_back(text);
  }
  for (const char* name : {"wikitext-2-raw/wiki.test.raw", "text/tinyshakespeare_input.txt"})
    if (const std::string path = test::data_path(name); !path.empty())
      found.push_back(read_file(path));
  return found;
}

TEST(TokenizerJson, RobertaFileGivesTheIdsOfItsVocabularyAndMerges) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/roberta-base");
  const auto made = load_tokenizer_json(folder);
  const auto published = load_roberta_tokenizer(folder);
  for (const std::string& text : texts()) {
    const auto ids = published->encode(text);
    ASSERT_EQ(made->encode(text), ids) << text.substr(0, 200);
    ASSERT_EQ(made->decode(ids), text);
  }
  EXPECT_EQ(made->pair_style(), PairStyle::roberta);
  for (const char* name : {"pad", "unk", "cls", "sep", "mask", "bos", "eos"})
    EXPECT_EQ(made->special_id(name), published->special_id(name)) << name;
  // Added tokens are found in texts; <mask> takes the space before it.
  EXPECT_EQ(made->encode("a <mask>."), (std::vector<int32_t>{102, 50264, 4}));
  EXPECT_EQ(made->decode(made->encode("a<s></s>b")), "ab");
}

TEST(TokenizerJson, BertFileGivesTheIdsOfItsVocabulary) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/bert-base-uncased");
  const auto published = load_wordpiece_tokenizer(folder, true);
  std::vector<std::string> tokens;
  std::istringstream lines(read_file(folder + "/vocab.txt"));
  for (std::string line; std::getline(lines, line);) tokens.push_back(line);
  json file = bert_file(tokens);
  const auto fast = make_tokenizer_json(file.dump(), "t.json");
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers", json::array({file["normalizer"], {{"type", "Lowercase"}}})}};
  const auto in_steps = make_tokenizer_json(file.dump(), "t.json");
  for (const std::string& text : texts()) {
    const auto ids = published->encode(text);
    ASSERT_EQ(fast->encode(text), ids) << text.substr(0, 200);
    ASSERT_EQ(in_steps->encode(text), ids) << text.substr(0, 200);
    ASSERT_EQ(fast->decode(ids), published->decode(ids));
  }
}

TEST(TokenizerJson, PublishedFileOfASentenceModelIsRead) {
  LINNET_REQUIRE_DATA(folder, "safetensors/minilm_l6_h384");
  const auto made = load_tokenizer_json(folder);
  const auto published = load_wordpiece_tokenizer(folder, true);
  for (const std::string& text : texts()) ASSERT_EQ(made->encode(text), published->encode(text));
  EXPECT_EQ(made->pair_style(), PairStyle::bert);
  for (const char* name : {"pad", "unk", "cls", "sep", "mask"})
    EXPECT_EQ(made->special_id(name), published->special_id(name)) << name;
}

TEST(TokenizerJson, Gpt2FilesMakeTheSameTokenizer) {
  LINNET_REQUIRE_DATA(folder, "tokenizers/gpt2");
  json merges = json::array();
  std::istringstream lines(read_file(folder + "/vocab.bpe"));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const size_t space = line.find(' ');
    merges.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  const json file = {{"version", "1.0"},
                     {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}}},
                     {"model",
                      {{"type", "BPE"},
                       {"vocab", json::parse(read_file(folder + "/encoder.json"))},
                       {"merges", merges}}}};
  const auto made = make_tokenizer_json(file.dump(), "t.json");
  const auto published = load_bpe_tokenizer(folder);
  for (const std::string& text : texts()) {
    const std::string prefixed = text.empty() || text[0] == ' ' ? text : " " + text;
    ASSERT_EQ(made->encode(text), published->encode(prefixed));
  }
  EXPECT_EQ(made->eos_id(), 50256);
  EXPECT_EQ(made->pair_style(), PairStyle::plain);
  // A text that begins with another character gets a space, a part would get one too.
  test::expect_cuts(*made, false);
  json without_prefix = file;
  without_prefix["pre_tokenizer"]["add_prefix_space"] = false;
  test::expect_cuts(*make_tokenizer_json(without_prefix.dump(), "t.json"), true);
}

TEST(TokenizerJson, TextsAreCutWhereNoNormaliserOrAddedTokenReaches) {
  json file = bert_file({"[UNK]", "[CLS]", "[SEP]", "a", "x", "y", "it", "'", "s", "."});
  for (const char* pre_tokenizer : {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}) {
    file["pre_tokenizer"]["type"] = pre_tokenizer;
    for (const char* form : {"", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase"}) {
      json with = file;
      if (*form != '\0') {
        with["normalizer"] = {{"type", form}};
      }
      test::expect_cuts(*make_tokenizer_json(with.dump(), "t.json"), true);
    }
  }
  test::expect_cuts(*make_tokenizer_json(small_file().dump(), "t.json"), false);
}

TEST(TokenizerJson, NormalisersAndWords) {
  json file = small_file();
  EXPECT_THAT(encode(file, "AB a-b"), ElementsAre(5, 7, 5, 8, 6));
  EXPECT_THAT(encode(file, "a [MASK]b [mask]"), ElementsAre(5, 4, 6, 0, 0, 0));
  file["pre_tokenizer"]["type"] = "Whitespace";
  EXPECT_THAT(encode(file, "a-b a_b"), ElementsAre(5, 8, 6, 0));
  file["pre_tokenizer"]["type"] = "WhitespaceSplit";
  EXPECT_THAT(encode(file,
                     "a-b\xE3\x80\x80"
                     "ab"),
              ElementsAre(0, 5, 7));
  file["normalizer"] = nullptr;
  EXPECT_THAT(encode(file, "a A"), ElementsAre(5, 0));
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers", {{{"type", "NFKD"}}, {{"type", "StripAccents"}}, {{"type", "Lowercase"}}}}};
  EXPECT_THAT(encode(file, "\xC3\x81\xE1\xB8\x83 \xEF\xBC\xA1"), ElementsAre(5, 7, 5));
  EXPECT_EQ(make_tokenizer_json(file.dump(), "t")->decode(std::vector<int32_t>{5, 7, 4, 8, 0}),
            "ab - [UNK]");
}

TEST(TokenizerJson, NormalisedTokensAreFoundInNormalisedText) {
  json file = small_file();
  file["added_tokens"][0]["normalized"] = true;
  EXPECT_THAT(encode(file, "a [Mask]b"), ElementsAre(5, 4, 6));
}

TEST(TokenizerJson, OtherPartsAreRefusedByName) {
  const auto with = [](const char* pointer, const json& value) {
    json file = small_file();
    file[json::json_pointer(pointer)] = value;
    return refusal(file);
  };
  EXPECT_EQ(refusal(small_file()), "nothing thrown");
  EXPECT_EQ(with("/pre_tokenizer", {{"type", "Punctuation"}}),
            "malformed pre_tokenizer.type at t.json");
  EXPECT_EQ(with("/pre_tokenizer", nullptr), "malformed pre_tokenizer at t.json");
  EXPECT_EQ(with("/pre_tokenizer", {{"type", "ByteLevel"}}), "malformed pre_tokenizer at t.json");
  EXPECT_EQ(with("/normalizer/type", "Prepend"), "malformed normalizer.type at t.json");
  EXPECT_EQ(with("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFX"}}}}}),
            "malformed normalizer.normalizers[0].type at t.json");
  EXPECT_EQ(with("/model/type", "WordLevel"), "malformed model.type at t.json");
  EXPECT_EQ(with("/model/scores", 1), "malformed model.scores at t.json");
  EXPECT_EQ(with("/model/unk_token", "<unk>"), "malformed model.unk_token at t.json");
  EXPECT_EQ(with("/model/vocab/a", 99), "malformed model.vocab at t.json");
  EXPECT_EQ(with("/model/vocab/a", "5"), "malformed model.vocab at t.json");
  EXPECT_EQ(with("/added_tokens/0/id", 5), "malformed added_tokens[0].id at t.json");
  EXPECT_EQ(with("/added_tokens/0/content", ""), "malformed added_tokens[0].id at t.json");
  EXPECT_EQ(with("/decoder/type", "BPEDecoder"), "malformed decoder.type at t.json");
  EXPECT_EQ(with("/post_processor", {{"type", "Split"}}),
            "malformed post_processor.type at t.json");
  EXPECT_EQ(with("/extra", 1), "malformed extra at t.json");
  EXPECT_EQ(with("/version", "2.0"), "malformed version at t.json");
  EXPECT_EQ(causes_of([] { make_tokenizer_json("{", "t.json"); }), "malformed at t.json");
  EXPECT_EQ(causes_of([] { load_tokenizer_json("/absent"); }),
            "not_found data.tokenizer.path at /absent");
  json bpe = {
      {"pre_tokenizer", {{"type", "ByteLevel"}}},
      {"model", {{"vocab", {{"a", 0}}}, {"merges", json::array()}, {"byte_fallback", true}}}};
  EXPECT_EQ(refusal(bpe), "malformed model.byte_fallback at t.json");
  bpe["model"].erase("byte_fallback");
  EXPECT_THAT(test::message_of([&] { make_tokenizer_json(bpe.dump(), "t.json"); }),
              HasSubstr("no entry for the byte 0"));
}

TEST(TokenizerJson, TemplatesGiveStylesAndIds) {
  json file = small_file();
  const auto token = [](const char* name, int type) {
    return json{{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto text = [](const char* name, int type) {
    return json{{"Sequence", {{"id", name}, {"type_id", type}}}};
  };
  const auto known = [](const char* name, int id) {
    return json{{"id", name}, {"ids", {id}}, {"tokens", {name}}};
  };
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", {token("[CLS]", 0), text("A", 0), token("[SEP]", 0)}},
      {"pair",
       {token("[CLS]", 0), text("A", 0), token("[SEP]", 0), text("B", 1), token("[SEP]", 1)}},
      {"special_tokens", {{"[CLS]", known("[CLS]", 1)}, {"[SEP]", known("[SEP]", 2)}}}};
  const auto made = make_tokenizer_json(file.dump(), "t.json");
  EXPECT_EQ(made->pair_style(), PairStyle::bert);
  EXPECT_EQ(made->special_id("cls"), 1);
  EXPECT_EQ(made->special_id("eos"), 2);
  EXPECT_EQ(tokenizer_from_blob(made->serialise())->fingerprint(), made->fingerprint());
  file["post_processor"]["pair"].erase(4);
  EXPECT_EQ(refusal(file), "malformed post_processor at t.json");
}

TEST(AddedTokens, WordsStripsAndTheLongest) {
  const AddedTokens tokens({{.id = 1, .content = "ab"},
                            {.id = 2, .content = "abc", .single_word = true},
                            {.id = 3, .content = "<m>", .lstrip = true, .rstrip = true}});
  const auto split = [&](std::string_view text) {
    std::string found;
    tokens.split(
        text, [&](std::string_view part) { found += concat("[", part, "]"); },
        [&](int32_t id) { found += std::to_string(id); });
    return found;
  };
  EXPECT_EQ(split(""), "");
  EXPECT_EQ(split("x ab"), "[x ]1");
  EXPECT_EQ(split("abc, abcd \xC3\xA9"
                  "abc"),
            "2[, abcd \xC3\xA9"
            "abc]");
  EXPECT_EQ(split("x \xE3\x80\x80<m> <m> y"), "[x]33[y]");
}

// A file of about 4 KiB with every part.
std::string file_of_4_kib() {
  std::vector<std::string> tokens = {"[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"};
  for (int i = 0; i < 180; ++i) tokens.push_back(concat(i % 2 ? "##" : "", "word", i));
  json file = bert_file(tokens);
  file["added_tokens"] = small_file()["added_tokens"];
  file["post_processor"] = {
      {"type", "BertProcessing"}, {"sep", {"[SEP]", 2}}, {"cls", {"[CLS]", 1}}};
  return file.dump(1);
}

TEST(TokenizerJson, EveryByteMayBeWrong) {
  const std::string good = file_of_4_kib();
  ASSERT_GT(good.size(), 3500u);
  int refused = 0, read = 0;
  double slowest = 0;
  const double before_mib = test::peak_mib();
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int change : {0x01, 0xFF}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      const auto start = std::chrono::steady_clock::now();
      try {
        const auto tokenizer = make_tokenizer_json(bad, "t.json");
        tokenizer->decode(tokenizer->encode("word2word3 [MASK] \xC3\xA9 ,x"));
        ++read;
      } catch (const Error&) {
        ++refused;
      }
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      slowest = std::max(slowest, seconds.count());
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(read, 100);
  EXPECT_LT(slowest, 1.0);
  // AddressSanitizer keeps what was freed.
  EXPECT_LT(kAddressSanitizer ? 0 : test::peak_mib() - before_mib, 256);
}

TEST(Unicode, FormsAndLowerCase) {
  const auto form = [](std::string_view text, NormalForm which) {
    std::u32string characters = characters_of(text);
    normalise(characters, which);
    return utf8_of(characters);
  };
  EXPECT_EQ(form("\xC3\xA9\xEA\xB0\x81", NormalForm::nfd),
            "e\xCC\x81\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8");
  EXPECT_EQ(form("e\xCC\x81\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8", NormalForm::nfc),
            "\xC3\xA9\xEA\xB0\x81");
  EXPECT_EQ(form("\xEF\xAC\x81\xC2\xB2", NormalForm::nfkc), "fi2");
  // Marks are in canonical order: below (220) before above (230), equals as they were.
  EXPECT_EQ(form("a\xCC\x81\xCC\xA3\xCC\x80", NormalForm::nfd), "a\xCC\xA3\xCC\x81\xCC\x80");
  // A long run of marks takes no quadratic time.
  std::string marks = "a";
  for (int i = 0; i < 200'000; ++i) marks += i % 2 ? "\xCC\xA3" : "\xCC\x81";
  EXPECT_EQ(form(marks, NormalForm::nfd).size(), marks.size());
  std::u32string lower;
  for (const char32_t c : std::u32string(U"AZ\u0130\u03A3\u00C9")) append_lower(c, lower);
  EXPECT_EQ(lower, U"azi\u0307\u03C3\u00E9");
}

}  // namespace
}  // namespace linnet
