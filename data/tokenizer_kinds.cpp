// Every kind of tokenizer, an entry each.
#include "data/tokenizer_kinds.h"

#include "core/error.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_tokenizer.h"
#include "data/tokenizer_json.h"
#include "data/word_tokenizer.h"
#include "data/wordpiece_tokenizer.h"

namespace linnet {
namespace {

using Path = TokenizerKind::Path;
using LineEnds = TokenizerKind::LineEnds;

const TokenizerKind kKinds[] = {
    {"byte", "bytes", Path::none, "", LineEnds::by_option,
     [](const TokenizerConfig& c) { return make_byte_tokenizer(c.eos); },
     byte_tokenizer_from_payload},
    {"word", "white-space separated words", Path::optional,
     "vocabulary file (empty: built from the training split)", LineEnds::of_its_own,
     [](const TokenizerConfig& c) { return load_word_tokenizer(c.path); },
     word_tokenizer_from_payload},
    {"gpt2", "GPT-2 byte-pair encoding", Path::required,
     "the folder with encoder.json and vocab.bpe", LineEnds::in_vocabulary,
     [](const TokenizerConfig& c) { return load_bpe_tokenizer(c.path); },
     bpe_tokenizer_from_payload},
    {"roberta", "RoBERTa's byte-pair encoding", Path::required,
     "the folder with vocab.json and merges.txt, or dict.txt, encoder.json and vocab.bpe",
     LineEnds::in_vocabulary,
     [](const TokenizerConfig& c) { return load_roberta_tokenizer(c.path); },
     roberta_tokenizer_from_payload},
    {"wordpiece", "BERT's WordPiece", Path::required, "vocab.txt, or the folder with it",
     LineEnds::in_vocabulary,
     [](const TokenizerConfig& c) { return load_wordpiece_tokenizer(c.path, c.lowercase); },
     wordpiece_tokenizer_from_payload},
    {"tokenizer_json", "byte-level BPE or WordPiece of a tokenizer.json", Path::required,
     "tokenizer.json, or the folder with it", LineEnds::in_vocabulary,
     [](const TokenizerConfig& c) { return load_tokenizer_json(c.path); },
     tokenizer_json_from_payload},
};

}  // namespace

std::span<const TokenizerKind> tokenizer_kinds() {
  return kKinds;
}

const TokenizerKind* find_tokenizer_kind(std::string_view name) {
  for (const TokenizerKind& kind : kKinds)
    if (kind.name == name) return &kind;
  return nullptr;
}

std::vector<std::string> tokenizer_kind_names() {
  std::vector<std::string> names;
  for (const TokenizerKind& kind : kKinds) names.emplace_back(kind.name);
  return names;
}

std::string tokenizer_kinds_text() {
  std::string text;
  const std::vector<std::string> names = tokenizer_kind_names();
  for (size_t i = 0; i < names.size(); ++i)
    text += concat(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ", names[i]);
  return text;
}

std::string tokenizer_paths_text() {
  std::string text;
  for (const TokenizerKind& kind : kKinds) {
    if (kind.path == Path::none) continue;
    text += concat(text.empty() ? "" : "; ", kind.name, ": ", kind.path_help);
  }
  return text;
}

}  // namespace linnet
