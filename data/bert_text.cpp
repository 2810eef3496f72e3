// The steps of BERT's basic tokenizer, and the fast way for ASCII.
#include "data/bert_text.h"

#include <algorithm>
#include <array>

#include "data/preparation.h"

namespace linnet {
namespace {

enum class Byte : uint8_t { word, punctuation, white, other };

std::array<Byte, 256> make_bytes() {
  std::array<Byte, 256> bytes;
  bytes.fill(Byte::other);
  for (size_t c = 33; c < 127; ++c) {
    const bool mark = (character_classes()[c] & kPunctuation) != 0;
    bytes[c] = mark ? Byte::punctuation : Byte::word;
  }
  for (const unsigned char c : {' ', '\t', '\n', '\r'}) bytes[c] = Byte::white;
  return bytes;
}

bool dropped(char32_t c, CharacterClasses classes, bool as_library) {
  const bool private_use = (c >= 0xE000 && c <= 0xF8FF) || (c >= 0xF0000 && c <= 0xFFFFD) ||
                           (c >= 0x100000 && c <= 0x10FFFD);
  return c == 0 || c == 0xFFFD || (classes & kControl) || (as_library && private_use);
}

}  // namespace

void normalise_bert(std::u32string& text, const BertTextOptions& options) {
  const CharacterClasses* classes = character_classes();
  std::u32string out;
  out.reserve(text.size());
  for (const char32_t c : text) {
    const bool library_gap = options.as_library && c >= 0x2B820 && c <= 0x2B91F;
    if (options.clean && dropped(c, classes[c], options.as_library)) continue;
    if (options.clean && (classes[c] & kWhiteSpace)) {
      out += U' ';
    } else if (options.ideographs && is_ideograph(c) && !library_gap) {
      out += {U' ', c, U' '};
    } else {
      out += c;
    }
  }
  if (options.strip_accents) {
    normalise(out, NormalForm::nfd);
    std::erase_if(out, [&](char32_t c) { return (classes[c] & kAccent) != 0; });
  }
  if (options.lowercase) {
    text.clear();
    for (const char32_t c : out) append_lower(c, text);
  } else {
    text = std::move(out);
  }
}

size_t last_cut_of_words(std::string_view text) {
  return text.find_last_of(" \t\n\r") + 1;
}

BertEncoder::BertEncoder(BertTextOptions options, const WordPiece& model)
    : options_(options), model_(model) {}

// Any text: what lies between ASCII white space.
void BertEncoder::encode_chunk(std::string_view chunk, Workspace& workspace,
                               std::vector<int32_t>& ids, UnknownWords* unknown) const {
  std::u32string characters = characters_of(chunk);
  normalise_bert(characters, options_);
  for_each_bert_word(utf8_of(characters), [&](std::string_view word) {
    const size_t before = ids.size();
    model_.encode_word(word, workspace.cache, ids);
    if (unknown != nullptr && ids[before] == model_.unknown_id()) unknown->add(word);
  });
}

void BertEncoder::encode(std::string_view text, std::vector<int32_t>& ids,
                         UnknownWords* unknown) const {
  static const std::array<Byte, 256> bytes = make_bytes();
  const auto byte_at = [&](size_t at) { return bytes[static_cast<unsigned char>(text[at])]; };
  const typename WorkspacePool<Workspace>::Loan loan(pool_);
  Workspace& workspace = *loan;
  constexpr size_t kReportEvery = 1 << 16;
  size_t reported = 0;
  for (size_t at = 0; at < text.size();) {
    if (at - reported >= kReportEvery) report_bytes_done(reported = at);
    const size_t begin = at;
    if (byte_at(at) == Byte::white) {
      ++at;
      continue;
    }
    if (byte_at(at) == Byte::punctuation) {
      ++at;
    } else {
      while (at < text.size() && byte_at(at) == Byte::word) ++at;
    }
    // A mark behind a letter belongs to it: what is not ASCII takes its whole word along.
    if (at < text.size() && byte_at(at) == Byte::other) {
      while (at < text.size() && byte_at(at) != Byte::white) ++at;
      encode_chunk(text.substr(begin, at - begin), workspace, ids, unknown);
      continue;
    }
    std::string_view word = text.substr(begin, at - begin);
    if (options_.lowercase) {
      workspace.lowered.assign(word);
      for (char& c : workspace.lowered)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
      word = workspace.lowered;
    }
    const size_t before = ids.size();
    model_.encode_word(word, workspace.cache, ids);
    if (unknown != nullptr && ids[before] == model_.unknown_id()) unknown->add(word);
  }
}

}  // namespace linnet
