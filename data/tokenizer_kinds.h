// The list of tokenizer kinds: recipes, checkpoints, help and messages follow it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace linnet {

struct TokenizerKind {
  enum class Path { none, optional, required };
  enum class LineEnds {
    by_option,
    of_its_own,
    in_vocabulary
  };  // where the id of an end comes from

  const char* name;
  const char* help;
  Path path;
  const char* path_help;  // what data.tokenizer.path names
  LineEnds line_ends;
  std::unique_ptr<Tokenizer> (*load)(const TokenizerConfig& config);
  std::unique_ptr<Tokenizer> (*from_payload)(std::string_view payload, std::string_view what);
};

std::span<const TokenizerKind> tokenizer_kinds();
// nullptr when there is none of that name.
const TokenizerKind* find_tokenizer_kind(std::string_view name);
std::vector<std::string> tokenizer_kind_names();
// "byte, word or gpt2" of all kinds.
std::string tokenizer_kinds_text();
// "word: vocabulary file; gpt2: ..." of the kinds that read files.
std::string tokenizer_paths_text();

}  // namespace linnet
