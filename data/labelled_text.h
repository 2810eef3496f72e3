// Labelled texts, one or two an example, as a classifier reads them: tokens, classes, splits.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "core/config.h"
#include "data/classification.h"
#include "data/hold_out.h"
#include "data/rows.h"
#include "data/text_options.h"

namespace linnet {

// Keys of every kind of labelled texts.
struct LabelledTextOptions : TokenizerOption, LengthsOption, HoldOutOptions, SpecialTokensOption {
  double test_fraction = 0.1;
  std::vector<std::string> classes{};
  std::string bad_rows = "refuse";
  static void describe(ConfigDescription<LabelledTextOptions>& d);
  void validate(const ConfigNode& at) const;
};

// The rows of each split.
struct TextSplits {
  std::string layout;
  std::array<std::vector<RowFile>, 3> files;
  // All examples are in the training files: validation and test are drawn from these.
  bool unsplit = false;
  bool pairs = false;   // rows have two texts
  bool values = false;  // labels are numbers to be predicted, not classes
  std::vector<RowFile>& of(Split split) { return files[static_cast<size_t>(split)]; }
  const std::vector<RowFile>& of(Split split) const { return files[static_cast<size_t>(split)]; }
};

// What files or folders of a split may be called, without an extension: "validation", "valid", ...
std::span<const char* const> split_names(Split split);

// The examples of a data set whose kind has LabelledTextOptions, its texts cut to config.context
// tokens. The classes are data.classes, or the labels of the training rows: as numbers in their
// order where all are whole numbers, else by their bytes.
//
// Ids and the tokens around texts are the tokenizer's own, as BERT and RoBERTa have them (see
// pair_encoding.h). One without CLS and SEP tokens gets them: 0 is padding, id + 1 its own, then
// SEP and CLS, set as in BERT. Where texts come in pairs, tokens have types. With `special_tokens:
// none` there are the tokens of the texts alone, a pair's one after the other; a text without any
// is its padding token.
//
// Throws Error naming file and line for a label outside the classes, or that is no number.
ClassificationDataset encode_texts(const TextSplits& texts, const DataConfig& config, BadRows& bad);

// Throws UsageError for a tokenizer that has to be made from a training text.
void check_labelled_text(const DataConfig& config, const ConfigNode& section);

}  // namespace linnet
