// An entry of the registry of kinds of data: its own keys, how it is recognised, what it gives.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "data/classification.h"
#include "data/data_config.h"
#include "data/sequences.h"
#include "data/text_sources.h"

namespace linnet {

// What a look at a path found of a kind. `data inspect` takes the kind with the highest; at equal
// height the first of the registry. Names of files say more than names of folders, and these more
// than where something lies: a checkout may hold any data.
enum class Likeness : uint8_t { none, anything, place, folders, files };

// Of a kind that gives texts, for language models.
struct TextData {
  // The files of each split. Throws Error with one sentence naming what is missing.
  std::function<TextSources(const DataConfig&)> find;
  bool one_stream = false;  // default of cross_documents
  // Sets the options with which `data inspect` counts a path alone. Absent: the defaults.
  std::function<void(DataConfig&)> inspect_with = {};
};

// Of a kind that gives labelled examples, for classifiers.
struct LabelledData {
  // Reads or generates all splits. Throws Error naming a missing or broken file.
  std::function<ClassificationDataset(const DataConfig&)> load;
  // Writes a data set to a folder, for `data prepare`, and returns the files. Absent: training
  // reads the data as they are.
  std::function<std::vector<std::string>(const DataConfig&, const ClassificationDataset&,
                                         const std::string& folder)>
      write = {};
};

// Of a kind that generates sequences with tokens to predict at some positions, for language models.
struct SequenceData {
  std::function<SequenceDataset(const DataConfig&)> make;
};

// What a kind gives, in the order of DataKind::gives.
enum class DataForm : uint8_t { texts, labels, sequences };

struct DataKind {
  std::string name;     // as recipes write it: "wikitext"
  std::string help;     // one line
  KindOptions options;  // its own keys of the section `data`, with their defaults
  std::variant<TextData, LabelledData, SequenceData> gives;
  // Of a path that exists. Absent: nothing is taken for this kind unless it is named.
  std::function<Likeness(const std::string& path)> likeness = {};

  // What is read when data.path is empty, for people: "generated examples". "": data.path, or a
  // list of files where the kind has FileLists, is needed.
  std::string without_path = "";
  std::string default_path = "";  // the path that an empty one stands for; "": none
  // Its keys that say which data are read and which part is which split.
  std::vector<std::string> source_keys = {};
  // Of a kind that makes examples where there is no path: takes the keys that say how out of a
  // section, to which a path is added. What says how to read files stays.
  std::function<void(ConfigNode& section)> drop_generator = {};
  // Checks of its keys against those that all kinds share, beyond the checks that its options make
  // (see core/config.h). Throws UsageError by located_error(); keys are relative to the section.
  std::function<void(const DataConfig& config, const ConfigNode& section)> check = {};

  const TextData* texts() const { return std::get_if<TextData>(&gives); }
  const LabelledData* examples() const { return std::get_if<LabelledData>(&gives); }
  const SequenceData* sequences() const { return std::get_if<SequenceData>(&gives); }
  DataForm form() const { return static_cast<DataForm>(gives.index()); }
  // The function that gives them is there.
  bool is_complete() const {
    return texts() != nullptr      ? texts()->find != nullptr
           : examples() != nullptr ? examples()->load != nullptr
                                   : sequences()->make != nullptr;
  }
};

}  // namespace linnet
