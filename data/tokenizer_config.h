// What a recipe says about the tokenizer.
#pragma once

#include <cstdint>
#include <string>

#include "core/config.h"

namespace linnet {

struct TokenizerConfig {
  std::string kind = "byte";    // one of tokenizer_kinds()
  std::string path{};           // of the vocabulary, a file or folder
  int64_t vocabulary_size = 0;  // word: at most so many entries when built; 0 = all
  bool eos = false;             // byte: add an end-of-text id (256)
  bool lowercase = true;        // wordpiece: lower case, accents removed
  static void describe(ConfigDescription<TokenizerConfig>& d);
  void validate(const ConfigNode& at) const;
};

}  // namespace linnet
