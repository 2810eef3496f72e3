// Groups of keys that several kinds of data have in their part of the section `data`.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/tokenizer_config.h"

namespace linnet {

class Tokenizer;

// Of every kind that holds text.
struct TokenizerOption {
  TokenizerConfig tokenizer{};
  // Not a key: replaces the configured one where a checkpoint's data are read.
  std::shared_ptr<const Tokenizer> of_checkpoint{};
  static void describe(ConfigDescription<TokenizerOption>& d);
};

// Of kinds that give texts for language models: how documents become a sequence of tokens.
struct TextEncoding : TokenizerOption {
  std::string lines = "whole";
  bool document_eos = true;
  std::optional<bool> cross_documents{};
  static void describe(ConfigDescription<TextEncoding>& d);
};

// Of kinds that take a list of files for each split.
struct FileLists {
  std::vector<std::string> train{}, validation{}, test{};
  bool empty() const { return train.empty() && validation.empty() && test.empty(); }
  // In the order of kSplits.
  std::array<const std::vector<std::string>*, 3> lists() const {
    return {&train, &validation, &test};
  }
  static void describe(ConfigDescription<FileLists>& d);
};

// Of kinds that split by themselves what comes unsplit.
struct SplitFractions {
  double validation_fraction = 0.05, test_fraction = 0.05;
  static void describe(ConfigDescription<SplitFractions>& d);
  void validate(const ConfigNode& at) const;
};

// Of kinds that give labelled sequences of unequal lengths.
struct LengthsOption {
  std::string lengths = "full";
  static void describe(ConfigDescription<LengthsOption>& d);
};

// Of kinds that give labelled texts.
struct SpecialTokensOption {
  std::string special_tokens = "own";
  static void describe(ConfigDescription<SpecialTokensOption>& d);
};

}  // namespace linnet
