// Unigram: the best path against all paths, tokenizer.json of T5's form, the map of characters.
#include "data/unigram.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/random.h"
#include "core/utf8.h"
#include "data/characters_map.h"
#include "data/pair_encoding.h"
#include "data/tokenizer_json.h"
#include "tests/error_helpers.h"

namespace linnet {
namespace {

using nlohmann::json;
using test::causes_of;
using testing::ElementsAre;

// The largest sum of scores over all ways to cut `text` into tokens; -1e9: there is none.
double best_sum(const std::vector<std::string>& tokens, const std::vector<double>& scores,
                std::string_view text) {
  if (text.empty()) return 0;
  double best = -1e9;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!text.starts_with(tokens[id])) continue;
    best = std::max(best, scores[id] + best_sum(tokens, scores, text.substr(tokens[id].size())));
  }
  return best;
}

TEST(Unigram, FindsTheBestOfAllPaths) {
  const RandomKey key{5, 0, 0};
  const std::vector<std::string> tokens = {"<unk>", "a",  "b",   "c",  "ab", "bc",
                                           "abc",   "ca", "bca", "aa", "cab"};
  std::vector<double> scores = {0};
  for (size_t i = 1; i < tokens.size(); ++i) scores.push_back(-10 * key.uniform(i));
  const Unigram model(tokens, scores, 0);
  PieceCache cache;
  for (uint64_t round = 0; round < 300; ++round) {
    std::string text;
    for (uint64_t i = 0; i < 1 + round % 12; ++i)
      text += static_cast<char>('a' + static_cast<int>(3 * key.uniform(1000 + 100 * round + i)));
    std::vector<int32_t> ids;
    model.encode_piece(text, cache, ids);
    double sum = 0;
    std::string spelt;
    for (const int32_t id : ids) {
      sum += scores[static_cast<size_t>(id)];
      spelt += tokens[static_cast<size_t>(id)];
    }
    ASSERT_EQ(spelt, text);
    ASSERT_NEAR(sum, best_sum(tokens, scores, text), 1e-9) << text;
  }
}

TEST(Unigram, UnknownCharactersNextToEachOtherAreOneToken) {
  const Unigram model({"<unk>", "a", "\xC3\xA9"}, {0, -1, -2}, 0);
  PieceCache cache;
  std::vector<int32_t> ids;
  model.encode_piece("a\xE2\x82\xACxy\xC3\xA9z", cache, ids);
  EXPECT_THAT(ids, ElementsAre(1, 0, 2, 0));
}

std::string base64_of(const std::string& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i)
      bits = bits << 8 | (at + i < bytes.size() ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    for (size_t i = 0; i < 4; ++i)
      text += at + i > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * i) & 63];
  }
  return text;
}

// The bytes of a map, each node of whose trie has 256 units of the array to itself.
std::string map_bytes(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::vector<uint32_t> units(256);
  std::string strings;
  const auto base_of = [&](size_t at) { return at ^ units[at] >> 10; };
  const auto give_base = [&](size_t at) {
    if (units[at] >> 10 != 0) return;
    const size_t base = units.size();
    units.resize(base + 256);
    units[at] |= static_cast<uint32_t>(at ^ base) << 10;
  };
  for (const auto& [from, to] : entries) {
    size_t at = 0;
    for (const char c : from) {
      give_base(at);
      const auto byte = static_cast<unsigned char>(c);
      at = base_of(at) ^ byte;
      units[at] |= byte;
    }
    give_base(at);
    units[at] |= 1U << 8;
    units[base_of(at)] = 1U << 31 | static_cast<uint32_t>(strings.size());
    strings += to + '\0';
  }
  std::string bytes;
  const auto add = [&](uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  };
  add(static_cast<uint32_t>(4 * units.size()));
  for (const uint32_t unit : units) add(unit);
  return bytes + strings;
}

std::string some_map() {
  return map_bytes({{"\xEF\xBC\xA1", "A"},  // a wide A
                    {"\xEF\xAC\x81", "fi"},
                    {"e\xCC\x81", "\xC3\xA9"},
                    {"\t", " "},
                    {"\xE2\x80\x8B", ""},  // a space of no width
                    {"ab", "1"},
                    {"abc", "2"}});
}

TEST(CharactersMap, TheLongestStringsAreReplaced) {
  const CharactersMap map(base64_of(some_map()), "t.json");
  EXPECT_EQ(map.replaced("\xEF\xBC\xA1\xEF\xAC\x81\tx"), "Afi x");
  EXPECT_EQ(map.replaced("e\xCC\x81 e x\xE2\x80\x8By"), "\xC3\xA9 e xy");
  EXPECT_EQ(map.replaced("a ab abc abd"), "a 1 2 1d");
  EXPECT_EQ(map.replaced(""), "");
}

TEST(CharactersMap, EveryByteMayBeWrong) {
  const std::string good = some_map();
  const auto refusal = [](const std::string& bytes) {
    return causes_of([&] { CharactersMap(base64_of(bytes), "t.json"); });
  };
  const std::string malformed = "malformed precompiled_charsmap at t.json";
  EXPECT_EQ(refusal(good), "nothing thrown");
  EXPECT_EQ(refusal(""), malformed);
  EXPECT_EQ(refusal(good.substr(0, 100)), malformed);
  EXPECT_EQ(refusal(good.substr(0, good.size() - 1)), malformed);
  EXPECT_EQ(refusal(good.substr(0, good.size() - 2) + "\xFF" + '\0'), malformed);
  EXPECT_EQ(causes_of([] { CharactersMap("AAA*", "t.json"); }), malformed);
  int whole = 0;
  const std::string text = "a\xEF\xBC\xA1 abc e\xCC\x81\t\xE2\x80\x8B.";
  for (size_t at = 0; at < good.size(); ++at) {
    if (good[at] == 0 && at % 61 != 0) continue;  // most of the array is empty
    for (const int change : {0x01, 0x80, 0xFF}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      try {
        EXPECT_EQ(find_invalid_utf8(CharactersMap(base64_of(bad), "t.json").replaced(text)),
                  std::string::npos);
        ++whole;
      } catch (const Error&) {
      }
    }
  }
  EXPECT_GT(whole, 20);
}

json vocabulary_of(const std::vector<std::pair<const char*, double>>& tokens) {
  json list = json::array();
  for (const auto& [token, score] : tokens) list.push_back(json::array({token, score}));
  return list;
}

json t5_file() {
  const auto special = [](const char* name, int id) {
    return json{{"id", id},        {"content", name},     {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  const json end = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
  const json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json second = {{"Sequence", {{"id", "B"}, {"type_id", 0}}}};
  return {
      {"version", "1.0"},
      {"added_tokens", {special("<pad>", 0), special("</s>", 1), special("<x>", 11)}},
      {"normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", base64_of(some_map())}}},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "WhitespaceSplit"}},
          {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", true}}}}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {first, end}},
        {"pair", {first, end, second, end}},
        {"special_tokens", {{"</s>", {{"id", "</s>"}, {"ids", {1}}, {"tokens", {"</s>"}}}}}}}},
      {"decoder", {{"type", "Metaspace"}, {"replacement", "\u2581"}}},
      {"model",
       {{"type", "Unigram"},
        {"unk_id", 2},
        {"vocab", vocabulary_of({{"<pad>", 0},
                                 {"</s>", 0},
                                 {"<unk>", 0},
                                 {"\u2581", -2},
                                 {"\u2581the", -3},
                                 {"s", -2.5},
                                 {"ea", -4},
                                 {"\u2581sea", -8},
                                 {"t", -4},
                                 {"he", -4},
                                 {"A", -5}})}}}};
}

std::vector<int32_t> encode(const json& file, std::string_view text) {
  return make_tokenizer_json(file.dump(), "t.json")->encode(text);
}

TEST(UnigramFile, OfT5sFormIsRead) {
  const auto made = make_tokenizer_json(t5_file().dump(), "t.json");
  EXPECT_EQ(made->vocabulary_size(), 12);
  EXPECT_THAT(made->encode("the sea"), ElementsAre(4, 7));
  EXPECT_THAT(made->encode("  the \n\tseas \xEF\xBC\xA1"), ElementsAre(4, 7, 5, 3, 10));
  EXPECT_THAT(made->encode("qq sthe<x>the </s>"), ElementsAre(3, 2, 3, 5, 8, 9, 11, 4, 1));
  EXPECT_THAT(made->encode(""), ElementsAre());
  UnknownWords unknown;
  made->encode("qq sea qs", &unknown);
  EXPECT_EQ(unknown.count, 2);
  EXPECT_EQ(made->decode(made->encode("<x>the seas s")), "the seas s");
  EXPECT_EQ(made->pair_style(), PairStyle::t5);
  for (const auto& [name, id] :
       {std::pair("pad", 0), {"sep", 1}, {"eos", 1}, {"unk", 2}, {"cls", -1}})
    EXPECT_EQ(made->special_id(name), id) << name;
  EXPECT_THAT(encode_text(*made, "the sea").ids, ElementsAre(4, 7, 1));
  EXPECT_THAT(encode_pair(*made, "the sea", "A").ids, ElementsAre(4, 7, 1, 3, 10, 1));
  EXPECT_THAT(encode_pair(*made, "the sea", "A A", 5).ids, ElementsAre(4, 7, 1, 3, 1));
  const auto again = tokenizer_from_blob(made->serialise());
  EXPECT_EQ(again->encode("the sea"), made->encode("the sea"));
}

TEST(UnigramFile, NewerFilesJoinSpacesInTheNormaliser) {
  json file = t5_file();
  file["pre_tokenizer"] = {{"type", "Metaspace"},
                           {"replacement", "\u2581"},
                           {"prepend_scheme", "always"},
                           {"split", true}};
  // Without a normaliser each space is a piece.
  file["normalizer"] = nullptr;
  EXPECT_THAT(encode(file, "the  sea "), ElementsAre(4, 3, 7, 3));
  file["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Precompiled"}, {"precompiled_charsmap", base64_of(some_map())}},
        {{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}},
        {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", "\u2581"}}}}};
  EXPECT_THAT(encode(file, "the  \tsea "), ElementsAre(4, 7));
  EXPECT_THAT(encode(file, " sea"), ElementsAre(7));
}

TEST(UnigramFile, OtherPartsAreRefusedByName) {
  const auto with = [](const char* pointer, const json& value) {
    json file = t5_file();
    file[json::json_pointer(pointer)] = value;
    return causes_of([&] { make_tokenizer_json(file.dump(), "t.json"); });
  };
  const std::string spaces = "/pre_tokenizer/pretokenizers/1/";
  EXPECT_EQ(with("/version", "1.0"), "nothing thrown");
  EXPECT_EQ(with("/pre_tokenizer", {{"type", "Whitespace"}}), "malformed pre_tokenizer at t.json");
  EXPECT_EQ(with((spaces + "replacement").c_str(), "_"),
            "malformed pre_tokenizer.pretokenizers[1].replacement at t.json");
  for (const auto& [key, value] :
       {std::pair("prepend_scheme", "first"), {"prepend_scheme", "never"}})
    EXPECT_EQ(with((spaces + key).c_str(), value),
              "malformed pre_tokenizer.pretokenizers[1] at t.json");
  EXPECT_EQ(with((spaces + "split").c_str(), false),
            "malformed pre_tokenizer.pretokenizers[1].split at t.json");
  EXPECT_EQ(with("/model/type", "WordPiece"), "malformed pre_tokenizer at t.json");
  EXPECT_EQ(with("/model/byte_fallback", true), "malformed model.byte_fallback at t.json");
  EXPECT_EQ(with("/model/unk_id", 11), "malformed model.unk_id at t.json");
  EXPECT_EQ(with("/model/unk_id", nullptr), "malformed model.unk_id at t.json");
  EXPECT_EQ(with("/model/vocab/3", json::array({"\u2581"})), "malformed model.vocab[3] at t.json");
  EXPECT_EQ(with("/model/vocab/3/0", ""), "malformed model.vocab[3] at t.json");
  EXPECT_EQ(with("/model/vocab/3/1", "x"), "malformed model.vocab[3][1] at t.json");
  EXPECT_EQ(with("/normalizer/precompiled_charsmap", "AAAA"),
            "malformed precompiled_charsmap at t.json");
  EXPECT_EQ(with("/decoder/type", "WordPiece"), "malformed decoder.type at t.json");
  EXPECT_EQ(
      with("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", "b"}}),
      "malformed normalizer.pattern at t.json");
}

}  // namespace
}  // namespace linnet
