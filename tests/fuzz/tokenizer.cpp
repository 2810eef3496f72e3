// The files of a GPT-2 tokenizer and what a checkpoint keeps of any tokenizer, then a text. The
// first line says what follows: "files" (encoder.json, a line "====", vocab.bpe), "merges"
// (vocab.bpe, a line "====", a text; the vocabulary is made to fit) or "blob" (a stored tokenizer).
#include "data/tokenizer.h"

#include <set>

#include "core/json.h"
#include "core/utf8.h"
#include "data/bpe_merges.h"
#include "data/bpe_tokenizer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/memory_files.h"

namespace linnet::fuzz {
namespace {

std::string utf8(uint32_t character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

// encoder.json with the 256 bytes and every token that a line of `merges` makes.
std::string vocabulary_of(std::string_view merges) {
  JsonValue ids = JsonValue::object();
  int64_t next = 0;
  std::string bytes;
  for (uint32_t character = 0; character < 256 + 68; ++character) {
    if (bytes_of_bpe_spelling(utf8(character), bytes)) ids.append(utf8(character), next++);
  }
  std::set<std::string> made;
  while (!merges.empty()) {
    const size_t end = std::min(merges.find('\n'), merges.size());
    std::string token(merges.substr(0, end));
    merges.remove_prefix(std::min(end + 1, merges.size()));
    if (token.ends_with('\r')) token.pop_back();
    const size_t space = token.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == token.size()) continue;
    token.erase(space, 1);
    const bool spelt = bytes_of_bpe_spelling(token, bytes) && bytes.size() > 1;
    if (spelt && made.insert(token).second) ids.append(token, next++);
  }
  return ids.dump();
}

void check(const Tokenizer& tokenizer, std::string_view text) {
  const auto copy = tokenizer_from_blob(tokenizer.serialise());
  expect(copy->fingerprint() == tokenizer.fingerprint(), "a stored tokenizer is the same");
  const std::vector<int32_t> ids = tokenizer.encode(text);
  const std::string back = tokenizer.decode(ids);
  expect(tokenizer.kind() == "word" || tokenizer.eos_id() >= 0 || back == text,
         "decode(encode(text)) is the text");
}

}  // namespace

void read_input(std::string_view input) {
  constexpr std::string_view kText = "It's 10 o'clock,  \xC3\xA9t\xC3\xA9\n\tdone";
  const size_t end = std::min(input.find('\n'), input.size());
  const std::string_view mode = input.substr(0, end);
  input.remove_prefix(std::min(end + 1, input.size()));
  if (mode == "blob") return check(*tokenizer_from_blob(input), kText);
  const auto [first, second] = two_files(input);
  MemoryFiles files;
  files["gpt2/encoder.json"] = mode == "merges" ? vocabulary_of(first) : std::string(first);
  files["gpt2/vocab.bpe"] = mode == "merges" ? first : second;
  check(*load_bpe_tokenizer("gpt2"), mode == "merges" ? second : kText);
}

}  // namespace linnet::fuzz
