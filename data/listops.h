// ListOps (Nangia and Bowman 2018) in the form of the Long Range Arena (Tay et al. 2021): nested
// lists of digits under MIN, MAX, MED and SM, whose value 0-9 is the label.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/kind.h"

namespace linnet {

// The generator, which makes the examples where data.path names none.
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

// The keys of kind listops.
struct ListopsOptions : LengthsOption {
  ListopsConfig listops{};
  static void describe(ConfigDescription<ListopsOptions>& d);
};

DataKind listops_kind();

// Ids: 0 padding, 1-10 the digits 0-9, then these.
inline constexpr int32_t kListopsMin = 11, kListopsMax = 12, kListopsMed = 13, kListopsSm = 14,
                         kListopsEnd = 15;
// With the id 16, which is free for CLS.
inline constexpr int32_t kListopsVocabulary = 17;

// The value of an expression: MED is the median rounded down (mean of the middle two for an even
// count), SM the sum modulo 10. Throws Error when the ids are not one whole expression.
int32_t evaluate_listops(std::span<const int32_t> expression);

// The ids of "( ( [MAX 2 ) 9 ) ]" and of "[MAX 2 9 ]": parentheses carry nothing and are dropped.
// Throws Error naming an unknown symbol.
std::vector<int32_t> parse_listops(std::string_view text);
// The spelling of LRA's files: "( ( ( [MAX 2 ) 9 ) ] )".
std::string listops_lra_text(std::span<const int32_t> expression);

// Distinct expressions of LRA's grammar: below the largest depth an operator with probability 1/4,
// 2 .. max_arguments arguments (uniform), operator and digits uniform; kept when the length is in
// range and it was not seen before. A pure function of the configuration. Test examples are drawn
// first, then validation, then train: their contents do not depend on the size of what follows.
// Throws UsageError when so many distinct expressions are not to be found.
ClassificationDataset generate_listops(const ListopsConfig& config);

// The name of a split's file: "basic_train.tsv".
const char* listops_file(Split split);
// Reads basic_train.tsv, basic_val.tsv and basic_test.tsv of `folder` (missing ones become missing
// splits). Throws Error naming file and line for a malformed row or a label that is not the value
// of its expression, and when the folder has none of the files.
ClassificationDataset read_listops(const std::string& folder, bool brackets);
// One such file: a header, then "expression TAB label" with LF or CRLF line ends; a byte order mark
// may come first.
ClassificationSplit read_listops_tsv(const std::string& path, bool brackets);
// Writes one such file.
void write_listops_tsv(const std::string& path, const ClassificationSplit& split);

}  // namespace linnet
