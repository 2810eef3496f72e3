// What the `data` section of a recipe says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/tokenizer.h"

namespace linnet {

// The ListOps generator (kind listops without a path).
struct ListopsConfig {
  int64_t min_length = 501;  // symbols, without parentheses; both ends are allowed
  int64_t max_length = 1999;
  int64_t max_depth = 10;
  int64_t max_arguments = 10;
  int64_t train_examples = 96000;
  int64_t validation_examples = 2000;
  int64_t test_examples = 2000;
  int64_t seed = 1;
  bool brackets = true;
  static void describe(ConfigDescription<ListopsConfig>& d);
  void validate(const ConfigNode& at) const;
};

struct DataConfig {
  std::string kind = "text";
  std::string path{};
  std::vector<std::string> train{}, validation{}, test{};
  double validation_fraction = 0.05, test_fraction = 0.05;
  TokenizerConfig tokenizer{};
  std::string lines = "whole";
  bool document_eos = true;
  int64_t context = 1024;
  std::optional<bool> cross_documents{};
  bool cache = true;
  ListopsConfig listops{};

  static void describe(ConfigDescription<DataConfig>& d);
  void validate(const ConfigNode& at) const;
  // cross_documents, or the default of the kind: true for pg19 and wikitext, whose protocols cut
  // one stream, false otherwise.
  bool crosses_documents() const;
};

}  // namespace linnet
