// The byte-level tasks of the Long Range Arena (Tay et al. 2021): Text, the sentiment of IMDb's
// reviews (Maas et al. 2011), and Retrieval, pairs of papers of the ACL Anthology Network (Radev et
// al. 2013).
#pragma once

#include <cstdint>
#include <string>

#include "core/config.h"
#include "data/hold_out.h"
#include "data/kind.h"

namespace linnet {

// Ids: 0 padding, byte + 1, then CLS.
inline constexpr int32_t kByteIds = 257, kByteVocabulary = kByteIds + 1;

struct ByteOptions : LengthsOption {
  int64_t max_bytes = 4000;       // of a text; what follows is cut, and counted in the notes
  std::string cls = "drop_last";  // drop_last: a CLS token takes the room of the last byte
};

template <typename T>
void describe_bytes(ConfigDescription<T>& d) {
  d.field("max_bytes", static_cast<int64_t T::*>(&ByteOptions::max_bytes),
          "longer texts are cut to their first bytes")
      .range(1, 1 << 24);
  d.choice("cls", static_cast<std::string T::*>(&ByteOptions::cls), {"drop_last", "keep"},
           "where a CLS token finds no room: drop_last takes that of the last byte, keep refuses");
  d.template group<LengthsOption>();
}

struct LraTextOptions : ByteOptions, HoldOutOptions {
  // held_out: a share of the training reviews. test: the test reviews, as in the published code,
  // whose best of dev is chosen on what is reported.
  std::string validation_from = "held_out";
  static void describe(ConfigDescription<LraTextOptions>& d);
};

// Reads train/{neg,pos}/*.txt and test/{neg,pos}/*.txt of aclImdb; labels 0 neg, 1 pos; a missing
// train/ or test/ is a missing split. Throws Error naming a missing folder and an empty or
// ill-formed (UTF-8) text.
ClassificationDataset read_lra_text(const std::string& folder, const LraTextOptions& options);
// Whether the folder has this layout and files that are named like aclImdb's, "0_9.txt".
bool is_lra_text(const std::string& folder);

DataKind lra_text_kind();

struct LraRetrievalOptions : ByteOptions {
  std::string bad_rows = "refuse";
  static void describe(ConfigDescription<LraRetrievalOptions>& d);
};

// Reads new_aan_pairs.train.tsv, .eval.tsv (validation) and .test.tsv of `folder`, missing ones
// becoming missing splits: no header, no quoting, columns label (0.0 or 1.0), id1, id2, text1,
// text2. An example has two sequences. Files are read line by line. A row is bad that has a wrong
// number of columns, another label, or an empty or ill-formed (UTF-8) text. Throws Error naming
// file and line for a bad row unless these are skipped, and for a line of more than 64 MiB.
ClassificationDataset read_lra_retrieval(const std::string& folder,
                                         const LraRetrievalOptions& options);
bool is_lra_retrieval(const std::string& folder);

DataKind lra_retrieval_kind();

}  // namespace linnet
