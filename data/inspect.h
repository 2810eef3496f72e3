// The output of `linnet data list`, `inspect` and `prepare`, as plain structs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/data_config.h"

namespace linnet {

struct SplitReport {
  std::string name;
  std::string missing;                          // why there is no such split; "" when there is
  int64_t documents = 0, bytes = 0, words = 0;  // classification: documents are examples, no bytes
  int64_t tokens = 0;
  std::vector<int64_t> of_class;  // examples by class; empty: not labelled
};

struct DataReport {
  std::string path;
  std::string kind;       // the kind that was given or detected
  bool labelled = false;  // whether documents are examples with labels, which have no bytes
  std::string layout;     // one phrase
  std::string tokenizer;  // kind of the tokenizer that counted; "" for none
  int64_t vocabulary_size = 0;
  std::vector<std::string> classes;  // names of the labels; empty: texts, or values to predict
  std::vector<SplitReport> splits;   // train, validation, test
  std::vector<std::string> warnings;
  std::vector<std::string> written;  // files that prepare made or found already made
};

// Reads every split and counts; nothing is cached. config.kind and config.path say what is read.
// Splits that are missing are reported, files that are broken throw Error naming them.
DataReport inspect_data(const DataConfig& config);

// The same for a path alone: of the detected kind, with the options that the kind wants for that.
DataReport inspect_data(const std::string& path);

// Makes what training reads, ahead of it, in `folder` (empty: the folder of the token cache): the
// token cache of every split, what the kind of labelled examples writes, or the contents of their
// archive. Throws UsageError for examples that training reads as they are.
DataReport prepare_data(const DataConfig& config, const std::string& folder);

}  // namespace linnet
